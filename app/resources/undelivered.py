"""Dead letters, which are no longer retried, retries, and replays, which deliver retained events again."""

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
from app.resources.rule import event_names, unparsed

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


MAX_IDS = 1000
_WAITS = "waits for the target"
_IDS = list_of(TEXT, f"give at most {MAX_IDS} ids of events", problem="is not a list of ids", most=MAX_IDS)


class Retry(Resource):
    """The oldest undelivered event of an object, which has failed; later events of the object wait behind it."""

    columns: ClassVar[Columns] = {
        "target": short_target, "object": object_path, "attempts": "attempts",
        "next attempt": lambda retry: retry["next_try"] or "now", "event id": "event_id",
        "reason": lambda retry: retry["history"][-1]["reason"] if retry["history"] else _WAITS,
    }  # fmt: skip

    target: Arn
    event_id: str
    event: SingleEventName
    bucket: str
    key: str
    attempts: Annotated[int, about("0: the target was unavailable for it")]
    first_tried: Time
    last_tried: Time
    next_try: Annotated[Time, about("null: due at once")]
    history: Annotated[list[FailedAttempt], about("the last attempts")]


class RetryPage(Resource):
    """A page of retries. It may have fewer than asked for, or none, and still a next page."""

    retries: list[Retry]
    next: Annotated[str | None, about("the `after` of the next page; null: there is none")]


class RetryFilter(Query):
    """Which retries; what is not given selects any."""

    ids: Annotated[
        Sequence[str],
        list_of(TEXT, f"give at most {MAX_IDS} ids of events", problem="is not a list of ids", most=MAX_IDS)(
            "ids of events"
        ),
    ] = ()
    target: Annotated[TargetId | None, TARGET] = None
    bucket: Annotated[str, TEXT("the object's bucket")] = ""
    prefix: Annotated[str, TEXT("the key's prefix")] = ""


class RetryQuery(RetryFilter):
    """A page of the retries that a filter selects."""

    limit: Limit = 100
    after: Annotated[str, TEXT("the `next` of the previous page")] = ""


class Due(Resource):
    """How many are due at once."""

    due: int


class GivenUp(Resource):
    """How many became dead letters."""

    given_up: int


_EVENTS = event_names(
    "event names, with wildcards such as `s3:ObjectCreated:*`; none: every event", type=["array", "null"], maxItems=1000
)


class Replay(Resource):
    """A replay and how far it is."""

    columns: ClassVar[Columns] = {
        "replay": "id", "target": short_target, "begun": "created_at", "events": "replayed",
        "progress": lambda replay: f"{int(replay['progress'] * 100)} %", "done": "finished",
    }  # fmt: skip

    id: int
    target: Arn
    since: Time
    before: Time
    bucket: str
    prefix: str
    events: list[str]
    created_at: Time
    replayed: Annotated[int, about("events delivered, superseded, parked or made dead letters so far")]
    progress: Annotated[float, about("the share of the log that it has passed", minimum=0, maximum=1)]
    finished: Annotated[bool, about("true also for a cancelled replay")]
    cancelled_at: Time


class Replays(Resource):
    """Every replay, the newest first."""

    replays: list[Replay]


class ReplaySelection(Query):
    """Which retained events to deliver again."""

    since: Annotated[int, TIME("received at or after")] = 0
    before: Annotated[int, TIME("received before")] = MAX_NUMBER
    bucket: Annotated[str, TEXT("the object's bucket")] = ""
    prefix: Annotated[str, TEXT("the key's prefix")] = ""
    events: Annotated[Sequence[str], _EVENTS] = ()


class NewReplay(ReplaySelection):
    """A replay to begin: needs a selection, or `all`."""

    target: Annotated[TargetId, TARGET]
    all: Annotated[object, unparsed({"type": "boolean"}, "required without a selection")] = None
