"""End a job early: on SIGTERM, or when the process that started it is gone."""

import os
import signal
import threading
from typing import Any

_EXIT_TIMEOUT = 10  # seconds
_EXIT_INTERRUPTED = 130  # as after Ctrl-C


def on_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C from now on: Spark's jobs are cancelled, and the run is recorded as failed."""
    signal.signal(signal.SIGTERM, _interrupt)


def on_end_of_input() -> None:
    """Treat the end of standard input as SIGTERM from now on."""
    threading.Thread(target=_wait_for_end_of_input, name="input", daemon=True).start()


def begin() -> None:
    """End this process as SIGTERM does. Safe to call from any thread."""
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(*_: Any) -> None:
    # Python ignores an exception that is raised while it forks, and Spark may need long to stop.
    timer = threading.Timer(_EXIT_TIMEOUT, os._exit, (_EXIT_INTERRUPTED,))
    timer.daemon = True
    timer.start()
    signal.raise_signal(signal.SIGINT)


def _wait_for_end_of_input() -> None:
    # Not through `sys.stdin`: its lock would be held when the interpreter exits.
    while os.read(0, 1024):
        pass
    begin()
