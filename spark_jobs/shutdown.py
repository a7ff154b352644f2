"""How a job ends before its time: asked to by SIGTERM, or because whoever started it is gone."""

import os
import signal
import threading
from typing import Any

_PATIENCE = 10  # seconds
_STOPPED = 130  # as after Ctrl-C


def by_sigterm() -> None:
    """From now on SIGTERM is as Ctrl-C: Spark's jobs are cancelled, and the run is recorded as failed."""
    signal.signal(signal.SIGTERM, _interrupt)


def with_input() -> None:
    """From now on the end of standard input is as SIGTERM."""
    threading.Thread(target=_follow, name="input", daemon=True).start()


def _interrupt(*_: Any) -> None:
    # Python ignores an exception that comes while it forks, and Spark may take its time.
    over = threading.Timer(_PATIENCE, os._exit, (_STOPPED,))
    over.daemon = True
    over.start()
    signal.raise_signal(signal.SIGINT)


def _follow() -> None:
    # Not by way of `sys.stdin`: its lock would be held when the interpreter ends.
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
