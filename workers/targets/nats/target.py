"""NATS: core, JetStream and NATS Streaming; each event is one message, the log envelope, on one subject (§4.5).

| kind                       | Delivered means                                     | the message then                 |
|----------------------------|-----------------------------------------------------|----------------------------------|
| core                       | the server has read the message: it answered a PING | goes to the current subscribers  |
| JetStream (`jetstream=on`) | the stream acknowledged it                          | is kept as the stream is set up  |
| Streaming (`streaming=on`) | the server acknowledged it                          | is kept as the channel is set up |

Core: up to `window` messages, then a PING. JetStream and Streaming: up to `window` messages unacknowledged, one per
object; JetStream gets the event's id and drops duplicates within its `duplicate_window`. Streams are never created (as
MinIO); channels of NATS Streaming are created automatically. A message larger than the server's `max_payload` is
rejected before it is sent, as the server would close the connection over it. All other errors are those of the server,
the stream or the login: Unavailable.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

import orjson
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from app.config.targets.nats import NatsSettings
from app.events.model import Event
from app.events.trace import fields
from workers.delivery.outcomes import DELIVERED, Outcome, Rejected, Unavailable
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.event_loop_thread import EventLoopThread
from workers.targets.nats.acks import NO_RESPONDERS, Acknowledged, Message, headed
from workers.targets.nats.connection import Connection
from workers.targets.nats.streaming import Streaming
from workers.targets.payloads import log

# A PING follows after this many bytes: what is written without one must be sent within the time limit.
_PORTION = 1_000_000

# JetStream's error for a message beyond the stream's max_msg_size (err_code JSStreamMessageExceedsMaximumErr).
_EXCEEDS_STREAM = 10054


class Manner(Protocol):
    """One of the three ways of publishing, over an open connection."""

    async def begin(self) -> None:
        """Prepare the connection once. Raises `TargetUnavailable`."""

    async def deliver(self, batch: Batch, window: int) -> None:
        """Settle what can be sent of the batch."""

    async def end(self) -> None:
        """Sign off from a server that is still connected."""


class NatsTarget:
    """One server, one connection, one thread that answers the server between calls."""

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._loop: EventLoopThread | None = None
        self._connection: Connection | None = None
        self._manner: Manner | None = None

    def open(self) -> None:
        """Connect and log in; register with NATS Streaming. This checks and creates no streams or channels."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Publish and await the confirmations; after an `Unavailable` nothing more is sent."""
        loop, manner = self._ready()
        if not events:
            return []
        batch = Batch(events, lease)
        try:
            loop.run(manner.deliver(batch, window))
        except BaseException:
            self.close()
            raise
        outcomes = batch.outcomes()
        if any(isinstance(outcome, Unavailable) for outcome in outcomes):
            # The fate of the others is unknown; a new connection receives no late answers to old messages.
            self.close()
        return outcomes

    def close(self) -> None:
        """Close the connection and end its thread."""
        loop, connection, manner = self._loop, self._connection, self._manner
        self._loop = self._connection = self._manner = None
        if loop is None or not loop.is_here:
            return
        if connection is not None and manner is not None and not connection.is_lost:
            with suppress(Exception):  # either way the server detects a closed connection
                loop.run(manner.end())
        loop.close()

    def _ready(self) -> tuple[EventLoopThread, Manner]:
        loop, connection, manner = self._loop, self._connection, self._manner
        if loop is None or connection is None or manner is None or connection.is_lost or not loop.is_here:
            return self._connect()
        return loop, manner

    def _connect(self) -> tuple[EventLoopThread, Manner]:
        self.close()
        loop = self._loop = EventLoopThread("nats")
        try:
            self._connection, self._manner = loop.run(_connected(self._settings, loop))
        except BaseException:
            self.close()
            raise
        return loop, self._manner


async def _connected(settings: NatsSettings, loop: EventLoopThread) -> tuple[Connection, Manner]:
    connection = Connection(settings, lambda: loop.is_encrypted)
    await connection.connect()
    manner: Manner = Core(connection)
    if settings.jetstream:
        manner = JetStream(connection)
    elif settings.streaming:
        manner = Streaming(connection)
    await manner.begin()
    return connection, manner


class Core:
    """Messages, and a PING whose answer shows that the server has read them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def begin(self) -> None:
        """Do nothing."""

    async def end(self) -> None:
        """Do nothing."""

    async def deliver(self, batch: Batch, window: int) -> None:
        """Publish portion by portion."""
        try:
            for portion in _portions(map(self._message, batch.events), window):
                chosen = set(batch.begin([index for index, _ in portion]))
                await self._publish(batch, [each for each in portion if each[0] in chosen])
        except TargetUnavailable as error:
            batch.lose(Unavailable(error.reason))

    async def _publish(self, batch: Batch, messages: Sequence[tuple[int, Message]]) -> None:
        connection = self._connection
        client = connection.client
        sent = []
        try:
            for index, message in messages:
                if message.size > client.max_payload:
                    batch.settle(index, connection.too_large(message.size))
                    continue
                await client.publish(message.subject, message.data, headers=message.headers)
                sent.append(index)
        except NatsError as error:
            raise connection.failed(error) from error
        if sent:
            await connection.confirm()
            batch.settle_all(sent, DELIVERED)

    def _message(self, event: Event) -> Message:
        subject, body = self._connection.settings.subject, log(event).encode()
        if event.trace and self._connection.has_headers:
            return headed(subject, body, dict(fields(event.trace)))
        return Message(subject, body)


def _portions(messages: Iterable[Message], window: int) -> Iterator[list[tuple[int, Message]]]:
    portion: list[tuple[int, Message]] = []
    size = 0
    for index, message in enumerate(messages):
        if portion and (len(portion) == window or size + message.size > _PORTION):
            yield portion
            portion, size = [], 0
        portion.append((index, message))
        size += message.size
    yield portion


class JetStream:
    """Messages that a stream acknowledges."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._subject = connection.settings.subject
        self._publishing = Acknowledged(connection, self)

    async def begin(self) -> None:
        """Subscribe to acknowledgements. A missing stream is detected only when publishing."""
        await self._publishing.begin()

    async def end(self) -> None:
        """Do nothing."""

    async def deliver(self, batch: Batch, window: int) -> None:
        """Keep up to `window` messages unacknowledged."""
        await self._publishing.deliver(batch, window)

    def message(self, event: Event, _number: int) -> Message:
        """Return the envelope, with the id by which the stream detects duplicates."""
        headers = {"Nats-Msg-Id": event.id}
        if event.trace:
            headers |= fields(event.trace)
        return headed(self._subject, log(event).encode(), headers)

    def outcome(self, answer: Msg) -> Outcome:
        """Return the outcome in the stream's answer."""
        where = self._connection.where
        if answer.headers and answer.headers.get("Status") == NO_RESPONDERS:
            return Unavailable(
                f"{where}: no JetStream stream takes subject {self._subject!r}; make one, such as by "
                f"`nats stream add EVENTS --subjects={self._subject}`, or enable JetStream in the server"
            )
        try:
            said = orjson.loads(answer.data)
            error = said.get("error")
            if error is None and said["stream"]:
                return DELIVERED
            code, words = error.get("err_code"), error["description"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return Unavailable(f"{where}: who answered on subject {self._subject!r} is no JetStream stream")
        reason = f"{where}: JetStream: {words} (error {code})"
        return Rejected(reason) if code == _EXCEEDS_STREAM else Unavailable(reason)
