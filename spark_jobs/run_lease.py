"""A run that says again and again that it is alive, so that there is one at a time."""

import contextlib
import threading
from collections.abc import Iterator

from app.outbox.reconcile.runs import Reconciliations

LEASE = 60_000  # ms; a run that is not heard of for so long is dead


@contextlib.contextmanager
def alive(runs: Reconciliations, run: str) -> Iterator[threading.Event]:
    """Renew the run until the end; the event is set when it was declared dead all the same."""
    over, lost = threading.Event(), threading.Event()

    def renew() -> None:
        while not over.wait(LEASE / 4000):
            with contextlib.suppress(Exception):  # the next one may get through
                if not runs.renew(run, lease=LEASE):
                    lost.set()

    thread = threading.Thread(target=renew, name="alive", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        over.set()
        thread.join()
