"""Tell which release of Bucketwire this is, of which commit it was built, and how to install an extra of it."""

import sys
from importlib.metadata import version
from pathlib import Path

# Read when the process starts: an upgrade in place changes what is installed, not what runs.
VERSION = version("bucketwire")
_COMMIT = Path(__file__).with_name("COMMIT")  # written by the build (setup.py), so that nothing asks git at run time


def commit() -> str:
    """Return the commit that this was built from, with `-dirty` if files were changed; empty in a checkout."""
    try:
        return _COMMIT.read_text().strip()
    except FileNotFoundError:
        return ""


def describe() -> str:
    """Return the version and the commit in one line."""
    built_from = f"commit {commit()}" if commit() else "a checkout, or built without git"
    return f"bucketwire {VERSION} ({built_from})"


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation; as Bucketwire is there, no index is asked for it."""
    return f"{sys.executable} -m pip install 'bucketwire[{extra}]'"
