"""The folders of the service: one that only its user can read, and one of metrics for each worker that runs."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from stat import S_ISGID

_OTHERS = 0o077
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"  # the client library's name
_FOLDER = "metrics"
_LOCK = "lock"


def create_files_for_this_user_only() -> None:
    """Let this process, and those that it starts, create files that only its user can read."""
    os.umask(_OTHERS)


def make_private(folder: Path) -> str:
    """Create a folder that only this user can read, or make an existing one so, and the files in it.

    Returns a warning if the folder belongs to another user and stays as it is, as a volume of a container may, or "".
    There is none for a pod's volume that Kubernetes shares with its group (`fsGroup`): nobody else is in the pod, and
    files are private.
    """
    create_files_for_this_user_only()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not folder.stat().st_mode & _OTHERS:
        return ""
    try:
        _withdraw(folder)
    except PermissionError:
        if _is_of_this_group(folder.stat()):
            return ""
        return (
            f"other users may read {folder}, which belongs to another user; let it belong to this one, with mode 0700"
        )
    for file in folder.iterdir():
        with contextlib.suppress(OSError):  # of another user, or gone
            if file.is_file() and not file.is_symlink():
                _withdraw(file)
    return ""


def _withdraw(path: Path) -> None:
    mode = path.stat().st_mode
    if mode & _OTHERS:
        path.chmod(mode & 0o7777 & ~_OTHERS)


def _is_of_this_group(status: os.stat_result) -> bool:
    return bool(status.st_mode & S_ISGID) and status.st_gid in {os.getegid(), *os.getgroups()}


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
