"""The open targets of a worker's process: each with its size of a batch, failing replays, and the one way to call it.

A target is opened in the process that uses it, and again on new settings. While traces are exported, each call has a
span.
"""

import contextlib
import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain

from app import telemetry
from app.config.api_settings import sync_events
from app.config.arn import TargetId
from app.config.errors import BadSettings
from app.config.fields.fields import references
from app.config.settings import Settings
from app.config.targets.base import TargetSettings
from app.events.limits import MAX_EVENT_BYTES
from app.events.model import Event
from app.outbox.declared import StoredTarget
from app.outbox.delivery.leases import ReplayPartition
from app.outbox.log.reading import TOO_LONG
from app.outbox.registry import Registry
from app.telemetry.tracing import NO_SPAN, Span, Tracing, Value
from workers.delivery import retry
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import (
    DELIVERED,
    NOT_ATTEMPTED,
    Delivered,
    Failed,
    NotAttempted,
    Outcome,
    Rejected,
    Unavailable,
)
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import Observer, TargetCall
from workers.idle_processes import processes
from workers.targets import create, tcp
from workers.targets.base import LeaseCheck, LeaseExpired, Target, TargetUnavailable, begin_call_trace
from workers.targets.tls import SeenCertificates, seen_with
from workers.telemetry import metrics
from workers.telemetry.redaction import RedactingTarget

_COUNTED = {
    Delivered: "delivered",
    Failed: "failed",
    Rejected: "rejected",
    Unavailable: "unavailable",
    NotAttempted: "not_attempted",
}


class CallSpans(Observer):
    """The spans of one target, whose reasons contain no secrets.

    A call with one event continues the event's trace, and the event is sent with the context of this span. A call with
    several has a trace of its own, unless they all came with the same; its span is linked to theirs. Each of these
    events is sent with its own context, and a request with several of them with that of the call.
    """

    def __init__(self, tracing: Tracing, name: TargetId, arn: str) -> None:
        self._tracing = tracing
        self._span: Span = NO_SPAN
        self._span_name = f"deliver {name}"
        self._attributes: dict[str, Value] = {
            "messaging.system": name.type,
            "messaging.operation.type": "send",
            "messaging.operation.name": "deliver",
            "messaging.destination.name": str(name),
            "bucketwire.target": arn,
        }

    def call_begins(self, call: TargetCall) -> None:
        """Start the span."""
        self._span = self._start(call.events)
        call.trace = self._span.trace
        begin_call_trace(call.trace)
        if len(call.events) == 1:
            call.events = [call.events[0]._replace(trace=call.trace)]

    def call_ended(self, call: TargetCall) -> None:
        """End the span with what came of the call."""
        span, self._span = self._span, NO_SPAN
        begin_call_trace("")
        if isinstance(call.error, TargetUnavailable):
            span.fail("unavailable", call.error.reason)
        elif isinstance(call.error, LeaseExpired):
            span.fail("lease_expired")
        elif call.error is not None:
            span.fail(type(call.error).__name__)  # its text may contain secrets
        else:
            _record(span, call.outcomes)
        span.end()

    def _start(self, events: Sequence[Event]) -> Span:
        first = events[0]
        if len(events) == 1:
            attributes = {
                **self._attributes,
                "messaging.message.id": first.id,
                "aws.s3.bucket": first.bucket,
                "aws.s3.key": first.key,
                "bucketwire.event.name": first.name,
            }
            return self._tracing.start(self._span_name, "producer", parent=first.trace, attributes=attributes)
        attributes = {**self._attributes, "messaging.batch.message_count": len(events)}
        shared = first.trace if all(event.trace == first.trace for event in events) else ""
        links = () if shared else (event.trace for event in events)
        return self._tracing.start(self._span_name, "client", parent=shared, links=links, attributes=attributes)


