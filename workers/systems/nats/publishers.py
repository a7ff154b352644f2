"""Publish events with core NATS, JetStream or NATS Streaming.

Core sends messages, and a PING whose answer shows that the server has read them. JetStream and NATS Streaming
acknowledge messages one by one (`Acknowledged`): up to `window` are pending at once, but only one per object, as
neither server guarantees that a later message waits for an earlier one that it did not accept.

Five messages of NATS Streaming (STAN) are encoded here by hand. Its server is no longer maintained (since June 2023),
and no client for it runs on current Python versions; docs/decisions/0009-nats-py.md explains why this code is small
enough to maintain. Fields and numbers are those of `pb/protocol.proto` in stan.go 0.10.4.
"""

import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import orjson
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from app.config.errors import BadValue
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Delivered, Failed, Outcome, Rejected, Unavailable
from workers.systems.nats.connection import TargetConnection
from workers.targets.base import TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.messages import NATS, message_format

# The most pending bytes, so that writing never waits for the server, and no acknowledgement waits for writing.
MAX_UNCONFIRMED_BYTES = 1_500_000

NO_RESPONDERS = "503"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to publish."""

    subject: str
    data: bytes
    headers: dict[str, str] | None = None
    overhead: int = 0  # what the server counts besides `data`

    @property
    def size(self) -> int:
        """Its bytes, as the server counts them against its limit."""
        return len(self.data) + self.overhead


def headed(subject: str, data: bytes, headers: dict[str, str]) -> Message:
    """Return a message with headers: NATS/1.0, one line per header, and an empty line."""
    return Message(subject, data, headers, 12 + sum(len(name) + len(value) + 4 for name, value in headers.items()))


class Dialect(Protocol):
    """How events are published, and how acknowledgements are read."""

    def message(self, event: Event, number: int) -> Message:
        """Return the event's message, `number` being its own on this connection. Raises `BadValue` without a place."""

    def outcome(self, answer: Msg, event: Event) -> Outcome:
        """Return the outcome that the acknowledgement of this event reports."""


@dataclass
class Flight:
    """Which events of a batch may be sent, and which are pending."""

    batch: Batch
    window: int
    under_way: dict[int, int] = field(default_factory=dict)
    _waiting: deque[int] = field(default_factory=deque)
    _next: dict[int, int] = field(default_factory=dict)
    _bytes: int = 0

    def __post_init__(self) -> None:
        last: dict[str, int] = {}
        for index, event in enumerate(self.batch.events):
            if event.path in last:
                self._next[last[event.path]] = index
            else:
                self._waiting.append(index)
            last[event.path] = index

    @property
    def is_over(self) -> bool:
        """Whether nothing is pending and nothing more may be sent."""
        return not self.under_way and not self._waiting

    def take(self) -> int | None:
        """Return the index of an event that may be sent now. Raises `LeaseExpired`."""
        if self._waiting and len(self.under_way) < self.window and self._bytes < MAX_UNCONFIRMED_BYTES:
            if self.batch.begin([self._waiting[0]]):
                return self._waiting.popleft()
            self._waiting.clear()
        return None

    def sent(self, index: int, size: int) -> None:
        """Record that the event is pending."""
        self.under_way[index] = size
        self._bytes += size

    def settle(self, index: int, outcome: Outcome) -> None:
        """Record an outcome. The object's next event may be sent after `Delivered` or `Rejected`."""
        self._bytes -= self.under_way.pop(index, 0)
        self.batch.settle(index, outcome)
        if isinstance(outcome, Delivered | Rejected) and index in self._next:
            self._waiting.append(self._next[index])
        if self.batch.is_over:
            self._waiting.clear()

    def lose(self, why: Unavailable) -> None:
        """Send nothing more, and expect no answers to pending messages."""
        self.under_way.clear()
        self._waiting.clear()
        self.batch.lose(why)


