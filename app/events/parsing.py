"""Turn the body of a request, from whichever frontend, into events, or say exactly what is wrong with it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from app.events import minio_json
from app.events.errors import BadEvents, BadRecord
from app.events.frontends import Item, Location, Normalized, SnsConfirmation, Traced, format_location, items
from app.events.model import Event
from app.events.normalize import event_of
from app.events.stored_size import UNLIMITED, is_larger, stored_size
from app.events.trace import trace_of

__all__ = ["BadEvents", "Limits", "Parsed", "Refused", "SnsConfirmation", "parse"]

_LINES = frozenset(f"application/{kind}" for kind in ("x-ndjson", "ndjson", "jsonl", "x-jsonlines", "jsonlines"))

_TRACE = frozenset(("traceparent", "tracestate", "ce-traceparent", "ce-tracestate"))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a body may hold at most: `records` in all, and objects and arrays in each other within one record.

    `event_bytes` is the most that an event may have where it is stored (`app.events.stored_size`).
    """

    records: int = 10_000
    nesting: int = 32
    event_bytes: int = UNLIMITED


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that was left out: its place among the body's records from 0, the path to the fault, a sentence."""

    index: int
    path: str
    problem: str


@dataclass(slots=True)
class Parsed:
    """What a body held. `ignored` counts what says nothing of an object: test messages, folders, files in no bucket."""

    events: list[Event] = field(default_factory=list)
    ignored: int = 0
    refused: list[Refused] = field(default_factory=list)
    confirmation: SnsConfirmation | None = None


def parse(
    body: bytes, headers: Mapping[str, str], *, now_ms: int, limits: Limits = Limits(), partial: bool = False
) -> Parsed:
    """The events of a body, in its order; what is in it twice is returned twice.

    The events have the trace context of the request, or of the CloudEvent that they came in, where that is valid.
    The body is one JSON value or several in lines, recognised by its content and by `Content-Type`; it must have been
    decompressed. `now_ms` (milliseconds since 1970) is the time of events that have none of their own. Raises
    `BadEvents`, and only that; with `partial` a record that cannot be taken is left out and told of in `refused`, but
    a body that is no JSON at all or holds too many records is still refused as a whole.
    """
    parsed = Parsed()
    index = 0
    for line, found in _documents(body, headers):
        if index + len(found) > limits.records:
            raise _too_many(limits.records)
        for item in found:
            first = len(parsed.events)
            try:
                _take(item, parsed, now_ms, limits.nesting)
                _check_size(parsed.events[first:], limits.event_bytes)
            except BadRecord as problem:
                del parsed.events[first:]
                path, sentence = _told(problem, index, line, item)
                if not partial:
                    raise BadEvents(sentence, index=index, field=path, offset=problem.offset) from None
                parsed.refused.append(Refused(index, path, sentence))
            index += 1
    if trace := _trace(headers):
        parsed.events = _with_trace(parsed.events, trace)
    return parsed


def _with_trace(events: Iterable[Event], trace: str) -> list[Event]:
    """The events, with this trace context where they have none of their own."""
    return [event if event.trace else event._replace(trace=trace) for event in events]


def _trace(headers: Mapping[str, str]) -> str:
    """The trace context of a request: that of the CloudEvent in it (binary mode), else its own."""
    found = {lowered: value for name, value in headers.items() if (lowered := name.lower()) in _TRACE}
    if not found:
        return ""
    of_event = trace_of(found.get("ce-traceparent"), found.get("ce-tracestate"))
    return of_event or trace_of(found.get("traceparent"), found.get("tracestate"))


def _take(item: Item, parsed: Parsed, now_ms: int, nesting: int) -> None:
    normalise, thing, where = item
    made = normalise(thing)
    if isinstance(made, dict):  # nearly every record
        parsed.events.append(event_of(made, now_ms, nesting))
    else:
        _keep(made, where, parsed, now_ms, nesting)


def _keep(made: Normalized, where: Location, parsed: Parsed, now_ms: int, nesting: int) -> None:
    if isinstance(made, dict):
        parsed.events.append(event_of(made, now_ms, nesting))
    elif isinstance(made, Traced):
        first = len(parsed.events)
        _keep(made.made, where, parsed, now_ms, nesting)
        parsed.events[first:] = _with_trace(parsed.events[first:], made.trace)
    elif isinstance(made, SnsConfirmation):
        if where is None:
            parsed.confirmation = made
        else:  # only SNS itself asks, and it sends nothing else along
            parsed.ignored += 1
    elif made:
        # All or none: half of a rename would be a loss or an object too many.
        parsed.events.extend([event_of(record, now_ms, nesting) for record in made])
    else:
        parsed.ignored += 1


def _check_size(events: Iterable[Event], most: int) -> None:
    for event in events:
        if is_larger(event, most):
            raise BadRecord(
                "it",
                f"has {stored_size(event)} bytes in the outbox database, which takes at most {most}: "
                "send less in it, or raise max_allowed_packet of MySQL or MariaDB",
            )


def _too_many(most: int) -> BadEvents:
    return BadEvents(f"The body holds more than {most} records, the most for one request: send it in parts.", 413)


def _told(problem: BadRecord, index: int, line: int, item: Item) -> tuple[str, str]:
    outer = " ".join(filter(None, (f"line {line}" if line else "", format_location(item[2]))))
    inner = "" if problem.field == "it" else problem.field
    at = f"Record {index}" + (f", at {outer}" if outer else "")
    return ".".join(filter(None, (outer, inner))), f"{at}: {problem.field} {problem.problem}."


def _documents(body: bytes, headers: Mapping[str, str]) -> Iterable[tuple[int, list[Item]]]:
    """The JSON values of the body: one, at line 0, or those of its lines, counted from 1."""
    if not body.strip():
        raise BadEvents("The body is empty; it must be JSON with at least one record.", offset=0)
    long_numbers = minio_json.holds_long_numbers(body)
    # Lines that nobody declared are looked for first: to find that a long body is not one value costs more.
    if _content_type(headers) in _LINES or _looks_like_lines(body):
        return _lines(body, long_numbers)
    try:
        return [(0, items(minio_json.load(body, long_numbers=long_numbers)))]
    except minio_json.BadJson as problem:
        raise BadEvents(f"The body is not JSON: at byte {problem.offset}, {problem}.", offset=problem.offset) from None


def _content_type(headers: Mapping[str, str]) -> str:
    for name, value in headers.items():
        if name.lower() == "content-type":
            return value.partition(";")[0].strip().lower()
    return ""


def _looks_like_lines(body: bytes) -> bool:
    """Whether the first of several lines is a JSON value of its own, and not the beginning of one."""
    first, _, rest = body.strip().partition(b"\n")
    if not rest:
        return False
    try:
        minio_json.load(first, long_numbers=False)
    except minio_json.BadJson:
        return False
    return True


def _lines(body: bytes, long_numbers: bool) -> Iterator[tuple[int, list[Item]]]:
    """Line by line, so that no more than one line's objects live at a time."""
    start = 0
    for number, line in enumerate(body.split(b"\n"), 1):
        if line and not line.isspace():
            try:
                found = items(minio_json.load(line, long_numbers=long_numbers))
            except minio_json.BadJson as problem:
                offset = start + problem.offset
                said = f"is not JSON: at byte {offset} of the body, {problem}"
                found = [(_unreadable, BadRecord("it", said, offset), None)]
            yield number, found
        start += len(line) + 1


def _unreadable(problem: BadRecord) -> tuple[()]:
    raise problem
