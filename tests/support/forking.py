"""A forked child of the tests, as a worker's pool forks its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil


def in_a_child(action: Callable[[], None], report: Path) -> str:
    """Fork, do it there, and return what it says; the child ends as a worker's child that is killed does: at once."""
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # one that hangs on what it inherited is ended
        try:
            action()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - it must not go on as a second pytest
            report.write_text(f"{type(error).__name__}: {error}")
            os._exit(1)
    _, status = os.waitpid(child, 0)
    said = report.read_text() if report.exists() else ""
    assert status == 0, f"the child ended with {status}: {said}"
    return said


def local_ports() -> set[int]:
    """The near ends of this process's connections to a server."""
    return {each.laddr.port for each in psutil.Process().net_connections("tcp") if each.raddr}
