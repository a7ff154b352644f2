"""Messages of a queue: what a source pulls, and what is read in them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from app.events.errors import BadEvents
from app.events.frontends import Frontend
from app.events.frontends.filer_protobuf import is_filer_message, webhook_body
from app.events.limits import Limits
from app.events.minio_json import YEAR_10000
from app.events.model import Event
from app.events.origin import UNKNOWN, by_source
from app.events.parsing import HEADERS, parse
from app.events.unpacking import NotUnpacked, UnpacksTooLong, unpacked

KEY_HEADER = "kafka-key"  # under which `headers` have a message's key that may be a path


ENCODING_HEADER = "content-encoding"
_READ_ENCODINGS = frozenset(("", "identity", "gzip", "x-gzip", "utf-8", "utf8"))  # the last two are of careless senders
_GZIP = b"\x1f\x8b"  # how such a body begins, as no JSON does


@dataclass(frozen=True, slots=True)
class Message:
    """A message as it was pulled.

    `share` is the part of the queue that has an order of its own, and `position` the one up to which it is taken with
    this message. Both are empty if the queue itself remembers what was taken; then `tag` identifies the message there.
    `sent_at` is its own time (ms since 1970), 0 if it has none. `is_gap` means that there is no message up to
    `position`, but what only the queue itself writes. With a `problem` it has messages that cannot be read.
    """

    body: bytes
    share: str = ""
    position: str = ""
    tag: object = None
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    sent_at: int = 0
    is_gap: bool = False
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """The events of a message; or none, and the `problem` for which it is rejected."""

    message: Message
    events: tuple[Event, ...] = ()
    problem: str = ""


def read_message(
    message: Message, limits: Limits, sender: Frontend | None, source: str = "", tenant: str = ""
) -> ReadMessage:
    """Return the events of a message, by the rules of a posted body. Raises nothing: a queue must never stop.

    A body that is gzip is decompressed, whatever its headers are.

    An event without a time has the message's, so that the same message always has the same events. An empty message has
    none: in a compacted topic it only says that a key is gone. A time that no payload could have counts as none.
    `source` is what has pulled the message, as TYPE:NAME; "" if that does not matter. `tenant` is as for `parse`.
    """
    if message.problem or not message.body:
        return ReadMessage(message, problem=message.problem)
    sent_at = message.sent_at if message.sent_at < YEAR_10000 else 0  # whatever the producer chose
    try:
        body = _unpacked(message.body, limits.written_bytes)
        headers = {name: message.headers[name] for name in HEADERS if name in message.headers}
        if is_filer_message(path := message.headers.get(KEY_HEADER, ""), body):
            body = webhook_body(path, body)
        origin = by_source(source, message.share, message.position) if source else UNKNOWN
        parsed = parse(body, headers, now_ms=sent_at, limits=limits, sender=sender, tenant=tenant, origin=origin)
    except BadEvents as error:
        encoding = message.headers.get(ENCODING_HEADER, "").lower()
        is_unread = encoding not in _READ_ENCODINGS
        hint = f" Its content encoding is {encoding[:40]!r}; send gzip, or no encoding." if is_unread else ""
        return ReadMessage(message, problem=error.problem + hint)
    except Exception as error:  # noqa: BLE001 - a defect of the parser must not stop all that comes after it
        return ReadMessage(message, problem=f"it cannot be read, by a defect of Bucketwire: {type(error).__name__}")
    return ReadMessage(message, tuple(parsed.events))


def _unpacked(body: bytes, most: int) -> bytes:
    """Return a body without its compression, if it has one. Raises `BadEvents`."""
    if not body.startswith(_GZIP):
        return body
    try:
        return b"".join(unpacked(body, most))
    except UnpacksTooLong as error:
        raise BadEvents(f"The body begins as gzip does, and {error}: send it in parts.", 413) from None
    except NotUnpacked as error:
        raise BadEvents(f"The body begins as gzip does, and {error}.") from None
