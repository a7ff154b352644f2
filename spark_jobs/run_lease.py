"""Renew a run's lease in the background, so that only one run is active."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from app.outbox.delivery.policies import FUTURE_TIMES
from app.outbox.reconcile.runs import Progress, Reconciliations
from spark_jobs import shutdown

LEASE_MS = FUTURE_TIMES.run_lease_ms  # a run whose lease is not renewed for so long is dead


@contextlib.contextmanager
def renewed(
    runs: Reconciliations, run: str, progress: Callable[[], Progress | None] = lambda: None
) -> Iterator[threading.Event]:
    """Renew the run's lease inside, with its progress; the event is set if it was declared dead nevertheless.

    `progress` must return at once, else the lease expires. If the run is cancelled, the process ends as on SIGTERM.
    """
    stop, lost = threading.Event(), threading.Event()

    def renew() -> None:
        while not stop.wait(LEASE_MS / 4000):
            with contextlib.suppress(Exception):  # the next renewal may succeed
                if not lost.is_set() and not runs.renew(run, lease=LEASE_MS, progress=progress()):
                    lost.set()
                    if runs.is_cancelled(run):
                        shutdown.begin()

    thread = threading.Thread(target=renew, name="run-lease", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        stop.set()
        thread.join()
