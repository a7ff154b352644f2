"""Keep the files of the service from the machine's other users."""

import contextlib
import os
from pathlib import Path
from stat import S_ISGID

_OTHERS = 0o077


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
