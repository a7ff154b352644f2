"""Events of the log, their delivery states and the recorded attempts."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from msgspec import UNSET, UnsetType

from app.config.arn import TargetId
from app.events.frontends import S3_FRONTENDS
from app.events.frontends.s3_records import GUESSED
from app.events.model import FOUND_BY_LISTING
from app.resources.declaration import (
    FLAG,
    MAX_NUMBER,
    TARGET,
    TEXT,
    TIME,
    Arn,
    Columns,
    Json,
    Query,
    Resource,
    SingleEventName,
    Time,
    about,
    choice,
    list_of,
    number,
)
from app.resources.undelivered import FailedAttempt

STATES = ("pending", "parked", "dead", "settled", "discarded")
OUTCOMES = ("delivered", "superseded", "unchanged", "failed", "rejected", "unavailable")
MAX_HISTORY = 10_000  # events of an object on a page
_NAMES = list_of(TEXT, "write s3:ObjectCreated:*")("event names, with wildcards such as s3:ObjectCreated:*")
_LIMIT = number(1, MAX_HISTORY)(
    "the most events to return; 1,000 of a history unless given, 100 of a search (at most 1,000)"
)
_GUESS = "sender unknown, whose key can be read in two ways and was decoded: name the sender"


class Attempt(Resource):
    """A recorded attempt; the record is bounded."""

    at: Annotated[Time, about("when it was settled")]
    outcome: Annotated[str, about("what became of it", enum=list(OUTCOMES))]
    attempt: Annotated[int | None, about("its number, if it counts as one")]
    events: Annotated[int, about("how many had this outcome in the same call")]
    duration: Annotated[float, about("seconds that the target took for the call")]
    replay: Annotated[int | None, about("the number of the replay that made it")]
    reason: str


class HttpMessage(Resource):
    """A request or an answer, shortened, with `*redacted*` in place of what may be a secret."""

    line: Annotated[str, about("without the path, which may be a secret")]
    headers: Annotated[Mapping[str, str], about("of the first ones 1,024 bytes")]
    body: Annotated[str, about("its first 1,024 bytes")]
    size: Annotated[int, about("bytes of the body; of an answer, those that were read")]


class Exchange(Resource):
    """A request that carried an event, and the answer to it."""

    request: HttpMessage
    response: Annotated[HttpMessage | None, about("null: there was no answer")] = None
    at: Annotated[Time, about("when the attempt was settled; later ones may have had no request")] = None


class DeliveryState(Resource):
    """Where an event stands at a target. Of one event, also the attempts at it."""

    target: Arn
    state: Annotated[str, about("`discarded`: its queue was full, so it never got it", enum=list(STATES))]
    reason: Annotated[str, about("of the last attempt, if it is parked or dead; or why it was discarded")]
    attempts: Annotated[int | UnsetType, about("of one event: attempts that failed, while it is parked or dead")] = (
        UNSET
    )
    history: Annotated[
        list[FailedAttempt] | UnsetType, about("of one event: the last ten attempts, while it is parked or dead")
    ] = UNSET
    waits: Annotated[bool | UnsetType, about("of one event: it is parked behind an earlier event of its object")] = (
        UNSET
    )
    next_try: Annotated[Time | UnsetType, about("of one event: null for one that is due, waits, or is not parked")] = (
        UNSET
    )
    timeline: Annotated[
        list[Attempt] | UnsetType, about("of one event: the recorded attempts, oldest first; the record is bounded")
    ] = UNSET
    exchange: Annotated[
        Exchange | UnsetType | None,
        about(
            "of one event: the last recorded attempt that failed and had a request; null: there is none, or the target"
            " has no requests"
        ),
    ] = UNSET


class Origin(Resource):
    """By what an event came. A token that is limited to buckets sees only `kind` and `frontend`."""

    kind: Annotated[str, about("a request that posted it, or a source that pulled it", enum=["request", "source"])]
    frontend: Annotated[
        str, about("the kind of sender, as it was recognised or named; `unknown-encoding`: its key is a guess")
    ]
    token: Annotated[str | UnsetType, about("the name of the request's token, if it had one")] = UNSET
    source: Annotated[str | UnsetType, about("the source, as TYPE:NAME")] = UNSET
    share: Annotated[str | UnsetType, about("of the source's queue, such as a partition of Kafka")] = UNSET
    position: Annotated[str | UnsetType, about("after the message, if the queue has positions")] = UNSET


def describe_origin(origin: Mapping[str, str]) -> str:
    """Return the origin of an answer in a few words."""
    by = f"source {origin['source']}" if "source" in origin else origin["kind"]
    if origin["frontend"] == FOUND_BY_LISTING:
        return f"{by}, found by listing" + (f" at {origin['position']}" if "position" in origin else "")
    with_token = f"token {origin['token']}" if "token" in origin else ""
    place = f"position {origin['position']}" if "position" in origin else ""
    share = f"of share {origin['share']}" if "share" in origin else ""
    sender = _GUESS if origin["frontend"] == GUESSED else f"sender {origin['frontend']}"
    return ", ".join(filter(None, (by, with_token, f"{place} {share}".strip(), sender)))


class Event(Resource):
    """An event of the log."""

    columns: ClassVar[Columns] = {"received": "received_at", "event": "event", "version": "version", "id": "id"}

    id: str
    seq: int
    event: SingleEventName
    bucket: str
    key: str
    version: str
    time: Time
    received_at: Time
    delivery_states: list[DeliveryState]
    traceparent: Annotated[str | UnsetType, about("W3C Trace Context, if the event had one")] = UNSET
    tracestate: str | UnsetType = UNSET
    origin: Annotated[
        Origin | UnsetType, about("by what it came; not of events that the service made, or recorded before 0.3")
    ] = UNSET
    record: Annotated[Json | UnsetType, about("not in a search")] = UNSET


class Events(Resource):
    """A page of an object's history, oldest first, or of a search, newest first; without parameters only `status`."""

    status: Annotated[str | UnsetType, about("without parameters: that the service responds")] = UNSET
    bucket: Annotated[str | UnsetType, about("of an object's history")] = UNSET
    key: Annotated[str | UnsetType, about("of an object's history")] = UNSET
    events: list[Event] | UnsetType = UNSET
    next: Annotated[int | UnsetType | None, about("the `after` of the next page; null: there are no older events")] = (
        UNSET
    )
    searched_to: Annotated[
        Time | UnsetType, about("of a search: when the oldest event was recorded that was looked at")
    ] = UNSET


