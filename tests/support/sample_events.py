"""Events for the contract suite: records as MinIO writes them, the keys that have broken others, and the fixtures."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, unquote_plus

from app.events.model import Effect, Event

PUT = "s3:ObjectCreated:Put"
DELETE = "s3:ObjectRemoved:Delete"

ODD_KEYS = (
    "with space.txt",
    "a+b=c&d.txt",
    "100%.txt",
    "%2F%00encoded.txt",
    "quote'double\"back\\slash.txt",
    "{brace} $dollar `tick` #hash ?question.txt",
    "new\nline\ttab\rreturn.txt",
    "<script>&amp;.html",
    "line\u2028separator\u2029.txt",
    "decomposed-e\u0301.txt",
    "emoji-\U0001f600\U0001f3f4\u200d\u2620\ufe0f.txt",
    "دليل/目录/каталог.txt",
    " leading and trailing ",
    "folder/",
    "/leading//double",
    "\\N",
    "\\.",
    "\u007f\u0001control",
    "k" * 1000,
)

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACESTATE = "rojo=00f067aa0ba902b7,congo=t61r"
TRACE = {"traceparent": TRACEPARENT, "tracestate": TRACESTATE}

_numbers = itertools.count(1)
_FIXTURES = Path(__file__).parents[1] / "fixtures" / "minio_webhook_events.jsonl"


def put(key: str, *, bucket: str = "images", version: str = "", metadata: str = "", number: int | None = None) -> Event:
    """A PUT; each call makes another event, told from the others by its size."""
    return _event(PUT, key, bucket, version, {"size": number or next(_numbers), "eTag": "d41d8cd9", "note": metadata})


def delete(key: str, *, bucket: str = "images", version: str = "") -> Event:
    """A DELETE that takes the object away."""
    return _event(DELETE, key, bucket, version, {}, Effect.REMOVE)


def delete_version(key: str, version: str, *, bucket: str = "images") -> Event:
    """A DELETE of one version, of which it is not known whether it is the row's."""
    return _event(DELETE, key, bucket, version, {}, Effect.REMOVE_VERSION)


def head(key: str, *, bucket: str = "images") -> Event:
    """A HEAD, which changes nothing in a mirror."""
    return _event("s3:ObjectAccessed:Head", key, bucket, "", {}, Effect.NONE)


def poisoned(key: str) -> Event:
    """A PUT whose metadata holds U+0000, which JSON can and some databases cannot."""
    return put(key, metadata="a\0b")


def of_kilobyte(number: int, keys: int) -> Event:
    """A PUT whose record is of 1 KB, one of `keys` objects."""
    made = put(f"folder/{number % keys:06d}.bin", number=number + 1)
    return put(f"folder/{number % keys:06d}.bin", number=number + 1, metadata="x" * (1024 - len(made.record)))


def number_of(document: str) -> int:
    """Which `put` a document is about, whatever envelope it is in."""
    parsed = json.loads(document)
    return int(record_of(parsed)["s3"]["object"]["size"])


def record_of(envelope: Any) -> dict[str, Any]:
    """The one record that a parsed envelope of any shape holds, or a CloudEvent around it."""
    if isinstance(envelope, dict):
        found = envelope.get("data", envelope)["Records"]
    else:
        found = envelope[0]["Event"] if isinstance(envelope[0], dict) else envelope[1]
    (record,) = [found] if isinstance(found, dict) else found  # the old guides' shape has the record itself
    return dict(record)


def captured() -> Iterator[tuple[str, Event]]:
    """What a real MinIO sent to a webhook, line by line, and the event in it."""
    for line in _FIXTURES.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)["Records"][0]
        start = line.index('"Records":[') + len('"Records":[')
        yield line, _from_record(record, line[start:-2])


def _from_record(record: dict[str, dict[str, dict[str, str]]], text: str) -> Event:
    thing = record["s3"]["object"]
    name, moment = str(record["eventName"]), datetime.fromisoformat(str(record["eventTime"]))
    return Event(
        id=hashlib.sha256(text.encode()).hexdigest()[:32],
        name=name,
        bucket=record["s3"]["bucket"]["name"],
        key=unquote_plus(thing["key"]),
        version=thing.get("versionId", ""),
        sequencer=thing["sequencer"],
        time=round(moment.timestamp() * 1000),
        record=text,
        effect=Effect.REMOVE if name == DELETE else Effect.UPSERT,
    )


def _event(
    name: str, key: str, bucket: str, version: str, content: dict[str, object], effect: Effect = Effect.UPSERT
) -> Event:
    number = next(_numbers)
    time = 1_795_000_000_000 + number
    sequencer = f"{time * 1_000_000:016X}"
    moment = datetime.fromtimestamp(time / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    thing = {"key": quote_plus(key, safe=""), **{k: v for k, v in content.items() if v != ""}}
    thing |= ({"versionId": version} if version else {}) | {"sequencer": sequencer}
    record = {
        "eventVersion": "2.0",
        "eventSource": "minio:s3",
        "awsRegion": "",
        "eventTime": moment,
        "eventName": name,
        "userIdentity": {"principalId": "alice"},
        "requestParameters": {"principalId": "alice", "region": "", "sourceIPAddress": "127.0.0.1"},
        "responseElements": {"x-amz-request-id": f"{number:016X}"},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {"name": bucket, "ownerIdentity": {"principalId": "alice"}, "arn": f"arn:aws:s3:::{bucket}"},
            "object": thing,
        },
        "source": {"host": "127.0.0.1", "port": "", "userAgent": "Mozilla <&> é"},
    }
    text = json.dumps(record, ensure_ascii=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    return Event(
        id=digest,
        name=name,
        bucket=bucket,
        key=key,
        version=version,
        sequencer=sequencer,
        time=time,
        record=text,
        effect=effect,
    )


def traced(event: Event) -> Event:
    """The event as it came with a trace context."""
    return event._replace(trace=f"{TRACEPARENT} {TRACESTATE}")
