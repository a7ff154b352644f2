"""Wake the drain and the workers as soon as work is due, so that nothing need look for work many times a second.

A wake-up is a message of Celery's task `drain` or `deliver`, in the protocol that Celery documents; this module knows
kombu, the messaging library below Celery, and not Celery itself. A wake-up promises nothing: if it is lost, beat's next
drain finds the work.
"""

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from kombu import Connection, Producer
from kombu.exceptions import OperationalError
from kombu.transport.virtual import Channel as VirtualChannel

from app.config.arn import TargetId
from app.config.broker import KEY_PREFIX

log = logging.getLogger("bucketwire.wakeups")

SERVICE_QUEUE = "bucketwire"
# Seconds; without timeouts, a publisher waits forever for a broker that vanished without closing connections.
BROKER_TIMEOUT = 3
_RABBITMQ = {
    "confirm_publish": True,
    "confirm_timeout": BROKER_TIMEOUT,
    "read_timeout": BROKER_TIMEOUT,
    "write_timeout": BROKER_TIMEOUT,
}
_REDIS = {
    "global_keyprefix": KEY_PREFIX,
    "visibility_timeout": 600,
    "socket_timeout": BROKER_TIMEOUT,
    "socket_connect_timeout": BROKER_TIMEOUT,
    "socket_keepalive": True,
    "health_check_interval": BROKER_TIMEOUT - 1,  # also bounds how late Redis may reply that no message arrived
    "priority_steps": [0],  # kombu's four would make four lists of each queue, and every look ask for all of them
}
# The more requests a wake-up stands for, and the more messages wait, the later is the next: with few events each is
# delivered at once, and with many the drain, whose cost does not depend on their number, leaves the processor to intake
# and delivery.
_WORKERS_APART, _DRAINS_APART, _MOST_APART = (
    0.015,
    0.02,
    0.05,
)  # seconds; with 5 ms, a hundred events a second kept two cores busy
_RETRY_PAUSE = 1.0  # seconds between two attempts to reach an unavailable broker
_MAX_DRAINS_WAITING = 3  # messages in the service queue; a drain among them has not begun, so it finds all work
_MAX_WORKERS_WAITING = 2  # messages in a target's queue; a wake-up among them finds what is due by then
_MOST_TARGETS, _MOST_EVENTS = 4, 16  # for which workers are woken directly: more are shared out by the drain
_NOT_READY = 1.0  # seconds until the drain looks after targets that could not be delivered to
_HEADERS = {"lang": "py", "kwargsrepr": "{}", "retries": 0}
_OPTIONS: Mapping[str, None] = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

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


class BrokerUnavailable(Exception):
    """The broker does not answer; the message has its address without the password."""


def check_broker(broker_url: str) -> str:
    """Connect to the broker, for five seconds at most, and return its address without the password.

    Raises `BrokerUnavailable`.
    """
    with Connection(broker_url, connect_timeout=5) as connection:
        shown: str = connection.as_uri()
        try:
            connection.ensure_connection(max_retries=1, timeout=5)
        except OperationalError as error:
            raise BrokerUnavailable(f"{shown} does not answer: {error}") from None
    return shown


def is_rabbitmq(broker_url: str) -> bool:
    """Return whether the broker speaks AMQP."""
    return broker_url.startswith("amqp")


def transport_options(broker_url: str) -> dict[str, Any]:
    """Return kombu's options for connections to this broker, so that each notices a broker that does not answer."""
    return dict(_RABBITMQ if is_rabbitmq(broker_url) else _REDIS)


def waiting(channel: Any, name: str) -> int:
    """Return how many messages wait in a queue. Raises the channel's errors, on RabbitMQ also for a missing queue."""
    if isinstance(channel, VirtualChannel):
        return int(channel._size(name))  # the public way takes an empty list of Redis for a missing queue
    return int(channel.queue_declare(name, passive=True).message_count)


def queue_name(target: TargetId) -> str:
    """Return the name of the queue that carries a target's wake-ups."""
    return f"target.{target.type}.{target.name}"


class WakeUps:
    """The wake-ups that this process sends. Safe to use from any thread, and in a process forked since.

    A thread of its own talks to the broker and starts with the first request in each process, so a request never waits
    for a connection, for TLS, for DNS or for an answer. `ready` returns those of the due targets that can be delivered
    to, and is called by that thread only; without it, only the drain is woken.
    """

    def __init__(self, broker_url: str, ready: Callable[[Due], Mapping[TargetId, Ready]] = lambda _: {}) -> None:
        self._broker_url = broker_url
        self._ready = ready
        self._starting = threading.Lock()
        self._sender: _Sender | None = None
        load_transport(broker_url)

    def request(self, delay: float = 0.0) -> None:
        """Have the drain run soon, or in `delay` seconds. Returns at once and raises nothing.

        Requests that come shortly after each other, or while the broker is unavailable, share one wake-up. A wake-up
        sent for an earlier request also cancels later ones: the drain that it causes finds out what else will be due.
        """
        self._started().request_drain(delay)

    def request_delivery(self, due: Due, events: int = 1) -> None:
        """Have so many events delivered soon that were recorded in these partitions. Returns at once, raises nothing.

        A worker of a target that is ready is woken directly, which saves the time and the cost of a drain; for others,
        or while much is going on, the drain is woken. A worker that is woken in vain does no harm.
        """
        if due:
            self._started().request_delivery(due, events)

    def _started(self) -> "_Sender":
        sender = self._sender
        if sender is None or sender.pid != os.getpid():
            with self._starting:
                sender = self._sender
                if sender is None or sender.pid != os.getpid():
                    sender = self._sender = _Sender(self._broker_url, self._ready)
        return sender

    def flush(self, seconds: float) -> None:
        """Wait until this process has sent a wake-up, or could not; for so many seconds at most. Raises nothing."""
        self._started().attempted.wait(seconds)

    def close(self) -> None:
        """End this process's thread. A wake-up that was requested and not sent yet is lost."""
        sender, self._sender = self._sender, None
        if sender is not None and sender.pid == os.getpid():
            sender.close()


