"""Wake the drain as soon as work is due, so that it need not look for work many times a second.

A wake-up is a message of Celery's task `drain`, in the protocol that Celery documents; this module knows kombu, the
messaging library below Celery, and not Celery itself. A wake-up promises nothing: if it is lost, beat's next drain
finds the work.
"""

import logging
import math
import os
import threading
import time
from contextlib import suppress
from typing import Any
from uuid import uuid4

from kombu import Connection, Producer
from kombu.transport.virtual import Channel as VirtualChannel

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
    "visibility_timeout": 600,
    "socket_timeout": BROKER_TIMEOUT,
    "socket_connect_timeout": BROKER_TIMEOUT,
    "socket_keepalive": True,
    "health_check_interval": BROKER_TIMEOUT - 1,  # also bounds how late Redis may reply that no message arrived
}
# The more requests a wake-up stands for, and the more messages wait, the later is the next: with few events each is
# delivered at once, and with many the drain, whose cost does not depend on their number, leaves the processor to intake
# and delivery.
_LEAST_APART, _MOST_APART = 0.02, 0.05  # seconds; with 0.005, a hundred events a second kept two cores busy
_RETRY_PAUSE = 1.0  # seconds between two attempts to reach an unavailable broker
_MOST_WAITING = 3  # messages in the service queue; the drain that is among them has not begun, so it finds all work
_TASK = {"lang": "py", "task": "drain", "argsrepr": "()", "kwargsrepr": "{}", "retries": 0, "timelimit": [None, None]}
_BODY: tuple[Any, ...] = ((), {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None})


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


class WakeUps:
    """The wake-ups that this process sends. Safe to use from any thread, and in a process forked since.

    A thread of its own talks to the broker and starts with the first request in each process, so a request never waits
    for a connection, for TLS, for DNS or for an answer.
    """

    def __init__(self, broker_url: str) -> None:
        self._broker_url = broker_url
        self._starting = threading.Lock()
        self._sender: _Sender | None = None
        load_transport(broker_url)

    def request(self, delay: float = 0.0) -> None:
        """Have the drain run soon, or in `delay` seconds. Returns at once and raises nothing.

        Requests that come shortly after each other, or while the broker is unavailable, share one wake-up. A wake-up
        sent for an earlier request also cancels later ones: the drain that it causes finds out what else will be due.
        """
        sender = self._sender
        if sender is None or sender.pid != os.getpid():
            with self._starting:
                sender = self._sender
                if sender is None or sender.pid != os.getpid():
                    sender = self._sender = _Sender(self._broker_url)
        sender.request(delay)

    def close(self) -> None:
        """End this process's thread. A wake-up that was requested and not sent yet is lost."""
        sender, self._sender = self._sender, None
        if sender is not None and sender.pid == os.getpid():
            sender.close()


class _Sender:
    """The thread that sends this process's wake-ups, and its connection."""

    def __init__(self, broker_url: str) -> None:
        self.pid = os.getpid()
        self._broker_url = broker_url
        self._connection: Any = None
        self._channel: Any = None
        self._changed = threading.Condition()
        self._due, self._requests = math.inf, 0
        self._closed = False
        self.thread = threading.Thread(target=self._run, name="wakeups", daemon=True)
        self.thread.start()

    def request(self, delay: float) -> None:
        due = time.monotonic() + delay
        with self._changed:
            self._requests += 1
            if due < self._due:
                self._due = due
                self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        is_unavailable = False
        while requests := self._next():
            try:
                ahead = self._send_or_reconnect()
            except Exception as error:  # noqa: BLE001 - whatever it is: beat's drain replaces what is lost
                if not (is_unavailable or self._closed):
                    log.warning("the broker is unavailable, so events are delivered later: %s", error)
                is_unavailable = True
                self._disconnect()
                time.sleep(_RETRY_PAUSE)
            else:
                if is_unavailable:
                    log.info("the broker is available again")
                is_unavailable = False
                time.sleep(min(_MOST_APART, _LEAST_APART * requests * 4**ahead))
        self._disconnect()

    def _next(self) -> int:
        """Wait until a wake-up is due; return for how many requests it is sent, 0 if there will be none any more."""
        with self._changed:
            while not self._closed and (wait := self._due - time.monotonic()) > 0:
                self._changed.wait(None if wait == math.inf else wait)
            requests = 0 if self._closed else self._requests
            self._due, self._requests = math.inf, 0
        return requests

    def _send_or_reconnect(self) -> int:
        idle = self._connection is not None
        try:
            return self._send()
        except Exception:
            self._disconnect()
            if not idle:
                raise
            # A connection may end while nothing is sent; the broker may be available nevertheless.
            return self._send()

    def _send(self) -> int:
        """Send a wake-up, unless enough messages wait; return how many do."""
        if self._connection is None:
            options = transport_options(self._broker_url)
            self._connection = Connection(self._broker_url, connect_timeout=BROKER_TIMEOUT, transport_options=options)
        if self._channel is None:
            self._channel = self._connection.channel()
        try:
            ahead = waiting(self._channel, SERVICE_QUEUE)
        except self._connection.channel_errors:  # no such queue: no worker has ever served it
            self._channel = None
            return _MOST_WAITING
        if ahead < _MOST_WAITING:
            number = str(uuid4())
            Producer(self._channel, auto_declare=False).publish(
                _BODY, routing_key=SERVICE_QUEUE, serializer="json", headers=_TASK | {"id": number, "root_id": number},
                correlation_id=number,
            )  # fmt: skip
        return ahead

    def _disconnect(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        with suppress(Exception):
            connection.release()


def load_transport(broker_url: str) -> None:
    """Import what a connection needs, so that the thread that connects first does not hold up the others with it."""
    Connection(broker_url).get_transport_cls()
