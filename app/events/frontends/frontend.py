"""What Bucketwire knows of a kind of sender: how its messages become records, and what orders two events of a key.

A message with a form of its own becomes a record with MinIO's members by `made_record`; `original` keeps the message.
Members of a sender's object are read by their path, which errors about missing or mistyped members name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.order import sequencer_of

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class SnsConfirmation:
    """SNS asks whether the topic's owner may send here: GET `subscribe_url` once to agree, for allowed topics only.

    Nothing in it has been verified. `message` is the complete message: the signature covers several members (§14.3).
    """

    topic_arn: str
    token: str
    subscribe_url: str
    message: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EventGridValidation:
    """Event Grid asks whether it may send here: whoever answers with `code` agrees."""

    code: str


@dataclass(frozen=True, slots=True)
class Traced:
    """The content of a message (`made`), and the message's own trace context."""

    made: Any
    trace: str


Normalized = Record | tuple[Record, ...] | SnsConfirmation | EventGridValidation | Traced


@dataclass(frozen=True, slots=True)
class Frontend:
    """A kind of sender. Both functions may raise `BadRecord`.

    `normalize` makes a record with MinIO's members (§1.4) of what was sent: a form-encoded key, a name that begins with
    `s3:`, and all other members as they came. `order` makes the value that orders the events of a key
    (`app.events.order`) of a normalised record, "" where the sender gives no order; events with equal values are
    ordered by their arrival.
    """

    name: str
    normalize: Callable[[Any], Normalized]
    order: Callable[[Mapping[str, Any]], str] = sequencer_of


def as_sent(record: Record) -> Record:
    """Return the record unchanged, byte for byte: it has MinIO's form."""
    return record


def prefix_name(record: Record, aliases: Mapping[str, str] | None = None) -> None:
    """Put `s3:` before the record's name, and replace a name that other senders spell differently."""
    name = record.get("eventName")
    if isinstance(name, str) and name:
        name = name if name.startswith("s3:") else f"s3:{name}"
        record["eventName"] = aliases.get(name, name) if aliases else name


def normalize_raw(record: Record) -> Record:
    """Prefix the name with `s3:`, and encode the key, which is raw; change nothing else."""
    prefix_name(record)
    thing = object_of(record)
    if isinstance(key := thing.get("key"), str):
        thing["key"] = minio_json.encode_key(key)
    return record


def unordered(_: Mapping[str, Any]) -> str:
    """Return the order of events whose sender tells none: that of their arrival."""
    return ""


def object_of(record: Mapping[str, Any]) -> Record:
    """Return the record's object; an empty one if it has none, which is refused later."""
    s3 = record.get("s3")
    thing = s3.get("object") if isinstance(s3, dict) else None
    return thing if isinstance(thing, dict) else {}


def made_record(
    source: str, name: str, bucket: str, thing: Record, time: int | None, original: Any, owner: str = ""
) -> Record:
    """Return the record of an event. `thing` are the object's members, `time` is in milliseconds since 1970."""
    return {
        "eventVersion": "2.0",
        "eventSource": source,
        "awsRegion": "",
        "eventTime": "" if time is None else minio_json.timestamp(time),
        "eventName": name,
        "userIdentity": {"principalId": ""},
        "requestParameters": None,
        "responseElements": {},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {
                "name": bucket,
                "ownerIdentity": {"principalId": owner},
                "arn": f"arn:aws:s3:::{bucket}",
            },
            "object": thing,
        },
        "source": {"host": "", "port": "", "userAgent": ""},
        "original": original,
    }


def made_object(key: str, **members: Any) -> Record:
    """Return the members of an object with a raw key, without those that have no value."""
    return without_empty({"key": minio_json.encode_key(key), **members})


def find(value: Any, *path: str) -> Any:
    """Return the member at the path, or None if there is none."""
    for step in path:
        if not isinstance(value, dict):
            return None
        value = value.get(step)
    return value


def text(value: Any, *path: str) -> str:
    """Return the text at the path, not empty. Raises `BadRecord`."""
    member = find(value, *path)
    if isinstance(member, str) and member:
        return member
    name = ".".join(path)
    if member is None:
        raise BadRecord(name, "is missing; it must be text")
    raise BadRecord(name, f"is {excerpt(member)}; it must be text that is not empty")


def optional_text(value: Any, *path: str) -> str:
    """Return the text at the path, or "" if there is none or it is not a text."""
    member = find(value, *path)
    return member if isinstance(member, str) else ""


def number(value: Any, *path: str) -> int | None:
    """Return the integer at the path, also if it is a text (as protobuf's JSON writes 64 bits), or None."""
    member = find(value, *path)
    if isinstance(member, str) and member.isascii() and member.isdigit() and len(member) < 20:
        return int(member)
    return member if isinstance(member, int) and not isinstance(member, bool) else None


def without_empty(record: dict[str, Any]) -> dict[str, Any]:
    """Return the members that have a value: MinIO omits empty ones (§1.4)."""
    return {name: value for name, value in record.items() if value not in (None, "", {})}
