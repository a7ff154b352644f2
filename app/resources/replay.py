"""Replays: retained events that are delivered to a target again."""

from collections.abc import Sequence
from typing import Annotated, ClassVar

from app.config.arn import TargetId
from app.resources.declaration import (
    MAX_NUMBER,
    TARGET,
    TEXT,
    TIME,
    Arn,
    Columns,
    Query,
    Resource,
    Time,
    about,
    short_target,
)
from app.resources.rule import event_names, unparsed

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
