"""Have SIGTERM stop the API only after a while, in which it answers as before and its probes say that it stops."""

import signal
from collections.abc import Callable
from typing import Any

from app.api.stopping import stopping


def install(stop: Callable[[int, Any], None], seconds: float) -> None:
    """Have SIGTERM call `stop`, which has handled it so far, only after so many seconds; a second one at once.

    Call this in the main thread of gunicorn's parent, which goes on to supervise its workers meanwhile.
    """

    def end(_number: int, frame: Any) -> None:
        stop(signal.SIGTERM, frame)

    def begin(_number: int, _frame: Any) -> None:
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, seconds)  # of this process alone: a worker that is forked later has none
        stopping.begin()

    signal.signal(signal.SIGTERM, begin)
