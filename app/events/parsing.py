"""Turn the body of a request from any frontend, or a queue's message, into events, or report what is wrong with it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote

from app.events import minio_json
from app.events.errors import BadEvents, BadRecord, excerpt
from app.events.frontends import (
    EventGridValidation,
    Frontend,
    Item,
    Location,
    Normalized,
    SnsConfirmation,
    Traced,
    format_location,
    gcs,
    items,
    s3_records,
    seaweedfs,
)
from app.events.frontends.envelopes import REFUSED, Context, context_of, is_sns_call, sns_call
from app.events.frontends.registry import FILER_WITHOUT_PATH
from app.events.frontends.s3_records import is_unknown
from app.events.frontends.seaweedfs import is_filer_message, webhook_body
from app.events.limits import Allowance, Limits, NotUnpacked, UnpacksTooLong, is_larger, stored_size, unpacked
from app.events.minio_json import YEAR_10000
from app.events.model import UNKNOWN_ORIGIN, Event, Origin, OriginTexts, by_source, trace_of
from app.events.normalize import event_of

__all__ = [
    "ENCODING_HEADER",
    "HEADERS",
    "KEY_HEADER",
    "BadEvents",
    "EventGridValidation",
    "Limits",
    "Message",
    "Parsed",
    "ReadMessage",
    "Refused",
    "SnsConfirmation",
    "parse",
    "read_message",
]

_LINES = frozenset(f"application/{kind}" for kind in ("x-ndjson", "ndjson", "jsonl", "x-jsonlines", "jsonlines"))

_DEFAULT = Limits()
_NOT_BLANK = re.compile(rb"\S")
_PART = 1 << 18  # bytes in which it is looked for at a time
_OBJECT = ord("{")
_TRACE = frozenset(("traceparent", "tracestate", "ce-traceparent", "ce-tracestate"))
HEADERS = ("content-type", *sorted(_TRACE), *gcs.HEADERS)  # those of a request that matter to `parse`


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that was left out: its index among the body's records from 0, the path to the fault, a sentence."""

    index: int
    path: str
    problem: str


@dataclass(slots=True)
class Parsed:
    """The content of a body. `ignored` counts records without an object: test messages, folders, files in no bucket.

    `refused` describes the first `Limits.refusals` of the records that were left out, `more_refused` counts the others.
    `handshake` asks whether its sender may send, and is the whole body. `batch` has the ids of a call of SNS's action
    `PublishBatch`. `senders` are the names of the frontends of its events.
    """

    events: list[Event] = field(default_factory=list)
    ignored: int = 0
    refused: list[Refused] = field(default_factory=list)
    more_refused: int = 0
    handshake: SnsConfirmation | EventGridValidation | None = None
    batch: tuple[str, ...] | None = None
    senders: frozenset[str] = frozenset()


def parse(
    body: minio_json.Encoded,
    headers: Mapping[str, str],
    *,
    now_ms: int,
    limits: Limits = _DEFAULT,
    partial: bool = False,
    sender: Frontend | None = None,
    tenant: str = "",
    origin: Origin = UNKNOWN_ORIGIN,
) -> Parsed:
    """Return the events of a body, in order and including duplicates.

    The events have the trace context of the request, or of the CloudEvent that contains them, if it is valid. The body
    is one JSON value or several in lines, recognised by its content and by `Content-Type`; it must have been
    decompressed. `origin` is what has brought it. Records of S3's form are those of `sender`; without it each record
    shows its sender. Their buckets are those of `tenant` (`app.events.buckets`). `now_ms` (milliseconds since 1970) is
    the time of events without a time. Raises `BadEvents`, and only that. With `partial` an invalid record is left out
    and described in `refused`, but a body that is no JSON at all or exceeds the limits (413) is still refused as a
    whole.
    """
    parsed = Parsed()
    allowance, reading = Allowance(limits), _Reading(now_ms, limits.nesting, tenant, OriginTexts(origin))
    for index, (line, item) in enumerate(_items(body, headers, context_of(allowance, sender, headers), parsed)):
        allowance.take_record()
        first = len(parsed.events)
        try:
            frontend, thing, where = item
            _keep(frontend.normalize(thing), frontend, where, parsed, reading)
            for event in parsed.events[first:]:
                allowance.take_written(event)
                if is_larger(event, limits.event_bytes):
                    raise _too_large(event, limits.event_bytes)
        except BadRecord as problem:
            del parsed.events[first:]
            # The answer to a batch of SNS says of each entry that it is recorded.
            partial = partial and parsed.batch is None
            if partial and len(parsed.refused) >= limits.refusals:
                parsed.more_refused += 1
                continue
            path, sentence = _describe_problem(problem, index, line, item)
            if not partial:
                status = 400 if problem.limit is None else 413
                raise BadEvents(
                    sentence, status, index=index, field=path, offset=problem.offset, limit=problem.limit
                ) from None
            parsed.refused.append(Refused(index, path, sentence))
    if trace := _trace(headers):
        parsed.events = _with_trace(parsed.events, trace)
    parsed.senders = frozenset(reading.origins)
    return parsed


