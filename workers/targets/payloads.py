"""Build the payloads for targets, and decide what an event does to a namespace; once, for all targets.

Nothing is parsed again: `Event.record` is the record's JSON text and goes into every envelope unchanged.
No envelope ends with a newline except `line`, which is for document stores (as MinIO: §1.5).
"""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from json.encoder import encode_basestring

import orjson

from app.events.model import Effect, Event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, NotAttempted, Outcome, Unavailable

# Bound to names once: accessing a member through its enum costs more than the comparison.
_UPSERT, _REMOVE, _REMOVE_VERSION = Effect.UPSERT, Effect.REMOVE, Effect.REMOVE_VERSION
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SOURCE = re.compile(r'"eventSource":"(?:[^"\\]|\\.)*"')
_NAME_WITH_S3 = re.compile(r'"eventName":"s3:(?=[A-Za-z]+:)')  # not that of a test event, which S3 names s3:TestEvent
_ESCAPED_BY_GO = re.compile("[<>&\u2028\u2029]")


def text(value: str) -> str:
    """Return a JSON string with its quotes, encoded as Go does (as MinIO: §1.5)."""
    quoted = encode_basestring(value)
    if _ESCAPED_BY_GO.search(quoted) is None:
        return quoted
    return _ESCAPED_BY_GO.sub(lambda match: f"\\u{ord(match[0]):04x}", quoted)


def timestamp(event: Event) -> str:
    """Return the event's time as MinIO writes it: UTC with three decimals (§1.4)."""
    seconds, milliseconds = divmod(event.time, 1000)
    return f"{_second(seconds)}.{milliseconds:03d}Z"


@lru_cache(maxsize=1024)  # many events share a second, and formatting one costs more than the rest of its envelope
def _second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).isoformat()[:-6]


def log(event: Event, shape: str = "minio") -> str:
    """Return the envelope of webhook, AMQP, MQTT, NATS, NSQ and Kafka (as MinIO: §1.8).

    `guide` has the members of MinIO's first guides (§1.9): `EventType`, and those of its logger, with whole seconds.
    """
    if shape == "guide":
        members = f'"EventType":{text(event.name)},"Key":{text(event.path)},"Records":[{event.record}]'
        return f'{{{members},"level":"info","msg":"","time":"{_second(event.time // 1000)}Z"}}'
    return f'{{"EventName":{text(event.name)},"Key":{text(event.path)},"Records":[{event.record}]}}'


def s3_notification(event: Event) -> str:
    """Return what S3 sends to SQS: the record with S3's source, and a name that has no `s3:` before it."""
    record = _SOURCE.sub('"eventSource":"aws:s3"', event.record, count=1)
    record = _NAME_WITH_S3.sub('"eventName":"', record, count=1)
    return f'{{"Records":[{record}]}}'


def records(event: Event) -> str:
    """Return the envelope of both SQL formats and of the Redis namespace (as MinIO: §1.8)."""
    return f'{{"Records":[{event.record}]}}'


def line(event: Event) -> str:
    """Return `records` with the trailing newline that Elasticsearch gets (as MinIO: §1.5)."""
    return records(event) + "\n"


def elasticsearch_access(event: Event, shape: str = "minio") -> str:
    """Return a document of an index of events, as a line; `guide` adds the event's time, as the guides describe."""
    if shape == "guide":
        return f'{{"@timestamp":"{timestamp(event)}","Records":[{event.record}]}}\n'
    return line(event)


def redis_access(event: Event, shape: str = "minio") -> str:
    """Return one element of the Redis list (as MinIO: §1.8).

    `guide` is the older format of the guides: an array of the time and the record.
    """
    if shape == "guide":
        return f'["{timestamp(event)}",{event.record}]'
    return f'[{{"Event":[{event.record}],"EventTime":"{timestamp(event)}"}}]'


@dataclass(frozen=True, slots=True)
class Upsert:
    """Replace the path's row by `document`, an envelope made by `records`."""

    path: str
    document: str


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove the path's row, whatever it holds."""

    path: str


@dataclass(frozen=True, slots=True)
class RemoveVersion:
    """Remove the path's row if it describes this version, else keep it; `version` as `version_name` returns it."""

    path: str
    version: str


@dataclass(frozen=True, slots=True)
class Append:
    """Add one more entry, which never changes; `time` as `timestamp` returns it."""

    time: str
    document: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """Change nothing: the event does not affect a namespace."""


