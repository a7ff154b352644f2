"""Sources: their settings and states, and the messages that they have rejected."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from msgspec import UNSET, UnsetType

from app.config.declared_types import SOURCE_TYPES
from app.resources.declaration import (
    FLAG,
    MAX_NUMBER,
    After,
    Columns,
    Limit,
    Next,
    Query,
    Resource,
    Time,
    about,
    list_of,
    number,
)

SOURCE_STATES = ("running", "paused", "disabled", "failing", "waiting")


class SourceCounters(Resource):
    """What was taken from the queue, in total."""

    messages: int
    recorded: Annotated[int, about("events")]
    repeated: Annotated[int, about("events that were in the log already")]
    rejected: Annotated[int, about("messages without valid events, also those deleted or retried since")]


class BucketListing(Resource):
    """How far the listings of a watched bucket came, and what they found."""

    listed_at: Annotated[Time, about("when the last listing that was compared to its end began")]
    due_at: Annotated[Time, about("when it is listed next; null: at once")]
    objects: Annotated[int, about("of that listing")]
    skipped: Annotated[int, about("entries of it that no event can have: a key with U+0000, or too long")]
    pending: Annotated[int, about("differences that wait for the end of the grace")]
    listings: Annotated[int, about("in total, as are the following")]
    requests: int
    explained: Annotated[int, about("differences that events explain")]
    created: Annotated[int, about("objects that no event explains, each recorded as an event")]
    changed: Annotated[int, about("the same, of objects that were written again")]
    removed: Annotated[int, about("the same, of objects or versions that are gone")]
    to_approve: Annotated[int, about("removals that `source resume` approves; 0: none")]


class Source(Resource):
    """A source."""

    columns: ClassVar[Columns] = {
        "source": lambda source: f"{source['type']}:{source['name']}", "state": "state", "lag": "lag",
        "events": lambda source: source["counters"]["recorded"], "rejected": "rejected_messages",
        "last answer": "pulled_at",
        "reason": lambda source: "; ".join(filter(None, (source["reason"], source["notice"]))),
    }  # fmt: skip

    type: Annotated[str, about("of the queue that it is", enum=list(SOURCE_TYPES))]
    name: str
    state: Annotated[str, about("whether it is pulled from", enum=list(SOURCE_STATES))]
    reason: Annotated[str, about("of this state; of one that runs: how its queue may lose messages unnoticed")]
    origin: Annotated[str, about("where it is defined", enum=["environment", "stored"])]
    settings: Annotated[Mapping[str, str], about("secrets are *redacted*")]
    counters: SourceCounters
    rejected_messages: Annotated[int, about("that are kept")]
    lag: Annotated[
        int | None, about("messages that wait in the queue, or undecided differences of a bucket; null: unknown")
    ]
    pulled_at: Annotated[Time, about("when the queue last answered")]
    error_at: Annotated[Time, about("when it failed last, while it is failing")]
    resume_at: Annotated[Time, about("when it is tried again, while it is failing")]
    notice: Annotated[str, about("which messages were lost before they were pulled, the last time that any were")]
    notice_at: Time
    holder: Annotated[str | None, about("the worker process that pulls from it, as HOST:PID")]
    positions: Annotated[
        Mapping[str, str] | UnsetType, about("up to where each share of the queue is recorded; not in a list")
    ] = UNSET
    listing: Annotated[BucketListing | UnsetType, about("of a watched bucket")] = UNSET


class Sources(Resource):
    """Every source."""

    sources: list[Source]


class Incoming(Resource):
    """What came in by one way: by all requests, or by a source."""

    kind: Annotated[str, about("what the events came by", enum=["request", "source"])]
    source: Annotated[str | UnsetType, about("the source, as TYPE:NAME")] = UNSET
    recorded: Annotated[int, about("events, in total")]
    rate: Annotated[float | None, about("events a second, over the last 20 seconds; null: unknown")]


class Intake(Resource):
    """What came in, by each way."""

    intake: list[Incoming]


class SourceRemoveQuery(Query):
    """How to remove a source."""

    force: Annotated[bool, FLAG("also delete its rejected messages")] = False


class SourceRemoved(Resource):
    """A source is removed."""

    rejected_messages: Annotated[int, about("that were deleted with it")]


class RejectedMessage(Resource):
    """A message that had no valid events."""

    columns: ClassVar[Columns] = {
        "id": "id", "share": "share", "position": "position", "bytes": "size", "rejected": "at", "reason": "reason",
    }  # fmt: skip

    id: int
    share: Annotated[str, about("of the queue, such as a partition of Kafka")]
    position: Annotated[str, about("after the message")]
    at: Annotated[Time, about("when it was rejected")]
    reason: str
    size: Annotated[int, about("bytes of its body")]


class RejectedBody(Resource):
    """A rejected message as it was pulled."""

    id: int
    headers: Annotated[Mapping[str, str], about("those that it had in the queue")]
    body: Annotated[str | None, about("null: it is not text")]
    base64: Annotated[str, about("the same bytes, whatever they are")]


class RejectedPage(Resource):
    """Rejected messages, the oldest first."""

    rejected: list[RejectedMessage]
    next: Next


class RejectedQuery(Query):
    """A page of rejected messages."""

    limit: Limit = 100
    after: After = 0


class RejectedChoice(Query):
    """Which rejected messages."""

    ids: Annotated[Sequence[int], list_of(number(1, MAX_NUMBER), "write [17, 18]")("numbers")] = ()


class RejectedDeleted(Resource):
    """How many are deleted."""

    deleted: int


class RejectedRetried(Resource):
    """The events of a message that was rejected before are recorded."""

    recorded: int
    repeated: int