def _with_trace(events: Iterable[Event], trace: str) -> list[Event]:
    """Return the events, with this trace context unless they have their own."""
    return [event if event.trace else event._replace(trace=trace) for event in events]


def _trace(headers: Mapping[str, str]) -> str:
    """Return the trace context of a request: that of the CloudEvent in it (binary mode), else its own."""
    texts = {lowered: value for name, value in headers.items() if (lowered := name.lower()) in _TRACE}
    if not texts:
        return ""
    # Values of CloudEvents' headers are percent-encoded (HTTP binding, §3.1.3.2); a trace context's own are not.
    of_event = trace_of(unquote(texts.get("ce-traceparent", "")), unquote(texts.get("ce-tracestate", "")))
    return of_event or trace_of(texts.get("traceparent"), texts.get("tracestate"))


class _Reading(NamedTuple):
    """What is the same for every record of a body."""

    now_ms: int
    nesting: int
    tenant: str
    origins: OriginTexts

    def event(self, record: dict[str, Any], sender: Frontend) -> Event:
        return event_of(record, self.now_ms, self.nesting, sender.order, self.origins[sender.name], self.tenant)


def _keep(made: Normalized, sender: Frontend, where: Location, parsed: Parsed, reading: _Reading) -> None:
    if isinstance(made, dict):  # nearly every record
        parsed.events.append(reading.event(made, sender))
    elif isinstance(made, Traced):
        first = len(parsed.events)
        _keep(made.made, sender, where, parsed, reading)
        parsed.events[first:] = _with_trace(parsed.events[first:], made.trace)
    elif isinstance(made, SnsConfirmation | EventGridValidation):
        if where is None or (where == (None, 0) and isinstance(made, EventGridValidation)):
            parsed.handshake = made
        else:  # only the service itself sends it, and always as the whole body
            parsed.ignored += 1
    elif made:
        # All or none: half of a rename would lose an object or add one.
        parsed.events.extend([reading.event(record, sender) for record in made])
    else:
        parsed.ignored += 1


def _too_large(event: Event, most: int) -> BadRecord:
    return BadRecord(
        "it",
        f"has {stored_size(event)} bytes in the outbox database, which takes at most {most}: "
        "send less in it, or raise max_allowed_packet of MySQL or MariaDB",
    )


def _describe_problem(problem: BadRecord, index: int, line: int, item: Item) -> tuple[str, str]:
    sender = _describe_sender(item)
    outer = " ".join(filter(None, (f"line {line}" if line else "", format_location(item[2]))))
    inner = "" if problem.field == "it" else problem.field
    at = f"Record {index}" + (f", at {outer}" if outer else "")
    return ".".join(filter(None, (outer, inner))), f"{at}{sender}: {problem.field} {problem.problem}."


def _describe_sender(item: Item) -> str:
    """Return who sent a record if that is nobody known: its `eventSource`, for a person to look for."""
    sender, value, _ = item
    return f", of {excerpt(value['eventSource'])}" if is_unknown(sender) and value.get("eventSource") else ""


def _items(
    body: minio_json.Encoded, headers: Mapping[str, str], context: Context, parsed: Parsed
) -> Iterator[tuple[int, Item]]:
    """Yield the records of the body's JSON values, each with its line from 1; 0 in a body of one value."""
    begins = _not_blank(body, 0)
    if begins is None:
        raise BadEvents("The body is empty; it must be JSON with at least one record.", offset=0)
    context.allowance.check_text(body)
    if s3_records.is_old_noobaa_test(body):
        parsed.ignored += 1
        return
    if is_sns_call(body):
        for item in _published(body, context, parsed):
            yield 0, item
        return
    long_numbers = minio_json.holds_long_numbers(body)
    # Check for undeclared lines first: finding out that a long body is not one value costs more.
    if _content_type(headers) in _LINES or _looks_like_lines(body, begins):
        yield from _lines(body, context, long_numbers)
        return
    try:
        value = minio_json.load(body, long_numbers=long_numbers)
    except minio_json.BadJson as problem:
        if seaweedfs.is_filer_change(bytes(body)):
            raise BadEvents(f"The body {FILER_WITHOUT_PATH}.", offset=problem.offset) from None
        raise BadEvents(f"The body is not JSON: at byte {problem.offset}, {problem}.", offset=problem.offset) from None
    for item in items(value, context):
        yield 0, item


