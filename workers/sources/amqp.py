"""AMQP 0-9-1: one queue, whose server remembers what was taken.

A message is acknowledged after the commit of its events. The source is the only consumer of the queue, so the messages
that a consumer that has vanished did not acknowledge are back in their places before the next one gets any: the order
stays. A server gives them back when the connection ends, or within three heartbeats of ten seconds. A classic queue
enforces that (exclusive), and a quorum queue with `x-single-active-consumer`; one without it has no such means, so it
is only asked beforehand.

The server is asked for two batches of messages at most; AMQP can limit their bytes, but RabbitMQ cannot. So no more is
read while too many bytes wait here. A server that cannot send for long closes the connection, and nothing is lost.
"""

import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from amqp import serialization, spec
from amqp.exceptions import AccessRefused, AMQPError, ConsumerCancelled, NotFound

from app.config.sources.amqp import AmqpSourceSettings
from app.config.targets.amqp import AmqpAddress
from app.events.messages import Message
from app.events.minio_json import YEAR_10000
from workers.sources.any_text import AnyText
from workers.sources.base import Opened, SourceUnavailable
from workers.targets.amqp.connection import describe_error, limited, make_connection
from workers.targets.base import TargetUnavailable
from workers.targets.node_rotation import NodeRotation

_BATCHES = 2  # that are on their way: one is recorded while the next one is pulled
_MAX_PREFETCHED = 65_535
_PULLED_BYTES = 1 << 24  # of the messages of one pull, unless a single message has more
_WAITING_BYTES = 1 << 26  # of messages that are read from the connection and not pulled yet; then no more is read
_GATHER_SECONDS = 0.001  # that a further message is waited for when there is one already
_ERRORS = (AMQPError, OSError)


class _InUse(AMQPError):
    """The queue has a consumer."""


