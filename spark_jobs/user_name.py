"""Give Java's user a name where the system has none for it, such as in a container on OpenShift. Imports no Spark.

Hadoop's login fails for a user that `/etc/passwd` does not have, and with it Spark's driver, before it reads any
setting. nss_wrapper (Debian's libnss-wrapper, which the image with Spark has) finds users in another file.
"""

import os
import pwd
from pathlib import Path
from tempfile import TemporaryDirectory

_NAME = "bucketwire"
_WRAPPER = "libnss_wrapper.so"
_folders: list[TemporaryDirectory[str]] = []  # removed when the process ends


def set_variables() -> None:
    """Have processes that this one starts from now on find a name for its user, unless it has one."""
    loaded = os.environ.get("LD_PRELOAD", "")
    if _has_name() or _WRAPPER in loaded:
        return
    folder = TemporaryDirectory(prefix="bucketwire-user-")
    _folders.append(folder)
    passwd = Path(folder.name) / "passwd"
    passwd.write_text(f"{_NAME}:x:{os.getuid()}:{os.getgid()}::{os.environ.get('HOME', '/')}:/bin/false\n")
    os.environ["LD_PRELOAD"] = f"{loaded}:{_WRAPPER}" if loaded else _WRAPPER
    os.environ["NSS_WRAPPER_PASSWD"] = str(passwd)
    os.environ["NSS_WRAPPER_GROUP"] = "/etc/group"  # it does nothing without one


def hint() -> str:
    """Return why Java may not have started: its user has no name. Empty if it has one."""
    if _has_name():
        return ""
    return f"user {os.getuid()} has no name, which Java needs: install libnss-wrapper, or add the user to /etc/passwd"


def _has_name() -> bool:
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        return False
    return True
