"""Keep requests for redelivery that a worker could not record, because the outbox database was unavailable.

A worker that lost its lease may have overwritten newer events with older ones, and so may a request without an answer
that arrives later. The worker must request redelivery of the newest ones (`app.outbox.delivery.redelivery`), however
long the database is unavailable and even if the process is killed meanwhile. So the worker first writes each request to
its own file in the service's data directory, and removes the file once the request is recorded. Every process that
shares the directory records the requests in it: those of a target before it claims a lease of that target, since a
request waits for a lock of the target's cursors, and all of them once a second. Recording a request is idempotent, so
no process owns a file.
"""

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from app.outbox.delivery import redelivery
from app.outbox.delivery.leases import Lease
from app.outbox.delivery.parked import ObjectHash
from app.outbox.engine.database import Database, DatabaseUnavailable, describe_error

log = logging.getLogger("bucketwire.worker")

FOLDER = "redelivery-requests"
_PAUSE_SECONDS = 1.0  # between two tries


@dataclass(frozen=True)
class _Request:
    target_id: int
    written: dict[ObjectHash, int]
    due: int
    epoch: str  # of the log, in which the seqs are

    def encode(self) -> bytes:
        objects = [[*key, seq] for key, seq in self.written.items()]
        return orjson.dumps({"target": self.target_id, "objects": objects, "due": self.due, "epoch": self.epoch})

    @classmethod
    def decode(cls, text: bytes) -> "_Request":
        """Decode a request. Raises `ValueError`, `LookupError` or `TypeError` for any other content."""
        content = orjson.loads(text)
        written = {(int(partition), int(key_hash)): int(seq) for partition, key_hash, seq in content["objects"]}
        return cls(int(content["target"]), written, int(content.get("due", 0)), str(content.get("epoch", "")))


class RedeliveryRequests:
    """Requests not yet recorded by this process and its predecessors; `folder` is the service's data directory.

    `recorded` is called after each request that is recorded: then a partition has due work.
    """

    def __init__(self, database: Database, folder: Path, recorded: Callable[[], None] = lambda: None) -> None:
        self._database = database
        self._recorded = recorded
        self._folder = folder / FOLDER
        self._unwritten: list[_Request] = []  # requests that could not be written to disk
        self._done: set[Path] = set()  # files of recorded requests that could not be removed
        self._left: set[Path] = set()  # files of which the log has a warning that they stay
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        if any(self._files()):
            self._keep_trying()

    def add(self, lease: Lease, arn: str, written: Mapping[ObjectHash, int], due: int = 0) -> None:
        """Request redelivery of the newest events of these objects: now, or once the database is available again.

        `lease` is the one with which they were written; `written` and `due` are those of
        `app.outbox.delivery.redelivery.request`.
        """
        if not written:
            return
        request = _Request(lease.target_id, dict(written), due, lease.epoch)
        try:
            self._write(request)
        except OSError as error:
            log.warning("%s: cannot keep a redelivery request on disk: %s", arn, error.strerror, extra={"target": arn})
            self._unwritten.append(request)
        try:
            self.record(lease.target_id)
        except DatabaseUnavailable as error:
            words = "%s: %d objects may hold an old state until the outbox database is back: %s"
            log.warning(words, arn, len(written), describe_error(error), extra={"target": arn})
            self._keep_trying()

    def record(self, target_id: int | None = None) -> None:
        """Record every request, or those of one target, and leave the others to a thread; cheap if there are none.

        Raises `DatabaseUnavailable`: then the process must not claim a lease of the target.
        """
        for unwritten in list(self._unwritten):
            if target_id in (None, unwritten.target_id):
                self._record(unwritten)
                with contextlib.suppress(ValueError):  # another thread was faster
                    self._unwritten.remove(unwritten)
        for file in self._files():
            if file in self._done:
                self._remove(file)
            elif (request := self._read(file)) is None:
                continue
            elif target_id in (None, request.target_id):
                self._record(request)
                self._done.add(file)
                self._remove(file)
            else:
                self._keep_trying()

    def close(self, patience: float = 0.0) -> None:
        """Stop retrying, after up to `patience` seconds of further tries. Requests on disk stay there."""
        deadline = time.monotonic() + patience
        while self._is_pending() and time.monotonic() < deadline:
            with contextlib.suppress(*DatabaseUnavailable):
                self.record()
                break
            time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))
        if self._unwritten:
            objects = sum(len(request.written) for request in self._unwritten)
            log.error("%d objects may hold an old state: neither disk nor outbox database took a request", objects)
        self._closed.set()

    def _record(self, request: _Request) -> None:
        redelivery.request(self._database, request.target_id, request.written, request.due, epoch=request.epoch)
        self._recorded()

    def _read(self, file: Path) -> _Request | None:
        """Return the request in a file, None if it has none, is gone, or cannot be read now."""
        try:
            return _Request.decode(file.read_bytes())
        except FileNotFoundError:  # another process was faster
            return None
        except OSError as error:
            self._leave(file, error)
            return None
        except (ValueError, LookupError, TypeError) as error:
            if file not in self._left:
                log.warning("%s is not a redelivery request and is quarantined as .unreadable: %s", file, error)
        try:
            file.rename(file.with_suffix(".unreadable"))
        except OSError as error:
            self._leave(file, error)
        return None

    def _remove(self, file: Path) -> None:
        try:
            file.unlink(missing_ok=True)
        except OSError as error:  # this process does not record it again; its successor does, which repeats an event
            self._leave(file, error)
        else:
            self._done.discard(file)

    def _leave(self, file: Path, error: OSError) -> None:
        """Warn of a file that stays where it is, once: deliveries do not depend on it, and it is tried again."""
        if file not in self._left:
            self._left.add(file)
            log.warning("%s cannot be read, renamed or removed, check its permissions: %s", file, error.strerror)

    def _files(self) -> Iterator[Path]:
        with contextlib.suppress(OSError):  # the folder usually does not exist
            names = sorted(name for name in os.listdir(self._folder) if name.endswith(".json"))  # noqa: PTH208 - fastest
            yield from (self._folder / name for name in names)

    def _is_pending(self) -> bool:
        return bool(self._unwritten) or any(file not in self._done for file in self._files())

    def _write(self, request: _Request) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        made = self._folder / f"{uuid.uuid4().hex}.tmp"
        with made.open("wb") as file:
            file.write(request.encode())
            file.flush()
            os.fsync(file.fileno())
        made.rename(made.with_suffix(".json"))

    def _keep_trying(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._try, name="redelivery-requests", daemon=True)
            self._thread.start()

    def _try(self) -> None:
        while self._is_pending() and not self._closed.wait(_PAUSE_SECONDS):
            with contextlib.suppress(*DatabaseUnavailable):
                self.record()
