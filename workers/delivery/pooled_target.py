"""A target as a worker's process has it: its size of a batch, its failing replays, and the one way to call it."""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from app.events.limits import MAX_EVENT_BYTES
from app.events.model import Event
from app.outbox.delivery.leases import ReplayPartition
from app.outbox.log.reading import TOO_LONG
from workers.delivery import policy
from workers.delivery.batch_record import Observer, TargetCall
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import NOT_ATTEMPTED, Failed, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.idle_processes import processes
from workers.targets import link_local
from workers.targets.base import LeaseCheck, LeaseExpired, Target, TargetUnavailable
from workers.targets.certificates import SeenCertificates


@dataclass(slots=True)
class BatchSizer:
    """How many events to pass to a target in one call: as many as it has proved to take in about a second.

    So a target that hangs holds up a partition with few events, and a fast one gets full batches after a few calls.
    """

    limit: int
    size: int = policy.INITIAL_BATCH_EVENTS  # or the limit, if that is less

    def __post_init__(self) -> None:
        self.size = min(self.size, self.limit)

    def took(self, events: int, seconds: float) -> None:
        """Adjust the size after a batch of so many events that took the target so many seconds."""
        if seconds > policy.SLOW_CALL_SECONDS:
            self.size = max(1, self.size // policy.BATCH_GROWTH)
        elif seconds < policy.FAST_CALL_SECONDS and events >= self.size:
            self.size = min(self.limit, self.size * policy.BATCH_GROWTH)


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
        wait = min(policy.MAX_REPLAY_WAIT_MS, policy.FIRST_REPLAY_WAIT_MS << min(failures, policy.MAX_DOUBLINGS))
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
            with processes.calling(), link_local.refusing(when=self.is_limited):
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
            with processes.calling(), link_local.refusing(when=self.is_limited):
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