def _published(body: minio_json.Encoded, context: Context, parsed: Parsed) -> Iterator[Item]:
    """Yield the records of the messages in a call of SNS."""
    parsed.batch = ()  # also a call that cannot be read is refused as a whole
    try:
        call = sns_call(body)
    except BadRecord as problem:
        yield REFUSED, problem, None
        return
    parsed.batch = call.batch
    for member in call.members:
        try:
            message = call.message(member, context.allowance)
        except BadRecord as problem:
            yield REFUSED, problem, None
        else:
            yield from items(message, context, (None, member))


def _content_type(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if name.lower() == "content-type":
            return value.partition(";")[0].strip().lower()
    return ""


def _not_blank(body: minio_json.Encoded, start: int) -> int | None:
    """Return where the next byte is that is no white space; in parts, between which other threads run."""
    for part in range(start, len(body), _PART):
        if found := _NOT_BLANK.search(body, part, part + _PART):
            return found.start()
    return None


def _looks_like_lines(body: minio_json.Encoded, begins: int) -> bool:
    """Return whether the first of several lines is a complete JSON value, and not the beginning of one."""
    ends = body.find(b"\n", begins)
    if ends < 0 or _not_blank(body, ends) is None:
        return False
    try:
        minio_json.load(body[begins:ends], long_numbers=False)
    except minio_json.BadJson:
        return False
    return True


def _lines(body: minio_json.Encoded, context: Context, long_numbers: bool) -> Iterator[tuple[int, Item]]:
    """Parse line by line, so that only one line's objects exist at a time; skip runs of blank lines at once."""
    number, start = 1, 0
    while start < len(body):
        if body[start] != _OBJECT:  # nearly every line begins with its record
            begins = _not_blank(body, start)
            if begins is None:
                return
            blank, start = start, max(start, body.rfind(b"\n", start, begins) + 1)
            number += body.count(b"\n", blank, start)
        ends = body.find(b"\n", start)
        ends = len(body) if ends < 0 else ends
        try:
            value = minio_json.load(body[start:ends], long_numbers=long_numbers)
        except minio_json.BadJson as problem:
            offset = start + problem.offset
            said = f"is not JSON: at byte {offset} of the body, {problem}"
            yield number, (REFUSED, BadRecord("it", said, offset), None)
        else:
            for item in items(value, context):
                yield number, item
            del value
        number, start = number + 1, ends + 1


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
        body = _unpacked_body(message.body, limits.written_bytes)
        headers = {name: message.headers[name] for name in HEADERS if name in message.headers}
        if is_filer_message(path := message.headers.get(KEY_HEADER, ""), body):
            body = webhook_body(path, body)
        origin = by_source(source, message.share, message.position) if source else UNKNOWN_ORIGIN
        parsed = parse(body, headers, now_ms=sent_at, limits=limits, sender=sender, tenant=tenant, origin=origin)
    except BadEvents as error:
        encoding = message.headers.get(ENCODING_HEADER, "").lower()
        is_unread = encoding not in _READ_ENCODINGS
        hint = f" Its content encoding is {encoding[:40]!r}; send gzip, or no encoding." if is_unread else ""
        return ReadMessage(message, problem=error.problem + hint)
    except Exception as error:  # noqa: BLE001 - a defect of the parser must not stop all that comes after it
        return ReadMessage(message, problem=f"it cannot be read, by a defect of Bucketwire: {type(error).__name__}")
    return ReadMessage(message, tuple(parsed.events))


def _unpacked_body(body: bytes, most: int) -> bytes:
    """Return a body without its compression, if it has one. Raises `BadEvents`."""
    if not body.startswith(_GZIP):
        return body
    try:
        return b"".join(unpacked(body, most))
    except UnpacksTooLong as error:
        raise BadEvents(f"The body begins as gzip does, and {error}: send it in parts.", 413) from None
    except NotUnpacked as error:
        raise BadEvents(f"The body begins as gzip does, and {error}.") from None
