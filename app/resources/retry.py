"""Retries: the events that are tried again."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from app.config.arn import TargetId
from app.resources.dead_letter import FailedAttempt
from app.resources.declaration import (
    TARGET,
    TEXT,
    Arn,
    Columns,
    Limit,
    Query,
    Resource,
    SingleEventName,
    Time,
    about,
    list_of,
    object_path,
    short_target,
)

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
