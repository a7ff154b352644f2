"""NATS Streaming (STAN) over nats-py: five messages of its protocol, encoded by hand.

The server is no longer maintained (since June 2023), and no client for it runs on current Python versions;
docs/decisions/0009-nats-py.md explains why this code is small enough to maintain. Fields and numbers are those of
`pb/protocol.proto` in stan.go 0.10.4.
"""

import uuid

from nats.aio.msg import Msg

from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Outcome, Unavailable
from workers.systems.nats.acks import NO_RESPONDERS, Acknowledged, Message
from workers.systems.nats.connection import TargetConnection
from workers.targets.base import TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.messages import message_format

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
