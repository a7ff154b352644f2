"""The trace context that events come with: W3C Trace Context (`traceparent`, `tracestate`), checked and bounded.

It is kept as one text, `traceparent` and, behind a space, `tracestate` where there is one; "" where there is none.
Nothing here begins a trace, takes part in one or drops one: what came in goes out.
"""

import re
from collections.abc import Iterable
from typing import Any

MOST_STATE = 512  # characters of `tracestate` that go on; no fewer may be (W3C, §3.3.1.5)
_MOST_MEMBERS, _LONG_MEMBER = 32, 128

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_MEMBER = re.compile(
    r"([a-z0-9][a-z0-9_\-*/@]{0,255})=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_KNOWN_FLAGS = 0x03  # sampled, random
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def trace_of(parent: Any, state: Any = None) -> str:
    """The trace context of a `traceparent` and a `tracestate` as they came, of whatever kind and content.

    "" where the first is not valid, and then nobody looks at the second; a `tracestate` that is not valid is left out,
    and one that is too long loses its longest members first and then its last (W3C, §3.3.1.5).
    """
    kept = _parent(parent.strip(" \t")) if isinstance(parent, str) else ""
    if not kept or not isinstance(state, str):
        return kept
    shortened = _state(state)
    return f"{kept} {shortened}" if shortened else kept


def fields(trace: str) -> list[tuple[str, str]]:
    """The fields by which a protocol with headers hands a trace context on; none for ""."""
    if not trace:
        return []
    parent, _, state = trace.partition(" ")
    return [("traceparent", parent), ("tracestate", state)] if state else [("traceparent", parent)]


def _parent(text: str) -> str:
    found = _PARENT.fullmatch(text)
    if found is None:
        return ""
    version, trace, span, flags, more = found.groups()
    if version == "ff" or trace == _NO_TRACE or span == _NO_SPAN or (version == "00" and more is not None):
        return ""
    if version == "00":
        return text
    # A later version: what the one that we know says of it, and no flag that may mean something else there.
    return f"00-{trace}-{span}-{int(flags, 16) & _KNOWN_FLAGS:02x}"


def _state(text: str) -> str:
    members = [member for member in (each.strip(" \t") for each in text.split(",")) if member]
    matched = [_MEMBER.fullmatch(member) for member in members]
    keys = {each[1] for each in matched if each is not None}
    if len(members) > _MOST_MEMBERS or len(keys) < len(members):  # one is not valid, or a key comes twice
        return ""
    while _length(members) > MOST_STATE and (long := [each for each in members if len(each) > _LONG_MEMBER]):
        members.remove(long[-1])
    while _length(members) > MOST_STATE:
        members.pop()
    return ",".join(members)


def _length(members: Iterable[str]) -> int:
    return sum(len(member) + 1 for member in members) - 1
