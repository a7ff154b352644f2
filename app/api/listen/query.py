"""What a listener asks for, read from the query of its request (reference §8)."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.api.s3.errors import S3Error
from app.config.arn import TargetId
from app.events.names import UnknownEventName, expand
from app.rules.model import EVERY_BUCKET, Rule
from app.rules.notification_xml import NO_EVENT

RESUME = "resume-after"
_LONGEST_FILTER = 1024
_LONGEST_PING = 24 * 3600
_EVENT_ID = re.compile(r"[0-9a-f]{32}")
_NOBODY = TargetId("listener", "_")


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """Which events, how often to say that there are none (seconds, 0: as MinIO did before 2023), and since when."""

    rule: Rule
    ping: int = 0
    resume_after: str = ""


def parse_query(bucket: str, query: Sequence[tuple[str, str]]) -> StreamQuery:
    """What the query asks for; no bucket means every bucket. Raises `S3Error`."""
    names = tuple(dict.fromkeys(value for name, value in query if name == "events"))
    for name in names:
        try:
            expand(name)
        except UnknownEventName:
            raise S3Error("InvalidArgument", f"{NO_EVENT}: {name[:80]}") from None
    rule = Rule(
        bucket=bucket or EVERY_BUCKET,
        events=names,
        target=_NOBODY,
        prefix=_filter("prefix", query),
        suffix=_filter("suffix", query),
    )
    return StreamQuery(rule, _ping(query), _resume(query))


def _resume(query: Sequence[tuple[str, str]]) -> str:
    value = _one(RESUME, query)
    if value and not _EVENT_ID.fullmatch(value):
        raise S3Error("InvalidArgument", f"{RESUME} must be the EventId of a line: 32 hexadecimal digits.")
    return value


def _filter(name: str, query: Sequence[tuple[str, str]]) -> str:
    value = _one(name, query)
    if any(segment in (".", "..") for segment in value.split("/")):
        raise S3Error("XMinioInvalidResourceName")
    if len(value.encode()) > _LONGEST_FILTER or "\\" in value:
        said = f"Size of filter rule value cannot exceed {_LONGEST_FILTER} bytes in UTF-8 representation, nor hold a \\"
        raise S3Error("InvalidArgument", said)
    return value


def _one(name: str, query: Sequence[tuple[str, str]]) -> str:
    values = [value for key, value in query if key == name]
    if len(values) > 1:
        raise S3Error("InvalidArgument", f"Cannot specify more than one {name}.")
    return values[0] if values else ""


def _ping(query: Sequence[tuple[str, str]]) -> int:
    value = _one("ping", query)
    if not value:
        return 0
    # MinIO's code, odd as it is (§8).
    if not (value.isascii() and value.isdigit() and len(value) < 6 and 1 <= int(value) <= _LONGEST_PING):
        said = f"ping must be a whole number of seconds from 1 to {_LONGEST_PING}."
        raise S3Error("AuthorizationQueryParametersError", said)
    return int(value)