@dataclass(slots=True)
class _Requested:
    """What was requested since the last wake-up; times are those of `time.monotonic()`."""

    number: int = 0
    events: int = 0
    drain_at: float = math.inf
    deliver_at: float = math.inf
    due: dict[TargetId, set[int]] = field(default_factory=dict)

    @property
    def at(self) -> float:
        return min(self.drain_at, self.deliver_at)


class _Sender:
    """The thread that sends this process's wake-ups, and its connection."""

    def __init__(self, broker_url: str, ready: Callable[[Due], Mapping[TargetId, Ready]]) -> None:
        self.pid = os.getpid()
        self._broker_url = broker_url
        self._ready = ready
        self._connection: Any = None
        self._channel: Any = None
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

    def request_delivery(self, due: Due, events: int) -> None:
        with self._changed:
            requested, before = self._requested, self._requested.at
            requested.number += 1
            requested.events += events
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
        is_unavailable = False
        while (requested := self._next()) is not None:
            try:
                apart = self._send_or_reconnect(requested)
            except Exception as error:  # noqa: BLE001 - whatever it is: beat's drain replaces what is lost
                if not (is_unavailable or self._closed):
                    log.warning("the broker is unavailable, so events are delivered later: %s", error)
                is_unavailable = True
                self.attempted.set()
                self._disconnect()
                time.sleep(_RETRY_PAUSE)
            else:
                self.attempted.set()
                if is_unavailable:
                    log.info("the broker is available again")
                is_unavailable = False
                time.sleep(min(_MOST_APART, apart * requested.number))
        self._disconnect()

    def _next(self) -> _Requested | None:
        """Wait until a wake-up is due, and return what was requested; None if there will be none any more."""
        with self._changed:
            while not self._closed and (wait := self._requested.at - time.monotonic()) > 0:
                self._changed.wait(None if wait == math.inf else wait)
            requested, self._requested = self._requested, _Requested()
            if requested.drain_at > time.monotonic():
                self._requested.drain_at, requested.drain_at = requested.drain_at, math.inf
            return None if self._closed else requested

    def _send_or_reconnect(self, requested: _Requested) -> float:
        idle = self._connection is not None
        try:
            return self._send(requested)
        except Exception:
            self._disconnect()
            if not idle:
                raise
            # A connection may end while nothing is sent; the broker may be available nevertheless.
            return self._send(requested)

    def _send(self, requested: _Requested) -> float:
        """Wake workers or the drain, unless enough messages wait; return the pause that each request is worth (s)."""
        if self._connection is None:
            options = transport_options(self._broker_url)
            self._connection = Connection(self._broker_url, connect_timeout=BROKER_TIMEOUT, transport_options=options)
        if requested.drain_at == math.inf and (pause := self._wake_workers(requested)):
            return pause
        ahead = self._waiting(SERVICE_QUEUE)
        if ahead is None:
            return _MOST_APART
        if ahead < _MAX_DRAINS_WAITING:
            self._publish(SERVICE_QUEUE, "drain", ())
        return float(_DRAINS_APART * 4**ahead)

    def _waiting(self, queue: str) -> int | None:
        """Return how many messages wait in a queue; None if no worker has ever served it, or the broker refuses it."""
        if self._channel is None:
            self._channel = self._connection.channel()
        try:
            return waiting(self._channel, queue)
        except self._connection.channel_errors:
            self._channel = None  # RabbitMQ has closed it
            return None

    def _wake_workers(self, requested: _Requested) -> float:
        """Wake the workers of each target that has none at work, and return the pause; 0 if the drain is needed, too.

        A worker that has the partitions reads them once more after their release, so it needs no wake-up.
        """
        ready = self._ready(requested.due)
        if not ready.keys() >= requested.due.keys():
            # Some are down, paused, or so new that they are not known: the drain looks after them, not for each event.
            self.request_drain(_NOT_READY)
        if waits := [each.wait for each in ready.values() if each.wait]:
            self.request_drain(min(waits))
        free = {target: found for target, found in ready.items() if found.is_free}
        if not free:
            # They keep their leases for a while after the last event, so they will most likely have the next ones, too.
            return _MOST_APART
        if requested.events > _MOST_EVENTS or len(free) > _MOST_TARGETS:
            return 0
        complete = True
        for target, found in free.items():
            ahead = self._waiting(queue_name(target))
            if ahead is None:
                complete = False  # no worker has ever served the queue: the drain creates it
            elif ahead < _MAX_WORKERS_WAITING:
                self._publish(queue_name(target), "deliver", (found.arn,), found.time_limit)
        return _WORKERS_APART if complete else 0

    def _publish(self, queue: str, task: str, arguments: tuple[Any, ...], time_limit: int | None = None) -> None:
        number = str(uuid4())
        headers = {"task": task, "id": number, "root_id": number, "argsrepr": repr(arguments)}
        Producer(self._channel, auto_declare=False).publish(
            (arguments, {}, _OPTIONS), routing_key=queue, serializer="json", correlation_id=number,
            headers=_HEADERS | headers | {"timelimit": [time_limit, None]},
        )  # fmt: skip

    def _disconnect(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        with suppress(Exception):
            connection.release()


def load_transport(broker_url: str) -> None:
    """Import what a connection needs, so that the thread that connects first does not hold up the others with it."""
    Connection(broker_url).get_transport_cls()