class Acknowledged:
    """Publishing on one connection, with one inbox for all acknowledgements."""

    def __init__(self, connection: TargetConnection, dialect: Dialect) -> None:
        self._connection = connection
        self._dialect = dialect
        self._inbox = connection.client.new_inbox()
        self._flight = Flight(Batch(()), 0)
        self._numbers: dict[int, int] = {}  # number of a pending message to index of its event
        self._last_number = 0

    async def begin(self) -> None:
        """Subscribe to acknowledgements."""
        await self._connection.client.subscribe(f"{self._inbox}.*", cb=self._acknowledged)

    async def deliver(self, batch: Batch, window: int) -> None:
        """Settle the events. Never raises `TargetUnavailable`: some of them may have been delivered."""
        flight = self._flight = Flight(batch, window)
        self._numbers.clear()
        self._connection.forget_refusals()
        news = self._connection.news
        ends: float | None = None
        while not flight.is_over:
            news.clear()
            try:
                while (index := flight.take()) is not None:
                    await self._send(flight, index)
                if flight.under_way:
                    await self._connection.wait_for_news()
                    self._settle_refused(flight)
                if not batch.has_time():  # one more time limit for all pending messages
                    ends = ends or time.monotonic() + self._connection.settings.timeout
                    if flight.under_way and time.monotonic() > ends:
                        raise self._connection.no_answer()
            except TargetUnavailable as error:
                flight.lose(Unavailable(error.reason))

    async def _send(self, flight: Flight, index: int) -> None:
        self._last_number += 1
        try:
            message = self._dialect.message(flight.batch.events[index], self._last_number)
        except BadValue as error:
            flight.settle(index, Rejected(error.problem))
            return
        size = message.size
        connection = self._connection
        if size > connection.client.max_payload:
            flight.settle(index, connection.too_large(size))
            return
        self._numbers[self._last_number] = index
        reply = f"{self._inbox}.{self._last_number}"
        try:
            await connection.client.publish(message.subject, message.data, reply, message.headers)
        except NatsError as error:
            raise connection.failed(error) from error
        flight.sent(index, size)

    def _settle_refused(self, flight: Flight) -> None:
        """Settle what the server refused to take for its subject: no acknowledgement will come."""
        for index in list(flight.under_way):
            if refused := self._connection.refused(flight.batch.events[index]):
                flight.settle(index, refused)

    async def _acknowledged(self, answer: Msg) -> None:
        index = self._numbers.pop(int(answer.subject.rpartition(".")[2]), None)
        if index is not None and index in self._flight.under_way:
            event = self._flight.batch.events[index]
            self._flight.settle(index, self._dialect.outcome(answer, event))
        self._connection.news.set()


# A PING follows after this many bytes: what is written without one must be sent within the time limit.
BATCH_BYTES = 1_000_000


class Core:
    """Messages, and a PING whose answer shows that the server has read them."""

    def __init__(self, connection: TargetConnection) -> None:
        self._connection = connection
        self._format = message_format(connection.settings, NATS)

    async def begin(self) -> None:
        """Check that the server can carry what the settings ask for. Raises `TargetUnavailable`."""
        if self._connection.settings.payload == "cloudevents-binary" and not self._connection.has_headers:
            raise TargetUnavailable(
                f"{self._connection.where}: payload=cloudevents-binary needs headers, which servers before 2.2 do not "
                "have; set payload=cloudevents"
            )

    async def end(self) -> None:
        """Do nothing."""

    async def deliver(self, batch: Batch, window: int) -> None:
        """Publish portion by portion."""
        try:
            for portion in self._portions(batch, window):
                chosen = set(batch.begin([index for index, _ in portion]))
                await self._publish(batch, [message for message in portion if message[0] in chosen])
        except TargetUnavailable as error:
            batch.lose(Unavailable(error.reason))

    async def _publish(self, batch: Batch, messages: Sequence[tuple[int, Message]]) -> None:
        connection = self._connection
        client = connection.client
        sent = []
        connection.forget_refusals()
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
            for index in sent:
                batch.settle(index, connection.refused(batch.events[index]) or DELIVERED)

    def _messages(self, batch: Batch) -> Iterator[tuple[int, Message]]:
        for index, event in enumerate(batch.events):
            try:
                yield index, self._message(event)
            except BadValue as error:
                batch.settle(index, Rejected(error.problem))

    def _portions(self, batch: Batch, window: int) -> Iterator[list[tuple[int, Message]]]:
        """Yield what is sent before an answer; an object's events there have one subject.

        Of two subjects the server may refuse the first, and the object's later event would overtake the earlier one.
        """
        varies = self._connection.settings.subject.fixed is None
        portion: list[tuple[int, Message]] = []
        subjects: dict[str, str] = {}
        size = 0
        for index, message in self._messages(batch):
            path = batch.events[index].path if varies else ""
            is_full = len(portion) == window or size + message.size > BATCH_BYTES
            if portion and (is_full or subjects.get(path, message.subject) != message.subject):
                yield portion
                portion, subjects, size = [], {}, 0
            portion.append((index, message))
            subjects[path] = message.subject
            size += message.size
        yield portion

    def _message(self, event: Event) -> Message:
        subject, body = self._connection.settings.subject.of(event), self._format.body(event).encode()
        if (event.trace or self._format.headers) and self._connection.has_headers:
            return headed(subject, body, self._format.all_headers(event))
        return Message(subject, body)


