"""Wake the drain and the workers as soon as work is due, so that nothing need look for work many times a second.

A wake-up is a message of Celery's task `drain` or `deliver`. It promises nothing: if it is lost, the next drain
finds the work. That is beat's, or one that a drain has asked for, a second after it announced work.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from app.broker import POLICY as BROKER_POLICY
from app.broker import SERVICE_QUEUE, Broker, BrokerState, load_transport, queue_name
from app.config.arn import TargetId
from app.per_process import PerProcess

log = logging.getLogger("bucketwire.wakeups")


class WakeUpPolicy(NamedTuple):
    """How wake-ups of a process are spread.

    The more requests a wake-up stands for, and the more messages wait, the later is the next: with few requests each is
    delivered at once, and with many the wake-ups leave the processor to intake and delivery.
    """

    worker_pause_seconds: float = 0.015  # for each request; with 5 ms, a hundred events a second kept two cores busy
    drain_pause_seconds: float = 0.02  # for each request, four times as long for each message that waits
    max_pause_seconds: float = 0.05
    max_direct_targets: int = 4  # whose workers are woken directly: more are shared out by the drain
    not_ready_seconds: float = 1.0  # until the drain looks after targets that could not be delivered to


POLICY = WakeUpPolicy()

# Where events are due: the partitions of each target.
Due = Mapping[TargetId, Collection[int]]


@dataclass(frozen=True, slots=True)
class Ready:
    """A target that can be delivered to now: its ARN, and the seconds after which a delivery certainly hangs.

    `is_free` says whether there is a partition among the due ones that no worker has. If the target's rate limit is
    used up, there is none, and `wait` is the time (s) until it may get events again.
    """

    arn: str
    time_limit: int
    is_free: bool
    wait: float = 0.0


class WakeUps:
    """The wake-ups that this process sends. Safe to use from any thread, and in a process forked since.

    A thread of its own talks to the broker and starts with the first request in each process, so a request never waits
    for a connection, for TLS, for DNS or for an answer. `ready` returns those of the due targets that can be delivered
    to, and is called by that thread only; without it, only the drain is woken. `state` is that of a process which uses
    the broker for more than this.
    """

    def __init__(
        self,
        broker_url: str,
        ready: Callable[[Due], Mapping[TargetId, Ready]] = lambda _: {},
        state: BrokerState | None = None,
    ) -> None:
        self._sender = PerProcess(
            lambda: _Sender(broker_url, ready, state or BrokerState(log, "events are delivered later"))
        )
        load_transport(broker_url)

    def request(self, delay: float = 0.0) -> None:
        """Have the drain run soon, or in `delay` seconds. Returns at once and raises nothing.

        Requests that come shortly after each other, or while the broker is unavailable, share one wake-up. A wake-up
        sent for an earlier request also cancels later ones: the drain that it causes finds out what else will be due.
        """
        self._sender.get().request_drain(delay)

    def request_delivery(self, due: Due) -> None:
        """Have the events delivered soon that were recorded in these partitions. Returns at once, raises nothing.

        A worker of a target that is ready is woken directly, however many events there are, which saves the time and
        the cost of a drain: if it leaves work for others, it wakes the drain itself. For targets that are not ready,
        and for many at once, the drain is woken. A worker that is woken in vain does no harm.
        """
        if due:
            self._sender.get().request_delivery(due)

    def flush(self, seconds: float) -> None:
        """Wait until this process has sent a wake-up, or could not; for so many seconds at most. Raises nothing."""
        self._sender.get().attempted.wait(seconds)

    def close(self) -> None:
        """End this process's thread. A wake-up that was requested and not sent yet is lost."""
        if (sender := self._sender.forget()) is not None:
            sender.close()


@dataclass(slots=True)
class _Requested:
    """What was requested since the last wake-up; times are those of `time.monotonic()`."""

    number: int = 0
    drain_at: float = math.inf
    deliver_at: float = math.inf
    due: dict[TargetId, set[int]] = field(default_factory=dict)

    @property
    def at(self) -> float:
        return min(self.drain_at, self.deliver_at)


