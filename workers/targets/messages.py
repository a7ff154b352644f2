"""Write events as a target's messages, in the format that its settings name: an adapter only carries the result.

They are MinIO's messages, S3's, or CloudEvents 1.0. Of a CloudEvent, `source`, `type`, `subject` and `time` are those
of the CloudEvents adapter for S3 (adapters/aws-s3.md beside the specification), which Ceph follows, too. `id` is not:
the adapter takes the id of the request, which all events of a bulk removal share. The data are MinIO's envelope, so
that headers are all that binary mode adds to a message.

Everything is made from the event alone: a repeated delivery has the same bytes.
"""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import quote

import orjson

from app.config.targets.base import MessageSettings, NamespaceSettings
from app.events.model import Event, trace_fields
from app.events.order import comparable
from workers.targets.payloads import log, s3_notification, text, timestamp

STRUCTURED = "application/cloudevents+json; charset=utf-8"
BATCH = "application/cloudevents-batch+json; charset=utf-8"
DATA = "application/json"

_TYPE = "com.amazonaws.s3."
_SENDER = "bucketwire:s3"  # of a record that does not name its own
_MAX_SENDER_CHARACTERS = 64  # a longer one, or a longer region, counts as missing
_MAX_SUBJECT_BYTES = 1024  # S3 allows no longer key, and servers limit the headers that they accept
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")

# What the type String excludes: control characters, surrogates, and Unicode's noncharacters.
_NONCHARACTERS = "".join(chr(plane + last) for plane in range(0, 0x110000, 0x10000) for last in (0xFFFE, 0xFFFF))
_EXCLUDED = re.compile(f"[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")

_UNENCODED = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


class Binding(NamedTuple):
    """How a protocol's messages carry CloudEvents: names of headers, and how their values are written.

    An empty name: the protocol has a property of its own for the content type.
    """

    prefix: str  # before each attribute's name, in binary mode
    content_type: str  # in structured mode: the event format
    data_type: str  # in binary mode: that of the data
    value: Callable[[str], str]


def percent_encoded(value: str) -> str:
    """Return an attribute's value as headers of HTTP and NATS have it (HTTP binding, §3.1.3.2)."""
    return quote(value, safe=_UNENCODED)


HTTP = Binding("ce-", "Content-Type", "Content-Type", percent_encoded)
NATS = Binding("ce-", "Content-Type", "ce-datacontenttype", percent_encoded)
KAFKA = Binding("ce_", "content-type", "content-type", str)
AMQP = Binding("cloudEvents_", "", "", str)  # `:` is allowed in place of `_`, but not in selectors of JMS
MQTT = Binding("", "", "", str)


def attributes(event: Event) -> dict[str, str]:
    """Return the event's attributes except `datacontenttype`, in canonical form.

    `subject` is exactly the key. It is left out if there is none, or if CloudEvents cannot have it: a key with
    characters that the type String excludes, or of more than 1,024 bytes. `sequencer` is left out if it orders nothing.
    """
    members = {
        "specversion": "1.0",
        "id": event.id,
        "source": _source(*_sender(event.record), event.bucket),
        "type": _TYPE + _EXCLUDED.sub("\ufffd", event.name.removeprefix("s3:")),
        "time": timestamp(event),
    }
    if _is_subject(event.key):
        members["subject"] = event.key
    if comparable(event.sequencer):
        members["sequencer"] = event.sequencer
    if event.trace:
        members.update(trace_fields(event.trace))
    return members


def structured(event: Event) -> str:
    """Return the event in the JSON format."""
    members = ",".join([f'"{name}":{text(value)}' for name, value in attributes(event).items()])
    return f'{{{members},"datacontenttype":"{DATA}","data":{log(event)}}}'


def batch(events: Sequence[Event]) -> str:
    """Return the events in the JSON batch format, in their order."""
    return f"[{','.join([structured(event) for event in events])}]"


def structured_headers(binding: Binding) -> list[tuple[str, str]]:
    """Return the headers of every message in structured mode."""
    return [(binding.content_type, STRUCTURED)] if binding.content_type else []


def binary_headers(event: Event, binding: Binding) -> list[tuple[str, str]]:
    """Return the headers of the event's message in binary mode."""
    headers = [(binding.prefix + name, binding.value(value)) for name, value in attributes(event).items()]
    return [*headers, (binding.data_type, DATA)] if binding.data_type else headers


def _is_subject(key: str) -> bool:
    return bool(key) and len(key.encode(errors="replace")) <= _MAX_SUBJECT_BYTES and not _EXCLUDED.search(key)


def _sender(record: str) -> tuple[str, str]:
    """Return the record's `eventSource` and `awsRegion`, which may be of any type, or missing."""
    members: dict[str, Any] = orjson.loads(record)
    sender, region = members.get("eventSource"), members.get("awsRegion")
    return (
        sender if isinstance(sender, str) and 0 < len(sender) <= _MAX_SENDER_CHARACTERS else _SENDER,
        region if isinstance(region, str) and len(region) <= _MAX_SENDER_CHARACTERS else "",
    )


@lru_cache(maxsize=1024)  # nearly all events come from a few buckets
def _source(sender: str, region: str, bucket: str) -> str:
    """Return `<eventSource>.<awsRegion>.<bucket>` as a URI reference."""
    start = quote(sender, safe=":")
    if not _SCHEME.match(start):
        start = start.replace(":", "%3A")  # a reference without a scheme has no colon in its first segment
    return f"{start}.{quote(region, safe='')}.{quote(bucket, safe='')}"


Write = Callable[[Event], str]

# Every event's message has more. A remote that takes less takes none, so its limit is no reason to reject an event.
LEAST_BYTES = 256


class MessageFormat(NamedTuple):
    """What a message has: its body, the body's content type, and the headers of a CloudEvent.

    `headers` is None for MinIO's messages, so that these cost nothing more; theirs are those of a trace context.
    """

    body: Write
    content_type: str
    headers: Callable[[Event], list[tuple[str, str]]] | None = None

    def all_headers(self, event: Event) -> dict[str, str]:
        """Return the headers of the event's trace context and of the CloudEvent."""
        headers = dict(trace_fields(event.trace))
        return headers | dict(self.headers(event)) if self.headers else headers


NO_HEADERS = Binding("", "", "", str)  # of protocols whose messages are a body and nothing else


def message_format(settings: MessageSettings, binding: Binding = NO_HEADERS) -> MessageFormat:
    """Return the format of a target's messages, with the headers of its protocol."""
    if settings.payload == "cloudevents":
        fixed = structured_headers(binding)
        return MessageFormat(structured, STRUCTURED, lambda _: fixed)
    body = s3_notification if settings.body_shape == "s3" else shaped(log, settings.body_shape)
    if settings.payload == "minio":
        return MessageFormat(body, DATA)
    return MessageFormat(body, DATA, partial(binary_headers, binding=binding))


def shaped(write: Callable[..., str], shape: str) -> Write:
    """Return a function of `payloads` that writes events in this shape."""
    return write if shape == "minio" else partial(write, shape=shape)


def entry_format(settings: NamespaceSettings, minio: Write, end: str = "") -> Write:
    """Return how the entries of a target of format `access` are written.

    `minio` writes them as MinIO does; `end` is what follows each entry otherwise.
    """
    if settings.payload == "minio":
        return minio
    return lambda event: structured(event) + end
