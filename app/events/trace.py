"""Check and bound the trace context of events: W3C Trace Context (`traceparent`, `tracestate`).

It is stored as one text: `traceparent`, followed by a space and `tracestate` if there is one; "" without a trace. It
drops no trace: it forwards what it receives, or what follows it while traces are exported (`app.telemetry`).
"""

import re
from collections.abc import Iterable
from typing import Any

MAX_STATE_CHARACTERS = 512  # characters of `tracestate` that are forwarded; W3C allows no smaller limit (§3.3.1.5)
_MAX_MEMBERS, _LONG_MEMBER = 32, 128

_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII | re.DOTALL)
_MEMBER = re.compile(
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


def fields(trace: str) -> list[tuple[str, str]]:
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
    matches = [_MEMBER.fullmatch(member) for member in members]
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
