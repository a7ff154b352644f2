"""The event: one normalized record of a bucket notification, with its id, by what it came, and its trace context.

An event came by a request with some token, or by a source at some position of its queue: its origin. It is stored as a
text with each event, from which a read makes an `Origin` again.

The trace context (W3C Trace Context: `traceparent`, `tracestate`) is stored as one text: `traceparent`, followed by a
space and `tracestate` if there is one; "" without a trace. No trace is dropped: what is received is forwarded, or what
follows it while traces are exported (`app.telemetry`).
"""

import enum
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

EVENT_ID = re.compile(r"[0-9a-f]{32}")


class Effect(enum.Enum):
    """The effect of an event on a namespace row; workers set it for each target, it is `NONE` until then."""

    NONE = "none"
    UPSERT = "upsert"
    REMOVE = "remove"
    REMOVE_VERSION = "remove version"  # only if the row has that version


class Event(NamedTuple):
    """One record. `record` is its JSON as MinIO would encode it (§1.5); `time` is milliseconds since 1970.

    `sequencer` orders the object's events (`app.events.order`); it need not be the one in the record.

    `trace` is the trace context that came with it, as `trace_of` writes it; "" without one. It describes how
    the event was sent, not what happened, so it is not part of the `id`. Neither is `origin`: by which request or
    source it came, as `Origin.text` writes it; "" if nobody knows.

    A tuple, because one is created for each received event and for each delivery: a frozen dataclass takes 1.5 µs
    longer, a tenth of the cost of an event.
    """

    id: str
    name: str
    bucket: str
    key: str
    version: str
    sequencer: str
    time: int
    record: str
    effect: Effect = Effect.NONE
    trace: str = ""
    origin: str = ""

    @property
    def path(self) -> str:
        """Bucket, `/` and decoded key: the `Key` of MinIO's envelope and the key of a namespace row (§1.6)."""
        return f"{self.bucket}/{self.key}"


_MAX_CHARACTERS = 600  # of the outbox's column
_SOURCE_PARTS = 5
FOUND_BY_LISTING = "listing"  # as the sender, and the share, of what a source has found by listing a bucket


class Origin(NamedTuple):
    """By what an event came; `kind` is `request` or `source`, or "" if nobody knows.

    `name` is that of the request's token, "" without one, or the source as TYPE:NAME. `frontend` is the kind of sender,
    as it was recognised or named; "" until it is known. `position` is the one after the message in the `share` of the
    source's queue, both "" if the queue has no positions. What a listing has found has the time of that listing.
    """

    kind: str
    name: str = ""
    frontend: str = ""
    share: str = ""
    position: str = ""

    def text(self, frontend: str) -> str:
        """Return what is stored with an event of this frontend."""
        if not self.kind:
            return ""
        if not self.position:
            return f"{self.kind} {self.name} {frontend}"
        # The share is last, because it alone may contain spaces.
        return f"{self.kind} {self.name} {frontend} {self.position} {self.share}"[:_MAX_CHARACTERS]


class OriginTexts(dict[str, str]):
    """The texts of an origin by frontend. Each is made once for a body: every event looks one up."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self._origin = origin

    def __missing__(self, frontend: str) -> str:
        """Make the text."""
        text = self[frontend] = self._origin.text(frontend)
        return text


UNKNOWN_ORIGIN = Origin("")


def is_posted(events: Sequence[Event]) -> bool:
    """Return whether the events of one request or message came by a request: all of them by the same."""
    return bool(events) and events[0].origin.startswith("request ")


def by_request(token: str) -> Origin:
    """Return the origin of what is posted with a token of this name; "" without one."""
    return Origin("request", token)


def by_source(source: str, share: str, position: str) -> Origin:
    """Return the origin of a message that a source, as TYPE:NAME, has pulled."""
    return Origin("source", source, share=share, position=position)


def by_listing(source: str, began: str) -> str:
    """Return what is stored with an event that a source has found by a listing, which began at that time."""
    return Origin("source", source, share=FOUND_BY_LISTING, position=began).text(FOUND_BY_LISTING)


def origin_of(text: str) -> Origin:
    """Return the origin from what is stored with an event; `UNKNOWN` of a text that this version does not know."""
    parts = text.split(" ", _SOURCE_PARTS - 1)
    if parts[0] not in ("request", "source") or len(parts) not in (3, _SOURCE_PARTS):
        return UNKNOWN_ORIGIN
    kind, name, frontend, position, share = (*parts, "", "")[:_SOURCE_PARTS]
    return Origin(kind, name, frontend, share, position)


MAX_STATE_CHARACTERS = 512  # characters of `tracestate` that are forwarded; W3C allows no smaller limit (§3.3.1.5)
_MAX_MEMBERS, _LONG_MEMBER = 32, 128

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_STATE_MEMBER = re.compile(
    r"([a-z0-9][a-z0-9_\-*/@]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_KNOWN_FLAGS = 0x03  # sampled, random
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def trace_of(parent: Any, state: Any = None) -> str:
    """Return the trace context of a received `traceparent` and `tracestate`, of any type and content.

    It is "" if `traceparent` is invalid. An invalid `tracestate` is left out; one that is too long loses first its
    longest members and then its last ones (W3C, §3.3.1.5).
    """
    valid_parent = _check_parent(parent.strip(" \t")) if isinstance(parent, str) else ""
    if not valid_parent or not isinstance(state, str):
        return valid_parent
    shortened = _shorten_state(state)
    return f"{valid_parent} {shortened}" if shortened else valid_parent


def trace_fields(trace: str) -> list[tuple[str, str]]:
    """Return the header fields that forward a trace context; none for ""."""
    if not trace:
        return []
    parent, _, state = trace.partition(" ")
    return [("traceparent", parent), ("tracestate", state)] if state else [("traceparent", parent)]


def _check_parent(text: str) -> str:
    match = _PARENT.fullmatch(text)
    if match is None:
        return ""
    version, trace, span, flags, more = match.groups()
    if version == "ff" or trace == _NO_TRACE or span == _NO_SPAN or (version == "00" and more is not None):
        return ""
    if version == "00":
        return text
    # A later version is forwarded as version 00, without flags that may have another meaning there.
    return f"00-{trace}-{span}-{int(flags, 16) & _KNOWN_FLAGS:02x}"


def _shorten_state(text: str) -> str:
    members = [member for member in (part.strip(" \t") for part in text.split(",")) if member]
    matches = [_STATE_MEMBER.fullmatch(member) for member in members]
    keys = {match[1] for match in matches if match is not None}
    if len(members) > _MAX_MEMBERS or len(keys) < len(members):  # a member is invalid, or a key occurs twice
        return ""
    while _length(members) > MAX_STATE_CHARACTERS and (
        long := [member for member in members if len(member) > _LONG_MEMBER]
    ):
        members.remove(long[-1])
    while _length(members) > MAX_STATE_CHARACTERS:
        members.pop()
    return ",".join(members)


def _length(members: Iterable[str]) -> int:
    return sum(len(member) + 1 for member in members) - 1