class _Sender:
    """The thread that sends this process's wake-ups, and its connection."""

    def __init__(self, broker_url: str, ready: Callable[[Due], Mapping[TargetId, Ready]], state: BrokerState) -> None:
        self._state = state
        self._broker = Broker(broker_url, state)
        self._ready = ready
        self._changed = threading.Condition()
        self._requested = _Requested()
        self._closed = False
        self.attempted = threading.Event()
        self.thread = threading.Thread(target=self._run, name="wakeups", daemon=True)
        self.thread.start()

    def request_drain(self, delay: float) -> None:
        with self._changed:
            requested, before = self._requested, self._requested.at
            requested.number += 1
            requested.drain_at = min(requested.drain_at, time.monotonic() + delay)
            if requested.at < before:
                self._changed.notify()

    def request_delivery(self, due: Due) -> None:
        with self._changed:
            requested, before = self._requested, self._requested.at
            requested.number += 1
            requested.deliver_at = min(requested.deliver_at, time.monotonic())
            for target, partitions in due.items():
                requested.due.setdefault(target, set()).update(partitions)
            if requested.at < before:
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while (requested := self._next()) is not None:
            try:
                pause = self._send(requested)
            except Exception as error:  # noqa: BLE001 - whatever it is: beat's drain replaces what is lost
                if not self._closed:
                    self._state.fails(error)
                self.attempted.set()
                self._broker.close()
                time.sleep(BROKER_POLICY.retry_seconds)
            else:
                self.attempted.set()
                time.sleep(min(POLICY.max_pause_seconds, pause * requested.number))
            if self._state.is_failing:  # also if there is nothing to deliver, so that it is known when it works again
                self.request_drain(BROKER_POLICY.retry_seconds)
        self._broker.close()

    def _next(self) -> _Requested | None:
        """Wait until a wake-up is due, and return what was requested; None if there will be none any more."""
        with self._changed:
            while not self._closed and (wait := self._requested.at - time.monotonic()) > 0:
                self._changed.wait(None if wait == math.inf else wait)
            requested, self._requested = self._requested, _Requested()
            if requested.drain_at > time.monotonic():
                self._requested.drain_at, requested.drain_at = requested.drain_at, math.inf
            return None if self._closed else requested

    def _send(self, requested: _Requested) -> float:
        """Wake workers or the drain, unless enough messages wait; return the pause that each request is worth (s)."""
        if requested.drain_at == math.inf and (pause := self._wake_workers(requested)):
            return pause
        ahead = self._broker.length(SERVICE_QUEUE)
        if ahead is None:  # no worker has ever served it
            return POLICY.max_pause_seconds
        if ahead < BROKER_POLICY.max_drains:
            self._broker.publish(SERVICE_QUEUE, "drain")
        return float(POLICY.drain_pause_seconds * 4**ahead)

    def _wake_workers(self, requested: _Requested) -> float:
        """Wake the workers of each target that has none at work, and return the pause; 0 if the drain is needed, too.

        A worker that has the partitions reads them once more after their release, so it needs no wake-up.
        """
        ready = self._ready(requested.due)
        if not ready.keys() >= requested.due.keys():
            # Some are down, paused, or so new that they are not known: the drain looks after them, not for each event.
            self.request_drain(POLICY.not_ready_seconds)
        if waits := [target.wait for target in ready.values() if target.wait]:
            self.request_drain(min(waits))
        free = {target: state for target, state in ready.items() if state.is_free}
        if not free:
            # They keep their leases for a while after the last event, so they will most likely have the next ones, too.
            return POLICY.max_pause_seconds
        if len(free) > POLICY.max_direct_targets:
            return 0
        complete, woken = True, False
        for target, state in free.items():
            queue = queue_name(target)
            ahead = self._broker.length(queue)
            if ahead is None:
                complete = False  # no worker has ever served the queue: the drain creates it
            elif ahead < BROKER_POLICY.max_direct_wake_ups:
                self._broker.publish(queue, "deliver", (state.arn,), time_limit=state.time_limit)
                woken = True
        if not complete:
            return 0
        # Where enough wake-ups wait, all workers are busy: they need no more soon.
        return POLICY.worker_pause_seconds if woken else POLICY.max_pause_seconds