# JetStream's error for a message beyond the stream's max_msg_size (err_code JSStreamMessageExceedsMaximumErr).
_EXCEEDS_STREAM = 10054


class JetStream:
    """Messages that a stream acknowledges."""

    def __init__(self, connection: TargetConnection) -> None:
        self._connection = connection
        self._subject = connection.settings.subject
        self._format = message_format(connection.settings, NATS)
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
        """Return the event's message, with the id by which the stream detects duplicates."""
        headers = {"Nats-Msg-Id": event.id}
        if event.trace or self._format.headers:
            headers |= self._format.all_headers(event)
        return headed(self._subject.of(event), self._format.body(event).encode(), headers)

    def outcome(self, answer: Msg, event: Event) -> Outcome:
        """Return the outcome in the stream's answer; a template may name subjects that no stream has."""
        where, subject = self._connection.where, self._subject.of(event)
        if answer.headers and answer.headers.get("Status") == NO_RESPONDERS:
            subjects = subject if self._subject.fixed is not None else _wildcard(self._subject)
            reason = (
                f"{where}: no JetStream stream has the subject {subject!r}; create one, such as by "
                f"`nats stream add EVENTS --subjects={subjects}`, or enable JetStream in the server"
            )
            return Unavailable(reason) if self._subject.fixed is not None else Failed(reason)
        try:
            body = orjson.loads(answer.data)
            error = body.get("error")
            if error is None and isinstance(body["stream"], str) and body["stream"] and body["seq"] > 0:
                return DELIVERED
            code, description = error.get("err_code"), error["description"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return Unavailable(f"{where}: the answer on subject {subject!r} is not a JetStream acknowledgement")
        reason = f"{where}: JetStream: {description} (error {code})"
        return Rejected(reason) if code == _EXCEEDS_STREAM else Unavailable(reason)


def _wildcard(subject: str) -> str:
    """Return the subjects of a template: a token that depends on the event is `*`."""
    return ".".join("*" if "{" in token else token for token in subject.split("."))


# The default of stan.go, hence of MinIO (§4.5).
_MAX_PUB_ACKS_IN_FLIGHT = 16_384

# ConnectRequest
_CLIENT_ID, _HEARTBEATS, _PROTOCOL, _CONNECTION_ID = 1, 2, 3, 4
# ConnectResponse
_PUBLISH_TO, _CLOSE_AT, _CONNECT_ERROR = 1, 4, 5
# PubMsg; its client id is field 1, too
_GUID, _SUBJECT, _DATA, _SENT_BY = 2, 3, 5, 6
# PubAck; its guid is field 1
_ACK_GUID, _ACK_ERROR = 1, 2

Value = str | bytes | int


class Streaming:
    """A client of the cluster, with a unique id."""

    def __init__(self, connection: TargetConnection) -> None:
        self._connection = connection
        self._settings = connection.settings
        self._write = message_format(connection.settings).body
        self._publishing = Acknowledged(connection, self)
        self._id = f"bucketwire-{uuid.uuid4().hex}"
        self._fixed = b""
        self._publish_to = self._close_at = ""

    async def begin(self) -> None:
        """Register as a client of the cluster. Raises `TargetUnavailable`."""
        client = self._connection.client
        heartbeats, connection_id = client.new_inbox(), uuid.uuid4().hex
        await client.subscribe(heartbeats, cb=self._alive)
        await self._publishing.begin()
        request = encoded(
            {_CLIENT_ID: self._id, _HEARTBEATS: heartbeats, _PROTOCOL: 1, _CONNECTION_ID: connection_id.encode()}
        )
        answer = decoded(await self._ask(f"_STAN.discover.{self._settings.streaming_cluster_id}", request))
        if refusal := text(answer.get(_CONNECT_ERROR)):
            raise TargetUnavailable(f"{self._connection.where}: {refusal}")
        self._publish_to = text(answer.get(_PUBLISH_TO))
        self._close_at = text(answer.get(_CLOSE_AT))
        self._fixed = encoded({_CLIENT_ID: self._id, _SENT_BY: connection_id.encode()})

    async def end(self) -> None:
        """Leave the cluster; otherwise it would wait some minutes for our heartbeats."""
        await self._ask(self._close_at, encoded({_CLIENT_ID: self._id}))

    async def deliver(self, batch: Batch, window: int) -> None:
        """Keep one message unacknowledged, or with `streaming_async` up to `streaming_max_pub_acks_in_flight`."""
        most = self._settings.streaming_max_pub_acks_in_flight or _MAX_PUB_ACKS_IN_FLIGHT
        await self._publishing.deliver(batch, min(window, most) if self._settings.streaming_async else 1)

    def message(self, event: Event, number: int) -> Message:
        """Return the event's message in a PubMsg."""
        subject, body = self._settings.subject.of(event), self._write(event).encode()
        fields = encoded({_GUID: str(number), _SUBJECT: subject, _DATA: body})
        return Message(f"{self._publish_to}.{subject}", self._fixed + fields)

    def outcome(self, answer: Msg, _event: Event) -> Outcome:
        """Return the outcome in the server's answer; an error concerns the channel, the store or our registration."""
        where = self._connection.where
        if answer.headers and answer.headers.get("Status") == NO_RESPONDERS:
            return Unavailable(f"{where}: no NATS Streaming server listens any more")
        try:
            fields = decoded(answer.data)
            guid, refusal = text(fields.get(_ACK_GUID)), text(fields.get(_ACK_ERROR))
        except (LookupError, ValueError):
            return Unavailable(f"{where}: an acknowledgement cannot be read")
        if refusal:
            return Unavailable(f"{where}: {refusal}")
        if guid != answer.subject.rpartition(".")[2]:
            return Unavailable(f"{where}: an acknowledgement is of another message")
        return DELIVERED

    async def _ask(self, subject: str, question: bytes) -> bytes:
        nobody = f"there is no NATS Streaming server of cluster {self._settings.streaming_cluster_id!r}"
        return await self._connection.ask(subject, question, nobody)

    async def _alive(self, heartbeat: Msg) -> None:
        await self._connection.client.publish(heartbeat.reply, b"")


def encoded(fields: dict[int, Value]) -> bytes:
    """Return a protobuf message of these fields."""
    message = bytearray()
    for number, value in fields.items():
        if isinstance(value, int):
            message += _varint(number << 3) + _varint(value)
        else:
            content = value.encode() if isinstance(value, str) else value
            message += _varint(number << 3 | 2) + _varint(len(content)) + content
    return bytes(message)


def decoded(message: bytes) -> dict[int, bytes | int]:
    """Return the fields of a protobuf message with only numbers and texts. Raises `LookupError` or `ValueError`."""
    fields: dict[int, bytes | int] = {}
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        value, at = _number(message, at)
        number, kind = divmod(key, 8)
        if kind == 0:
            fields[number] = value
        elif kind == 2 and at + value <= len(message):
            fields[number] = message[at : at + value]
            at += value
        else:
            raise ValueError(f"field {number} of wire type {kind} cannot be read")
    return fields


def text(value: bytes | int | None) -> str:
    """Return a field's text; empty if the field is missing."""
    return value.decode() if isinstance(value, bytes) else ""


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    content.append(value)
    return bytes(content)


def _number(message: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at this offset, and the offset after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