def _record(span: Span, outcomes: Sequence[Outcome]) -> None:
    """Set the number of each outcome, and the first reason if any event was not delivered."""
    if outcomes.count(DELIVERED) == len(outcomes):  # nearly always, and a tenth of the time
        span.set("bucketwire.delivered", len(outcomes))
        return
    for kind, count in Counter(map(type, outcomes)).items():
        span.set(f"bucketwire.{_COUNTED[kind]}", count)
    for outcome in outcomes:
        if isinstance(outcome, Failed | Rejected | Unavailable):
            span.fail(_COUNTED[type(outcome)], outcome.reason)
            return


@dataclass(slots=True)
class BatchSizer:
    """How many events to pass to a target in one call: as many as it has proved to take in about a second.

    So a target that hangs holds up a partition with few events, and a fast one gets full batches after a few calls.
    """

    limit: int
    size: int = retry.INITIAL_BATCH_EVENTS  # or the limit, if that is less

    def __post_init__(self) -> None:
        self.size = min(self.size, self.limit)

    def took(self, events: int, seconds: float) -> None:
        """Adjust the size after a batch of so many events that took the target so many seconds."""
        if seconds > retry.SLOW_CALL_SECONDS:
            self.size = max(1, self.size // retry.BATCH_GROWTH)
        elif seconds < retry.FAST_CALL_SECONDS and events >= self.size:
            self.size = min(self.limit, self.size * retry.BATCH_GROWTH)


class FailingReplays:
    """The replays of one target whose last turn in a partition failed. Times are milliseconds since 1970."""

    def __init__(self) -> None:
        self._failing: dict[tuple[int, int], tuple[int, int]] = {}  # consecutive failures, and when it is due again

    def is_due(self, replay: ReplayPartition, now: int) -> bool:
        """Return whether the replay may have a turn."""
        return self._failing.get(_place(replay), (0, 0))[1] <= now

    def postpone(self, replay: ReplayPartition, now: int) -> int:
        """Note a turn that failed; return how many milliseconds the next one is away, more after each failure."""
        failures, _ = self._failing.get(_place(replay), (0, 0))
        wait = min(retry.MAX_REPLAY_WAIT_MS, retry.FIRST_REPLAY_WAIT_MS << min(failures, retry.MAX_DOUBLINGS))
        self._failing[_place(replay)] = (failures + 1, now + wait)
        return wait

    def clear(self, replay: ReplayPartition) -> None:
        """Note a turn that succeeded."""
        self._failing.pop(_place(replay), None)


def _place(replay: ReplayPartition) -> tuple[int, int]:
    return replay.replay_id, replay.partition


log = logging.getLogger("bucketwire.partitions")

_REJECTED = Rejected(f"its record is longer than the {MAX_EVENT_BYTES} bytes that an event may have, and was not sent")


@dataclass(slots=True)
class PooledTarget:
    """One target, with its settings in the form that partitions need."""

    name: str  # its ARN, for the log
    adapter: Target
    policy: Policy
    schedule: RetrySchedule
    window: int
    sizer: BatchSizer
    rate: int = 0  # most events per second; 0: no limit
    observers: Sequence[Observer] = ()
    is_limited: bool = False  # whether a limited token may set it
    is_connected: bool = False
    certificates: SeenCertificates = field(default_factory=SeenCertificates)
    revision: int = 0  # of the target, 0 before it is followed
    is_quick: bool = False  # whether it took little time for the last batch of the log
    failing_replays: FailingReplays = field(default_factory=FailingReplays)

    def open(self) -> str:
        """Open the target anew and close it again; return why it could not be opened, or an empty text."""
        if self.is_connected:
            self.disconnect()
        try:
            with processes.calling(), tcp.refusing_link_local(when=self.is_limited):
                self.adapter.open()
        except TargetUnavailable as error:
            return error.reason or "unavailable"
        except Exception as error:
            # A defect of an adapter; its message may contain anything.
            log.exception("%s: unexpected, while it was opened", self.name)
            return f"unexpected {type(error).__name__}"
        finally:
            with suppress(Exception):  # the result of opening it stands
                self.disconnect()
        return ""

    def connect(self) -> bool:
        """Connect, if needed; return whether it is connected. A call connects by itself."""
        with processes.calling(), tcp.refusing_link_local(when=self.is_limited), suppress(TargetUnavailable):
            if not self.is_connected:
                self._connect()
        return self.is_connected

    def call(self, events: Sequence[Event], lease: LeaseCheck) -> TargetCall:
        """Send events in one call; connect before, if needed. Whatever the adapter raises is in the result.

        An event whose record is too long to be read is not sent, and is `Rejected`.
        """
        readable = [event for event in events if event.record != TOO_LONG]
        if len(readable) == len(events):
            return self._call(events, lease)
        call = self._call(readable, lease) if readable else TargetCall(())
        outcomes = iter(call.outcomes)
        call.outcomes = [_REJECTED if event.record == TOO_LONG else next(outcomes, NOT_ATTEMPTED) for event in events]
        call.events = events
        return call

    def _call(self, events: Sequence[Event], lease: LeaseCheck) -> TargetCall:
        call = TargetCall(events)
        began = time.monotonic()
        if self.is_connected and self.certificates.is_stale():
            self.disconnect()
        try:
            with processes.calling(), tcp.refusing_link_local(when=self.is_limited):
                if not self.is_connected:
                    self._connect()
                for observer in self.observers:
                    observer.call_begins(call)
                call.outcomes = self.adapter.deliver(call.events, self.window, lease)
        except LeaseExpired as error:
            # The call may have stopped anywhere: an answer to a pending request must not be taken for one to the next.
            self.disconnect()
            call.error = error
        except TargetUnavailable as error:
            call.error = error
            call.outcomes = [
                Unavailable(error.reason, error.retry_after, error.pause, unreachable=True, may_arrive=error.may_arrive)
            ] * len(events)
        except Exception as error:
            # A defect of an adapter must not stop the partition: it counts as a failed attempt at the events, which
            # makes it visible and bounds the number of attempts.
            log.exception("%s: unexpected", self.name)
            self.disconnect()  # as above
            call.error = error
            call.outcomes = [Failed(f"unexpected {type(error).__name__}")] * len(events)
        call.seconds = time.monotonic() - began
        for observer in self.observers:
            observer.call_ended(call)
        return call

    def _connect(self) -> None:
        """Open the adapter. Raises `TargetUnavailable`, also for a defect: no event is to blame for it."""
        try:
            self.adapter.open()
        except TargetUnavailable:
            raise
        except Exception as error:
            log.exception("%s: unexpected, while it was opened", self.name)
            raise TargetUnavailable(f"unexpected {type(error).__name__}") from error
        self.is_connected = True

    def follow(self, revision: int) -> None:
        """Have a target whose revision is another one with the same settings, as it was resumed, connected to again."""
        if self.revision not in (0, revision):
            self.disconnect()
            self.certificates.forget()
        self.revision = revision

    def disconnect(self) -> None:
        """Close the connections; the next call opens them again."""
        self.adapter.close()
        self.is_connected = False


_worker_log = logging.getLogger("bucketwire.worker")

_STORED_SECONDS = 0.5  # for which the stored settings of the section `api` are cached
_REMOVED_SECONDS = 60.0  # between two searches for open targets that were removed


@dataclass(frozen=True, slots=True)
class _Entry:
    values: Mapping[str, str]
    settings: TargetSettings
    sync: bool  # the service's, for targets that do not set it
    target: PooledTarget
    in_files: bool  # whether a secret may change while its setting does not; variables of a process do not change


class TargetPool:
    """One `PooledTarget` for each target. A forked child has its own: it must not share a driver's connection."""

    def __init__(self, registry: Registry, settings: Settings) -> None:
        self._registry = registry
        self._settings = settings
        self._entries: dict[int, _Entry] = {}
        self._stored: Mapping[str, str] = {}  # the settings of the section `api`
        self._read_again = 0.0  # when to read them
        self._searched = time.monotonic()  # when it looked for removed targets
        self._unread: set[int] = set()  # targets with a secret in a file that could not be read again

    def target(self, stored: StoredTarget) -> PooledTarget:
        """Return the target, with the current content of the secret files in its settings. Raises `BadSettings`.

        Targets that were removed are closed, one of the same name before this one is opened.
        """
        if time.monotonic() - self._searched > _REMOVED_SECONDS:
            self._searched = time.monotonic()
            self._close_all(self._entries.keys() - {stored.row_id} - self._registry.existing(self._entries.keys()))
        known = self._entries.get(stored.row_id)
        sync = self._sync_events()
        same = known is not None and known.values == stored.values and known.sync == sync
        if known is not None and same and not known.in_files:
            return known.target
        try:
            settings = self._registry.settings(stored).served(allow_private=self._settings.allow_private)
        except BadSettings as error:
            if known is None or not same:
                raise
            # A file that is being replaced must not stop a target that works with the file's previous content.
            if stored.row_id not in self._unread:
                _worker_log.warning(
                    "%s keeps its secrets, because they cannot be read again: %s", known.target.name, error
                )
            self._unread.add(stored.row_id)
            return known.target
        self._unread.discard(stored.row_id)
        if known is not None:
            if same and known.settings == settings:
                return known.target
            known.target.adapter.close()
        arn = stored.target.arn(self._settings.region)
        self._close_all({row_id for row_id, one in self._entries.items() if one.target.name == arn} - {stored.row_id})
        target = PooledTarget(
            name=arn,
            adapter=RedactingTarget(create(stored.target.type, settings), settings),
            policy=policy(settings),
            schedule=schedule(settings),
            window=window(settings, sync_events=sync),
            sizer=BatchSizer(limit=settings.batch_size),
            rate=settings.rate_limit,
            certificates=seen_with(settings),
            observers=tuple(observers(stored.target, arn)),
        )
        secrets = chain.from_iterable(references(type(settings), self._registry.texts(stored)).values())
        in_files = any(secret.startswith("file:") for secret in secrets)
        self._entries[stored.row_id] = _Entry(dict(stored.values), settings, sync, target, in_files)
        return target

    def is_quick(self, stored: StoredTarget) -> bool:
        """Return whether this process has the target open, and its last batch took little time."""
        known = self._entries.get(stored.row_id)
        return known is not None and known.target.is_quick

    def _sync_events(self) -> bool:
        """Return whether targets are in sync mode that do not set it; a stored value is known within half a second."""
        now = time.monotonic()
        if not self._settings.sync_events and now >= self._read_again:
            self._stored = self._registry.api_settings()
            self._read_again = now + _STORED_SECONDS
        return sync_events(self._settings.sync_events, self._stored).value == "on"

    def close(self) -> None:
        """Close every target."""
        self._close_all(set(self._entries))

    def _close_all(self, row_ids: Set[int]) -> None:
        for row_id in row_ids:
            known = self._entries.pop(row_id)
            self._unread.discard(row_id)
            with contextlib.suppress(Exception):  # nobody uses it; either way the remote detects a closed connection
                known.target.adapter.close()


def observers(target: TargetId, arn: str) -> Iterator[Observer]:
    """Yield what sees this process's calls to a target: its metrics and spans, if there are any."""
    if (of_target := metrics.of(arn)) is not None:
        yield of_target
    if (tracing := telemetry.tracing()) is not None:
        yield CallSpans(tracing, target, arn)


def policy(settings: TargetSettings) -> Policy:
    """Return how a target with these settings uses events."""
    if getattr(settings, "format", "access") != "namespace":
        return Policy.LOG
    return Policy(getattr(settings, "policy"))  # noqa: B009 - only the types with a namespace format have it


def schedule(settings: TargetSettings) -> RetrySchedule:
    """Return the retry schedule that these settings define."""
    return RetrySchedule(
        base=int(settings.retry_base * 1000),
        cap=int(settings.retry_max_delay * 1000),
        max_attempts=settings.max_attempts,
        max_age=int(settings.max_age * 1000),
    )


def window(settings: TargetSettings, *, sync_events: bool) -> int:
    """Return how many requests may be unconfirmed: 1 in sync mode. A target's own `sync` overrides the service's."""
    sync = sync_events if settings.sync == "" else settings.sync == "on"
    return 1 if sync else settings.max_in_flight