class AmqpSource:
    """One queue, one connection with one channel."""

    def __init__(self, settings: AmqpSourceSettings) -> None:
        self._settings = settings
        self._nodes = NodeRotation(settings.places, settings.timeout)
        self._where = f"AMQP queue {settings.queue} at {','.join(str(place.address) for place in settings.places)}"
        self._connection: Any = None
        self._channel: Any = None
        self._arrived: deque[Any] = deque()  # and are not pulled yet
        self._arrived_bytes = 0
        self._unacknowledged = 0
        self._waiting: int | None = None  # messages in the queue, as the server said last
        self._asked = False  # how many those are

    def open(self, positions: Mapping[str, str]) -> Opened:  # noqa: ARG002 - the queue knows
        """Connect to the first node that answers, and become the queue's consumer."""
        self.close()
        try:
            self._nodes.connect(self._consume, _ERRORS)
        except (*_ERRORS, TargetUnavailable) as error:
            raise self._unavailable(error) from error
        return Opened()

    def pull(self, most: int, seconds: float) -> Sequence[Message]:
        """Return what has arrived, and wait only for the first message."""
        until = time.monotonic() + seconds
        try:
            while not self._arrived and (left := until - time.monotonic()) > 0:
                self._read(left)
            self._gather(most, until)
        except _ERRORS as error:
            raise self._unavailable(error) from error
        messages: list[Message] = []
        size = 0
        while self._arrived and len(messages) < most:
            size += len(self._arrived[0].body)
            if messages and size > _PULLED_BYTES:
                break
            arrived = self._arrived.popleft()
            self._arrived_bytes -= len(arrived.body)
            messages.append(_message(arrived))
        return messages

    def commit(self, messages: Sequence[Message]) -> None:
        """Acknowledge the messages, which are the oldest that are not, and say that the consumer is there."""
        if self._connection is None:
            return
        try:
            if messages:
                with limited(self._connection, self._settings.timeout):
                    self._channel.basic_ack(messages[-1].tag, multiple=True)
                self._unacknowledged -= len(messages)
            else:
                self._gather(self._prefetched, time.monotonic() + self._settings.timeout)
        except _ERRORS as error:
            raise self._unavailable(error) from error

    def lag(self) -> int | None:
        """Return how many messages the queue has, with those that are not acknowledged yet."""
        until = time.monotonic() + self._settings.timeout
        try:
            if not self._asked:
                self._ask()
            while self._asked and self._arrived_bytes < _WAITING_BYTES:
                if (left := until - time.monotonic()) <= 0:
                    raise TimeoutError
                self._read(left)
        except _ERRORS as error:
            raise self._unavailable(error) from error
        return self._waiting

    def close(self) -> None:
        """Close the connection; messages that are not acknowledged are back in the queue then."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with suppress(*_ERRORS), limited(connection, self._settings.timeout):
                connection.close()
            with suppress(*_ERRORS):
                connection.collect()
        self._arrived.clear()
        self._arrived_bytes = self._unacknowledged = 0
        self._waiting, self._asked = None, False

    @property
    def _prefetched(self) -> int:
        return min(_BATCHES * self._settings.batch_size, _MAX_PREFETCHED)

    def _consume(self, place: AmqpAddress) -> None:
        self._connection = make_connection(self._settings, place)
        try:
            with limited(self._connection, self._settings.timeout):
                self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self._connection.connect()
        self._connection.sock.settimeout(self._settings.timeout)
        self._channel = self._connection.channel()
        self._channel.auto_decode = False
        self._channel.dispatch_method = partial(_dispatch, self._channel.dispatch_method)
        self._channel.basic_qos(0, self._prefetched, False)
        queue = self._settings.queue
        if self._channel.queue_declare(queue, passive=True).consumer_count:
            raise _InUse("another consumer has the queue, such as a worker that has lost its lease")
        self._channel._callbacks[spec.Queue.DeclareOk] = self._on_counted
        self._channel.basic_consume(queue, exclusive=True, callback=self._on_message)

    def _on_message(self, message: Any) -> None:
        self._arrived.append(message)
        self._arrived_bytes += len(message.body)
        self._unacknowledged += 1

    def _on_counted(self, _: str, messages: int, __: int) -> None:
        self._waiting = messages + self._unacknowledged
        self._asked = False

    def _ask(self) -> None:
        """Ask how many messages wait. Not by `queue_declare`: until its answer it reads whatever was sent before."""
        with limited(self._connection, self._settings.timeout):
            passive: tuple[Any, ...] = (0, self._settings.queue, True, False, False, False, False, {})
            self._channel.send_method(spec.Queue.Declare, "BsbbbbbF", passive)
        self._asked = True

    def _gather(self, most: int, until: float) -> None:
        """Read what has arrived already; and send a heartbeat if it is time, or find out that the server sends none."""
        while (
            self._read(_GATHER_SECONDS)
            and len(self._arrived) < most
            and self._arrived_bytes < _WAITING_BYTES
            and time.monotonic() < until
        ):
            continue
        with limited(self._connection, self._settings.timeout):
            self._connection.heartbeat_tick()

    def _read(self, seconds: float) -> bool:
        """Read one frame; return whether there was one."""
        try:
            with limited(self._connection, seconds + self._settings.timeout):
                self._connection.blocking_read(seconds)
        except TimeoutError:
            return False
        return True

    def _unavailable(self, error: Exception) -> SourceUnavailable:
        if isinstance(error, TargetUnavailable):
            return SourceUnavailable(error.reason)
        text = describe_error(error, self._settings.timeout)
        if isinstance(error, AccessRefused) and "exclusive" in text:
            text += "; a classic queue with x-single-active-consumer cannot be pulled from, one without it can"
        elif isinstance(error, NotFound):
            text += "; create the queue, and bind it to what the frontend sends to"
        elif isinstance(error, ConsumerCancelled):
            text = "the server has ended the consumer: the queue was deleted, or has moved to another node"
        return SourceUnavailable(f"{self._where}: {text}")


def _message(arrived: Any) -> Message:
    properties = arrived.properties
    headers = {
        _plain(name).lower(): _plain(value)
        for name, value in properties.get("application_headers", {}).items()
        if isinstance(name, str) and isinstance(value, str)
    }
    if "content_type" in properties:
        headers["content-type"] = _plain(properties["content_type"])
    sent_at = properties.get("timestamp", 0) * 1000
    return Message(
        body=arrived.body or b"",  # an empty one is a text
        tag=arrived.delivery_tag,
        headers=headers,
        sent_at=sent_at if sent_at < YEAR_10000 else 0,
    )


def _plain(text: str) -> str:
    """Return a text that can be stored: the library reads surrogates, which no UTF-8 has, and no database takes."""
    return text.encode(errors="replace").decode()


def _dispatch(strictly: Callable[..., None], method: object, payload: bytes, content: object) -> None:
    """Process a frame. The library refuses a message whose routing key is no UTF-8, and with it the queue."""
    try:
        strictly(method, payload, content)
    except UnicodeDecodeError:
        strictly(method, AnyText(payload), content)


def _read_properties(buffer: bytes, offset: int) -> tuple[dict[str, Any], int]:
    """Read a message's properties, or none. The library refuses some that a server passes on, and with them the queue.

    Such as a text that is not UTF-8, a time that the calendar does not have, or tables in each other a thousand deep.
    """
    try:
        properties, offset = _read_strictly(buffer, offset)
    except (AMQPError, ArithmeticError, ValueError, LookupError, OSError, RecursionError, struct.error):
        return {}, offset
    return properties, offset


_CLASSES: dict[int, Any] = serialization.PROPERTY_CLASSES
_read_strictly = _CLASSES[spec.Basic.CLASS_ID]
_CLASSES[spec.Basic.CLASS_ID] = _read_properties
