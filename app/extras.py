"""The extras of the installation: what installs one that is missing."""

import sys


def install_command(extra: str) -> str:
    """Return the command that adds an extra to this installation; as Bucketwire is there, no index is asked for it."""
    return f"{sys.executable} -m pip install 'bucketwire[{extra}]'"
