"""Keep requests for redelivery that a worker could not record, because the outbox database was unavailable.

A worker that lost its lease may have overwritten newer events with older ones, and so may a request without an answer
that arrives later. The worker must request redelivery of the newest ones (`app.outbox.delivery.redelivery`), however
long the database is unavailable. Until then it claims no lease of the target. If its process is killed meanwhile, its
lease expires, and whoever claims the partitions next requests the redelivery (`PartitionWorker._succeed`).
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.outbox.delivery import redelivery
from app.outbox.delivery.due_work import ObjectHash
from app.outbox.delivery.leases import Lease
from app.outbox.engine.database import Database, DatabaseUnavailable, describe_error

log = logging.getLogger("bucketwire.worker")

_PAUSE_SECONDS = 1.0  # between two tries


@dataclass(frozen=True)
class _Request:
    target_id: int
    written: Mapping[ObjectHash, int]
    due: int
    epoch: str  # of the log, in which the seqs are


class RedeliveryRequests:
    """The requests of this process that are not recorded yet. `recorded` is called after each that is.

    Each target's are recorded before this process claims a lease of that target, because a request waits for a lock of
    the target's cursors; all of them are tried once a second. To record a request twice is harmless.
    """

    def __init__(self, database: Database, recorded: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._recorded = recorded
        self._pending: list[_Request] = []
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease, arn: str, written: Mapping[ObjectHash, int], due: int = 0) -> None:
        """Request redelivery of the newest events of these objects: now, or once the database is available again.

        `lease` is the one with which they were written; `written` and `due` are those of
        `app.outbox.delivery.redelivery.request`.
        """
        if not written:
            return
        self._pending.append(_Request(lease.target_id, dict(written), due, lease.epoch))
        try:
            self.record(lease.target_id)
        except DatabaseUnavailable as error:
            words = "%s: %d objects may hold an old state until the outbox database is back: %s"
            log.warning(words, arn, len(written), describe_error(error), extra={"target": arn})
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._keep_trying, name="redelivery-requests", daemon=True)
                self._thread.start()

    def record(self, target_id: int | None = None) -> None:
        """Record every request, or those of one target.

        Raises `DatabaseUnavailable`: then the process must not claim a lease of the target.
        """
        for request in list(self._pending):
            if target_id in (None, request.target_id):
                redelivery.request(self._database, request.target_id, request.written, request.due, epoch=request.epoch)
                self._recorded()
                with contextlib.suppress(ValueError):  # another thread was faster
                    self._pending.remove(request)

    def close(self, patience: float = 0.0) -> None:
        """Stop trying, after up to `patience` seconds of further tries."""
        deadline = time.monotonic() + patience
        while self._pending and time.monotonic() < deadline:
            with contextlib.suppress(*DatabaseUnavailable):
                self.record()
                break
            time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))
        if self._pending:
            objects = sum(len(request.written) for request in self._pending)
            log.error("%d objects may hold an old state: the outbox database took no request for redelivery", objects)
        self._closed.set()

    def _keep_trying(self) -> None:
        while self._pending and not self._closed.wait(_PAUSE_SECONDS):
            with contextlib.suppress(*DatabaseUnavailable):
                self.record()
