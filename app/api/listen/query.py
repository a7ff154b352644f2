"""Parse a listener's query parameters (reference §8)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.api.listen.wire_format import JSON_LINES, JsonLines
from app.api.s3.errors import S3Error
from app.config.arn import TargetId
from app.events.model import EVENT_ID
from app.events.names import UnknownEventName, expand
from app.rules.model import EVERY_BUCKET, Rule
from app.rules.notification_xml import NO_EVENT

RESUME = "resume-after"
MAX_FILTER_BYTES = 1024
_MAX_PING_SECONDS = 24 * 3600
NO_TARGET = TargetId("listener", "_")  # a rule needs a target; only its filter is used


@dataclass(frozen=True, slots=True)
class StreamQuery:
    """The requested events, the ping interval (seconds; 0: as MinIO before 2023), and the event to resume after.

    With `target_id` (a row's id) only events for that target. With `resume_bucket` that event has to be of this bucket.
    With `seal` the ids of events that the listener does not get are sealed with it, to resume after them without
    knowing them. `is_allowed` returns whether the listener may still listen; it is called every few seconds, in the
    thread that reads the log. `holder` is the limited token that has only a share of the streams; "" for no limit.
    """

    rule: Rule
    ping: int = 0
    resume_after: str = ""
    wire_format: JsonLines = JSON_LINES
    target_id: int | None = None
    resume_bucket: str = ""
    seal: Callable[[str], str] | None = None
    is_allowed: Callable[[], bool] | None = None
    holder: str = ""


def parse_query(bucket: str, query: Sequence[tuple[str, str]]) -> StreamQuery:
    """Parse the query; no bucket means every bucket. Raises `S3Error`."""
    names = tuple(dict.fromkeys(value for name, value in query if name == "events"))
    for name in names:
        try:
            expand(name)
        except UnknownEventName:
            raise S3Error("InvalidArgument", f"{NO_EVENT}: {name[:80]}") from None
    rule = Rule(
        bucket=bucket or EVERY_BUCKET,
        events=names,
        target=NO_TARGET,
        prefix=_filter("prefix", query),
        suffix=_filter("suffix", query),
    )
    return StreamQuery(rule, _ping(query), _resume(query))


def _resume(query: Sequence[tuple[str, str]]) -> str:
    value = _single_value(RESUME, query)
    if value and not EVENT_ID.fullmatch(value):
        raise S3Error("InvalidArgument", f"{RESUME} must be the EventId of a line: 32 hexadecimal digits.")
    return value


def _filter(name: str, query: Sequence[tuple[str, str]]) -> str:
    value = _single_value(name, query)
    if any(segment in (".", "..") for segment in value.split("/")):
        raise S3Error("XMinioInvalidResourceName")
    if len(value.encode()) > MAX_FILTER_BYTES or "\\" in value:
        message = (
            f"Size of filter rule value cannot exceed {MAX_FILTER_BYTES} bytes in UTF-8 representation, "
            "and it cannot contain a \\"
        )
        raise S3Error("InvalidArgument", message)
    return value


def _single_value(name: str, query: Sequence[tuple[str, str]]) -> str:
    values = [value for key, value in query if key == name]
    if len(values) > 1:
        raise S3Error("InvalidArgument", f"Cannot specify more than one {name}.")
    return values[0] if values else ""


def _ping(query: Sequence[tuple[str, str]]) -> int:
    value = _single_value("ping", query)
    if not value:
        return 0
    # MinIO's error code, although it is unusual (§8).
    if not (value.isascii() and value.isdigit() and len(value) < 6 and 1 <= int(value) <= _MAX_PING_SECONDS):
        message = f"ping must be a whole number of seconds from 1 to {_MAX_PING_SECONDS}."
        raise S3Error("AuthorizationQueryParametersError", message)
    return int(value)
