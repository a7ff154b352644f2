"""Notify systemd, or another service manager that started this process, of its state: sd_notify(3)."""

import os
import socket
from contextlib import suppress

VARIABLE = "NOTIFY_SOCKET"
READY = "READY=1"


def notify(state: str, address: str | None = None) -> None:
    """Send a state; do nothing where nobody waits for it. `address` is that of the variable, unless given."""
    address = os.environ.get(VARIABLE, "") if address is None else address
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:  # the service works without
            sock.sendto(state.encode(), address)