Change = Upsert | Remove | RemoveVersion | Append | Nothing
NOTHING = Nothing()


def change(event: Event, format: str) -> Change:  # noqa: A002 (the setting's name)
    """Return what the event does in a store of this format; `event.effect` holds what the policy decided."""
    if format == "access":
        return Append(timestamp(event), records(event))
    effect = event.effect
    if effect is _UPSERT:
        return Upsert(event.path, records(event))
    if effect is _REMOVE:
        return Remove(event.path)
    if effect is _REMOVE_VERSION:
        return RemoveVersion(event.path, version_name(event.version))
    return NOTHING


def compatible_effect(event: Event) -> Effect:
    """Return what MinIO does with the row: `s3:ObjectRemoved:Delete` deletes it, all else replaces it (§1.11)."""
    return Effect.REMOVE if event.name == "s3:ObjectRemoved:Delete" else Effect.UPSERT


def version_name(version: str | None) -> str:
    """Return one name for what S3 calls the null version: absent, empty and `null` mean the same version."""
    return version or "null"


def _described(document: str) -> str:
    """Return the version in a document; it may differ from the event's, as a mirror's row may be an older survivor."""
    try:
        version = orjson.loads(document)["Records"][0]["s3"]["object"].get("versionId")
    except (LookupError, TypeError, AttributeError):
        return version_name(None)
    return version_name(version)


@dataclass(frozen=True, slots=True)
class Rows:
    """The result of a batch: a path is in `documents`, in `removed`, or once or more in `versions` (path, version).

    So the three may be executed in any order, or at once.
    """

    documents: Mapping[str, str]
    removed: Sequence[str]
    versions: Sequence[tuple[str, str]]


def collapse(changes: Iterable[Change]) -> Rows:
    """Return the fewest changes that leave every path as all of `changes` in order would."""
    documents: dict[str, str] = {}
    removed: dict[str, None] = {}
    asked: dict[str, dict[str, None]] = {}
    for effect in changes:
        if isinstance(effect, Nothing):
            continue
        if isinstance(effect, Append):
            raise TypeError("entries of the access format do not collapse")
        path = effect.path
        if isinstance(effect, RemoveVersion):
            document = documents.get(path)
            if document is None:
                if path not in removed:
                    asked.setdefault(path, {})[effect.version] = None
                continue
            if _described(document) != effect.version:
                continue
        if isinstance(effect, Upsert):
            documents[path] = effect.document
            removed.pop(path, None)
        else:
            documents.pop(path, None)
            removed[path] = None
        asked.pop(path, None)
    versions = [(path, version) for path, names in asked.items() for version in names]
    return Rows(documents, list(removed), versions)


def waves(events: Sequence[Event]) -> list[list[int]]:
    """Return the indexes of `events` in lists that name each path once; an object's events keep their order.

    For remotes that accept many requests at once but do not guarantee their order.
    """
    made: list[list[int]] = []
    seen: dict[str, int] = {}
    for index, event in enumerate(events):
        number = seen.get(event.path, 0)
        seen[event.path] = number + 1
        if number == len(made):
            made.append([])
        made[number].append(index)
    return made


def runs(events: Sequence[Event], places: Sequence[Hashable | None]) -> list[list[int]]:
    """Return the indexes of events in lists within which each object has one place, in the order of its events.

    For requests that send to several places at once: an object's event must not arrive at its place after the one
    before has failed at another. An event without a place is left out.
    """
    made: list[list[int]] = []
    last: dict[str, tuple[int, Hashable]] = {}
    for index, (event, place) in enumerate(zip(events, places, strict=True)):
        if not place:
            continue
        number, before = last.get(event.path, (0, place))
        if before != place:
            number += 1
        last[event.path] = number, place
        if number == len(made):
            made.append([])
        made[number].append(index)
    return made


def mark_not_attempted(events: Sequence[Event], outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the outcomes, with `NotAttempted` for all events after an undelivered one of the same object."""
    settled = list(outcomes)
    first = next((index for index, outcome in enumerate(settled) if outcome is not DELIVERED), len(settled))
    stuck: set[str] = set()
    for index in range(first, len(settled)):
        path = events[index].path
        if path in stuck:
            settled[index] = NOT_ATTEMPTED
        elif isinstance(settled[index], Failed | Unavailable | NotAttempted):
            stuck.add(path)
    return settled
