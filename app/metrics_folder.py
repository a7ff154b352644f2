"""The folders in which running workers keep their metrics: one for each worker, removed when it has ended."""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # the client library's name
_FOLDER = "metrics"
_LOCK = "lock"


def own_folder(var: Path) -> Path:
    """Create a metrics folder for this process, and remove those whose processes have all ended.

    The program that this process becomes, and its children, inherit the lock that protects it. Raises `OSError`.
    """
    parent = _parent(var)
    for existing in parent.iterdir():
        if _is_abandoned(existing):
            shutil.rmtree(existing, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    os.set_inheritable(_lock(folder), True)
    return folder


def fresh_folder(var: Path, name: str) -> Path:
    """Create the folder of this name, empty. It is for one worker at a time, whose metrics continue after a restart."""
    folder = _parent(var) / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def remove(folder: Path, var: Path) -> None:
    """Remove a folder that `own_folder` created; any other is kept."""
    if folder.parent == var / _FOLDER and (folder / _LOCK).exists():
        shutil.rmtree(folder, ignore_errors=True)


def _parent(var: Path) -> Path:
    parent = var / _FOLDER
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return parent


def _lock(folder: Path) -> int:
    draft = folder / "lock.new"  # renamed to its final name only once the lock is held
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    draft.rename(folder / _LOCK)
    return descriptor


def _is_abandoned(folder: Path) -> bool:
    """Return whether no process holds the folder's lock.

    A folder without a lock is one of `fresh_folder`, or is being created at this moment.
    """
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
