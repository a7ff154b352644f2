"""AMQP 0-9-1: one queue, whose server remembers what was taken.

A message is acknowledged after the commit of its events. The source is the only consumer of the queue, so the messages
that a consumer that has vanished did not acknowledge are back in their places before the next one gets any: the order
stays. A server gives them back when the connection ends, or within three heartbeats of ten seconds. A classic queue
enforces that (exclusive), and a quorum queue with `x-single-active-consumer`; one without it has no such means, so it
is only asked beforehand.

A stream remembers nothing of its consumers: an acknowledgement only lets it send more. So its position, the offset and
a digest of the last message that was recorded, is kept in the outbox. It is read from its first message, or on from the
position, and that message is asked for once more: if it is not there, the stream has lost it, or is another one.

The server is asked for two batches of messages at most; AMQP can limit their bytes, but RabbitMQ cannot. So no more is
read while too many bytes wait here. A server that cannot send for long closes the connection, and nothing is lost.

py-amqp refuses some messages that a server passes on, and with them the queue: here they are read (`dispatch`).
"""

import hashlib
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from amqp import serialization, spec
from amqp.exceptions import AccessRefused, AMQPError, ConsumerCancelled, NotFound, PreconditionFailed

from app.config.sources.amqp import AmqpSourceSettings
from app.config.targets.amqp import AmqpAddress
from app.events.minio_json import YEAR_10000
from app.events.parsing import ENCODING_HEADER, Message
from workers.sources.base import AnyText, Opened, SourceUnavailable, parses_position
from workers.systems.amqp.connection import describe_error, limited, make_connection
from workers.targets.base import TargetUnavailable
from workers.targets.tcp import NodeRotation

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
        self._takes_offset = False  # whether the server has taken one for this queue, as it does for a stream
        self._first = ""  # position of the first message that a stream has sent
        self._at_end = False

    def open(self, positions: Mapping[str, str]) -> Opened:
        """Connect to the first node that answers, and become the queue's consumer."""
        self.close()
        position = positions.get(STREAM, "")
        try:
            self._subscribe_at(offset_in(position) if position else "first")
            return self._find(position) if position and self._takes_offset else Opened()
        except (*_ERRORS, TargetUnavailable) as error:
            raise self._unavailable(error) from error

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
            messages.append(read_arrived(arrived, self._offset_of(arrived)))
        self._at_end = not messages
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
        """Return how many messages the queue has, with those that are not acknowledged yet.

        Of a stream only its end shows: 0 if the last pull has found no more, else None.
        """
        if self._first:
            return 0 if self._at_end else None
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
        self._first = ""

    @property
    def _prefetched(self) -> int:
        return min(_BATCHES * self._settings.batch_size, _MAX_PREFETCHED)

    def _subscribe_at(self, offset: int | str) -> None:
        """Connect, and subscribe; to a stream from this offset on, or from its `first` or `last` messages."""
        self.close()
        self._nodes.connect(partial(self._connect, offset), _ERRORS)

    def _connect(self, offset: int | str, place: AmqpAddress) -> None:
        self._connection = make_connection(self._settings, place)
        try:
            with limited(self._connection, self._settings.timeout):
                self._begin(offset)
        except BaseException:
            self.close()
            raise

    def _begin(self, offset: int | str) -> None:
        self._connection.connect()
        self._connection.sock.settimeout(self._settings.timeout)
        self._channel = self._new_channel()
        if self._channel.queue_declare(self._settings.queue, passive=True).consumer_count:  # a stream has none
            raise _InUse("another consumer has the queue, such as a worker that has lost its lease")
        self._takes_offset = True
        try:
            self._subscribe({OFFSET: offset})
        except PreconditionFailed as error:
            if OFFSET not in str(error):
                raise
            self._takes_offset = False
            self._channel = self._new_channel()
            self._subscribe(None)

    def _new_channel(self) -> Any:
        channel = self._connection.channel()
        channel.auto_decode = False
        channel.dispatch_method = partial(dispatch, channel.dispatch_method)
        channel.basic_qos(0, self._prefetched, False)
        channel._callbacks[spec.Queue.DeclareOk] = self._on_counted
        return channel

    def _subscribe(self, arguments: Mapping[str, Any] | None) -> None:
        self._channel.basic_consume(
            self._settings.queue, exclusive=True, callback=self._on_message, arguments=arguments
        )

    def _find(self, position: str) -> Opened:
        """Return what the stream has lost since the position, which is that of a message that it has had."""
        offset = offset_in(position)
        if first := self._wait_for_first():
            if first == position:
                self._arrived_bytes -= len(self._arrived.popleft().body)
                return Opened()
            if (begin := offset_in(first)) > offset:  # not by how many: some offsets are of no message
                return Opened(lost=[f"the stream begins at {begin} now, and was read up to {offset}"])
        else:
            self._subscribe_at("last")
            last = self._wait_for_first()
            if not last or offset_in(last) >= offset:
                problem = f"the stream has not sent the message {offset}, up to which it was read"
                remedy = "" if last else "; if it was made again, it is read as soon as it has a message"
                raise SourceUnavailable(f"{self._where}: {problem}{remedy}")
        self._subscribe_at("first")
        begin = offset_in(self._wait_for_first()) - 1
        lost = f"the stream was made again, and was read up to {offset} before; it is read from its first message"
        return Opened({STREAM: f"{begin}:"}, [lost])

    def _wait_for_first(self) -> str:
        """Return the position of the first message that the stream sends; "" if none comes in time."""
        until = time.monotonic() + self._settings.timeout
        while not self._first and (left := until - time.monotonic()) > 0:
            self._read(left)
        return self._first

    def _on_message(self, message: Any) -> None:
        self._unacknowledged += 1
        offset = self._offset_of(message)
        if offset is not None and not self._first:
            self._first = position_of(message, offset)
        self._arrived.append(message)
        self._arrived_bytes += len(message.body)

    def _offset_of(self, message: Any) -> int | None:
        """Return the offset of a stream's message; None for another queue's, or if its headers cannot be read."""
        offset = message.properties.get("application_headers", {}).get(OFFSET) if self._takes_offset else None
        return offset if isinstance(offset, int) and offset >= 0 else None

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


