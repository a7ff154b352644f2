"""Pull from one source, as long as its lease is held: read the next messages while those before are committed.

Everything that talks to the queue is done by one thread of the source; this one talks to the outbox.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import cast

from app import telemetry
from app.config.sources.base import QueueSettings, SourceSettings
from app.events.frontends import S3_FRONTENDS
from app.events.limits import Limits
from app.events.parsing import Message, ReadMessage, read_message
from app.outbox.processes import record_certificates_of_source
from app.outbox.sources.intake import SourceIntake, TargetFull
from app.outbox.sources.rows import SourceLease
from app.telemetry.tracing import append_span, in_span
from workers.sources import create, source_thread
from workers.sources.base import Source, SourceChanged, SourceUnavailable
from workers.sources.source_thread import Outbox, SourceThread, Stopped
from workers.targets import tcp
from workers.targets.tls import seen_with

log = logging.getLogger("bucketwire.sources")


class Puller(SourceThread):
    """Pull from a queue, and record what it has."""

    def __init__(self, outbox: Outbox, lease: SourceLease, ending: threading.Event) -> None:
        super().__init__(outbox, lease, ending)
        self._intake = SourceIntake(outbox.database, outbox.clock, outbox.lease_ms)
        self._reported_at = 0.0
        self._recorded: list[Message] = []  # of which the queue has not been told

    def _take(self, settings: SourceSettings) -> None:
        queue = cast(QueueSettings, settings)
        source = create(settings.type_name, settings)
        with ThreadPoolExecutor(1, thread_name_prefix=self.name) as queue_thread:
            try:
                while not self._ending.is_set():
                    try:
                        self._follow(source, queue, queue_thread)
                    except SourceChanged:
                        log.info("source %s has other shares; it is opened again", self.lease.stored.source)
            finally:
                queue_thread.submit(_finish, source, self._taken())

    def _follow(self, source: Source, settings: QueueSettings, queue_thread: ThreadPoolExecutor) -> None:
        """Open the source, and record what it has until it is stopped, its shares change or a certificate ends soon."""
        self._step()
        opened = queue_thread.submit(
            tcp.reaching, partial(source.open, dict(self.lease.positions)), settings.timeout
        ).result()
        notice, risk = "; ".join(opened.lost), "; ".join(opened.risks)
        if notice:
            log.error("source %s: %s", self.lease.stored.source, notice)
        if risk:
            log.warning("source %s: %s", self.lease.stored.source, risk)
        if opened.moved or notice or risk != self.lease.stored.reason:
            self._outbox.leases.begin(self.lease, self._outbox.clock(), opened.moved, notice, risk)
        reading = _Reading(source, str(self.lease.stored.source), settings, self._outbox.limits())

        def tell() -> None:
            queue_thread.submit(source.commit, self._taken()).result()

        seen = seen_with(settings)
        following: Future[list[ReadMessage]] = queue_thread.submit(reading.next, self._taken())
        while not self._ending.is_set():
            self._step()
            messages = following.result()
            # Between two pulls, so that the queue gives nothing a second time.
            is_last = reading.is_drained and seen.is_stale()
            if not is_last:
                following = queue_thread.submit(reading.next, self._taken())
            if messages:
                self._record(messages, settings, tell)
            if is_last:
                tell()
                log.info("source %s is connected to again: a certificate ends soon", self.lease.stored.source)
                return
            if time.monotonic() >= self._reported_at + source_thread.REPORT_SECONDS:
                self._reported_at = time.monotonic()
                self._outbox.leases.report(self.lease, self._outbox.clock(), reading.lag)
                self._record_certificates(settings)
        following.cancel()

    def _record_certificates(self, settings: QueueSettings) -> None:
        if ends := (seen := seen_with(settings)).unrecorded():
            stored, database = self.lease.stored, self._outbox.database
            record_certificates_of_source(database, stored.row_id, stored.revision, ends, self._outbox.clock())
            seen.recorded(ends)

    def _record(self, messages: Sequence[ReadMessage], settings: QueueSettings, tell: Callable[[], None]) -> None:
        """Record messages, and wait as long as a target has no room for their events.

        The queue is told meanwhile what is recorded, so that it does not take the source for gone.
        """
        for some in _commits(messages):
            with _appending(some) as left:
                self._record_commit(left, settings, tell)

    def _record_commit(self, left: Sequence[ReadMessage], settings: QueueSettings, tell: Callable[[], None]) -> None:
        pause = source_thread.FIRST_FULL_SECONDS
        while left:
            self._step()
            try:
                for count, receipt in self._intake.record(
                    self.lease, left, most=settings.rejected_limit, most_bytes=settings.rejected_size
                ):
                    self._recorded += [read.message for read in left[:count]]
                    left = left[count:]
                    self._outbox.wake(receipt)
            except TargetFull as error:
                self._outbox.leases.wait(self.lease, self._outbox.clock(), str(error))
                tell()
                if self._ending.wait(pause):
                    raise Stopped from None
                pause = min(2 * pause, source_thread.MAX_FULL_SECONDS)

    def _taken(self) -> Sequence[Message]:
        """Return the messages that are recorded since the last call."""
        taken, self._recorded = self._recorded, []
        return taken


class _Reading:
    """The steps that the thread of a source takes. `lag` is what it said last."""

    def __init__(self, source: Source, name: str, settings: QueueSettings, limits: Limits) -> None:
        self._source = source
        self._name = name
        self._settings = settings
        self._limits = limits
        self._sender = S3_FRONTENDS.get(settings.frontend)
        self._pulled: deque[Message] = deque()  # and not read yet
        self._measured_at = 0.0
        self.lag: int | None = None

    @property
    def is_drained(self) -> bool:
        """Whether all that was pulled is read; to be asked between two calls of `next`."""
        return not self._pulled

    def next(self, done: Sequence[Message]) -> list[ReadMessage]:
        """Commit the messages that are recorded, pull the next unless some are left, and read those of one commit.

        The others are read later: what is read in a message may take a thousand times as much memory as it does, and a
        second of time, and a queue that does not hear of its consumer takes it for gone, and gives it the same again.
        """
        self._source.commit(done)
        if not self._pulled:
            self._pulled.extend(self._source.pull(self._settings.batch_size, source_thread.PULL_SECONDS))
        if time.monotonic() >= self._measured_at + source_thread.REPORT_SECONDS:
            self._measured_at = time.monotonic()
            self.lag = self._source.lag()
        read, size = list[ReadMessage](), 0
        until = time.monotonic() + source_thread.READ_SECONDS
        while self._pulled and size < source_thread.COMMIT_BYTES and (not read or time.monotonic() < until):
            message, tenant = self._pulled.popleft(), self._settings.tenant
            read.append(read_message(message, self._limits, self._sender, self._name, tenant))
            size += _size(read[-1])
        return read


def _finish(source: Source, recorded: Sequence[Message]) -> None:
    """Tell the queue what is recorded, whatever ends the source; what it does not learn is pulled again."""
    with suppress(SourceUnavailable, SourceChanged):
        source.commit(recorded)
    source.close()


@contextmanager
def _appending(messages: Sequence[ReadMessage]) -> Iterator[Sequence[ReadMessage]]:
    """Provide the messages of one commit as they are to be recorded, within a span if traces are exported."""
    tracing = telemetry.tracing()
    events = [event for read in messages for event in read.events] if tracing is not None else []
    if tracing is None or not events:
        yield messages
        return
    with append_span(tracing, "append", events) as span:
        yield [replace(read, events=tuple(in_span(span, read.events))) for read in messages]


def _size(read: ReadMessage) -> int:
    """Return the size of what is stored of a message."""
    return len(read.message.body) if read.problem else sum(len(event.record) for event in read.events)


def _commits(messages: Sequence[ReadMessage]) -> Iterator[Sequence[ReadMessage]]:
    """Split messages into those of one commit each, by the size of their records."""
    start = size = 0
    for index, read in enumerate(messages):
        own = _size(read)
        if index > start and size + own > source_thread.COMMIT_BYTES:
            yield messages[start:index]
            start, size = index, 0
        size += own
    if start < len(messages):
        yield messages[start:]