class EventsQuery(Query):
    """An object's history, or a search of the log. A history takes `bucket`, `key`, `limit`, `after` and `brief`."""

    bucket: Annotated[str, TEXT("the object's bucket")] = ""
    key: Annotated[str | None, TEXT("the object's key, for its history")] = None
    since: Annotated[int, TIME("recorded at or after")] = 0
    before: Annotated[int, TIME("recorded before")] = MAX_NUMBER
    prefix: Annotated[str, TEXT("the key's prefix")] = ""
    events: Annotated[Sequence[str], _NAMES] = ()
    target: Annotated[TargetId | None, TARGET("events for this target, an ARN or type:name")] = None
    state: Annotated[
        str, choice(STATES, "is not a delivery state")("in this delivery state at the target, or at any target")
    ] = ""
    limit: Annotated[int | None, _LIMIT] = None
    after: Annotated[int, number(0, MAX_NUMBER)("the `next` of the previous page")] = 0
    brief: Annotated[bool, FLAG("leave the records of a history out")] = False


class RefusedRecord(Resource):
    """A record of a body that is no event."""

    index: int
    field: str
    problem: str


class Receipt(Resource):
    """What became of posted events."""

    recorded: int | UnsetType = UNSET
    repeated: Annotated[int | UnsetType, about("recorded before")] = UNSET
    ignored: Annotated[int | UnsetType, about("records that are no events: a sender's test messages, folders")] = UNSET
    matched: Annotated[Mapping[str, int] | UnsetType, about("by ARN")] = UNSET
    discarded: Annotated[
        Mapping[str, int] | UnsetType, about("not recorded for a target because its queue is full, by ARN")
    ] = UNSET
    refused: list[RefusedRecord] | UnsetType = UNSET
    more_refused: Annotated[int | UnsetType, about("invalid records that `refused` does not list")] = UNSET
    spooled: Annotated[
        int | UnsetType, about("events kept in the spool folder; then the other counts are not known yet")
    ] = UNSET
    confirmation: Annotated[str | UnsetType, about("what a person has to do to confirm a subscription of SNS")] = UNSET
    topic: str | UnsetType = UNSET


class RecordQuery(Query):
    """How to record."""

    partial: Annotated[bool, FLAG("record the valid records of a body that also has invalid ones")] = False
    frontend: Annotated[
        str, TEXT("the sender of the records of S3's form, instead of recognising it", enum=sorted(S3_FRONTENDS))
    ] = ""
    token: Annotated[str, TEXT("a token with no scope but ingest, for a sender that has no header for it")] = ""


class StreamQuery(Query):
    """Which events to stream."""

    bucket: Annotated[str, TEXT("the bucket; every bucket unless given")] = ""
    prefix: Annotated[str, TEXT("the key's prefix")] = ""
    suffix: Annotated[str, TEXT("the key's suffix")] = ""
    events: Annotated[Sequence[str], _NAMES] = ()
    target: Annotated[TargetId | None, TARGET("events for this target, an ARN or type:name")] = None
    after: Annotated[str, TEXT("the id of an event, to begin after it; events from now on unless given")] = ""
