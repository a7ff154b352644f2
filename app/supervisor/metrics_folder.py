"""Where workers keep the figures of their own work while they run: a folder for each, removed when it has ended."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # as the client library calls it
_FOLDER = "figures"
_LOCK = "lock"


def own_folder(var: Path) -> Path:
    """A new folder of this process's own below the service's, and an end of those whose processes have all ended.

    The lock that keeps it is inherited by the program that this process becomes, and its children. Raises `OSError`.
    """
    place = _place(var)
    for left in place.iterdir():
        if _abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(dir=place))
    os.set_inheritable(_lock(folder), True)
    return folder


def fresh_folder(var: Path, name: str) -> Path:
    """The folder of this name, emptied: for one worker at a time, whose figures go on when it is started again."""
    folder = _place(var) / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def remove(folder: Path, var: Path) -> None:
    """Remove a worker's own folder; any other stays."""
    if folder.parent == var / _FOLDER and (folder / _LOCK).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _place(var: Path) -> Path:
    place = var / _FOLDER
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


def _lock(folder: Path) -> int:
    made = folder / "lock.new"  # under its name only once it is held
    descriptor = os.open(made, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    made.rename(folder / _LOCK)
    return descriptor


def _abandoned(folder: Path) -> bool:
    """Whether nobody holds its lock. One without a lock is of `fresh_folder`, or being made just now."""
    try:
        descriptor = os.open(folder / _LOCK, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