STREAM = "stream"  # the share of a stream, which has one order
OFFSET = "x-stream-offset"  # the header of a stream's message, and the argument with which only a stream is consumed


def position_of(message: Any, offset: int) -> str:
    """Return the position of a stream's message: its offset, and a digest, since another stream may have the offset."""
    return f"{offset}:{hashlib.blake2b(message.body or b'', digest_size=8).hexdigest()}"


@parses_position
def offset_in(position: str) -> int:
    """Return the offset of a position; -1 if there is none."""
    return int(position.partition(":")[0]) if position else -1


def read_arrived(arrived: Any, offset: int | None) -> Message:
    """Return a message that has arrived; `offset` is that of a stream's, whose position the outbox keeps."""
    properties = arrived.properties
    headers = {
        _plain(name).lower(): _plain(value)
        for name, value in properties.get("application_headers", {}).items()
        if isinstance(name, str) and isinstance(value, str)
    }
    if "content_type" in properties:
        headers["content-type"] = _plain(properties["content_type"])
    if "content_encoding" in properties:
        headers[ENCODING_HEADER] = _plain(properties["content_encoding"])
    sent_at = properties.get("timestamp", 0) * 1000
    return Message(
        body=arrived.body or b"",  # an empty one is a text
        share="" if offset is None else STREAM,
        position="" if offset is None else position_of(arrived, offset),
        tag=arrived.delivery_tag,
        headers=headers,
        sent_at=sent_at if sent_at < YEAR_10000 else 0,
    )


def _plain(text: str) -> str:
    """Return a text that can be stored: the library reads surrogates, which no UTF-8 has, and no database takes."""
    return text.encode(errors="replace").decode()


def dispatch(strictly: Callable[..., None], method: object, payload: bytes, content: object) -> None:
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
