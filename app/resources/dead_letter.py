"""Dead letters: events that are no longer retried (a target's dead letter queue)."""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

from app.config.arn import TargetId
from app.resources.declaration import (
    MAX_NUMBER,
    TARGET,
    TEXT,
    TIME,
    After,
    Arn,
    Columns,
    Json,
    Limit,
    Next,
    Query,
    Resource,
    SingleEventName,
    Time,
    about,
    format_time,
    list_of,
    number,
    object_path,
    short_target,
)

MAX_COUNTED, MAX_REASONS = 20_000, 200  # of the reasons: dead letters that are counted, and rows


class FailedAttempt(Resource):
    """An attempt that failed, with the target's message."""

    at: Time
    reason: str


def failed_attempts(history: Iterable[tuple[int, str]]) -> list[FailedAttempt]:
    """Return the attempts of a history, which has the time (ms) and the reason of each."""
    return [FailedAttempt(at=format_time(at), reason=reason) for at, reason in history]


class DeadLetter(Resource):
    """An event that is no longer retried."""

    columns: ClassVar[Columns] = {
        "id": "id", "target": short_target, "event": "event", "object": object_path, "attempts": "attempts",
        "last attempt": "last_tried", "reason": "reason",
    }  # fmt: skip

    id: int
    target: Arn
    event_id: str
    event: SingleEventName
    bucket: str
    key: str
    reason: Annotated[str, about("of the last attempt")]
    attempts: int
    first_tried: Time
    last_tried: Time
    history: Annotated[list[FailedAttempt], about("the last ten attempts")]
    record: Json


class DeadLetterPage(Resource):
    """A page of dead letters. It may have fewer than asked for, or none, and still a next page."""

    dead_letters: list[DeadLetter]
    next: Next


class DeadLetterFilter(Query):
    """Which dead letters; what is not given selects any. Times are milliseconds since 1970."""

    ids: Annotated[Sequence[int], list_of(number(1, MAX_NUMBER), "write [17, 18]")("numbers")] = ()
    target: Annotated[TargetId | None, TARGET] = None
    bucket: Annotated[str, TEXT("the object's bucket")] = ""
    prefix: Annotated[str, TEXT("the key's prefix")] = ""
    reason: Annotated[str, TEXT("a part of the reason")] = ""
    since: Annotated[int, TIME("the last attempt was at or after this time")] = 0
    before: Annotated[int, TIME("the last attempt was before this time")] = MAX_NUMBER


class DeadLetterQuery(DeadLetterFilter):
    """A page of the dead letters that a filter selects."""

    limit: Limit = 100
    after: After = 0


class DeadLetterReason(Resource):
    """How many dead letters of a target have the same reason."""

    target: Arn
    reason: str
    dead_letters: int
    last_tried: Annotated[Time, about("when the last one of them was tried last")]


class DeadLetterReasons(Resource):
    """The reasons of the newest dead letters, the most frequent first."""

    reasons: list[DeadLetterReason]
    looked_at: Annotated[int, about("how many dead letters were counted, the newest")]
    complete: Annotated[bool, about("whether these are all")]


class ReasonsQuery(Query):
    """Which dead letters to count."""

    target: Annotated[TargetId | None, TARGET] = None
    since: Annotated[int, TIME("the last attempt was at or after this time")] = 0
    before: Annotated[int, TIME("the last attempt was before this time")] = MAX_NUMBER


class Replayed(Resource):
    """How many are delivered again."""

    replayed: int


class Purged(Resource):
    """How many are deleted."""

    purged: int
