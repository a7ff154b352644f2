"""Drift, and objects that nobody told of, as events that set it right: ordinary records for one target.

A repair must not undo what happens after the look at the bucket. So its sequencer is only just greater than the newest
that the log and the row know of the object, or where neither knows one it is the object's time of writing: whatever
the bucket tells next is newer. And because it is made of nothing but what was found, the same finding is the same
event, whose id is recorded once.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from app.config.arn import TargetId
from app.events.minio_json import encode_key, timestamp
from app.events.sequencer import comparable

SOURCE, BACKFILL = "bucketwire:reconcile", "bucketwire:backfill"
_DIGITS = 16  # of a sequencer as MinIO writes it: nanoseconds since 1970
_NANOSECONDS = 1_000_000  # in a millisecond
PUT, PARTS = "s3:ObjectCreated:Put", "s3:ObjectCreated:CompleteMultipartUpload"
_DELETE = "s3:ObjectRemoved:Delete"


def is_removal(finding: Mapping[str, Any]) -> bool:
    """Whether the row has to go: the bucket has no such object."""
    return finding["modified"] is None


def record(finding: Mapping[str, Any], bucket: str, target: TargetId, newest: str, looked: int) -> dict[str, Any]:
    """The event that repairs a finding. `newest` is the log's greatest sequencer of the object, "" for none.

    `looked` is when the bucket was looked at, in milliseconds since 1970.
    """
    gone = is_removal(finding)
    written = looked if gone else finding["modified"]
    thing = {"key": encode_key(finding["key"])} if gone else _thing(finding)
    thing["sequencer"] = sequencer(newest, finding["row_sequencer"] or "", written)
    name = _DELETE if gone else _made_by(finding)
    return _record(name, bucket, thing, written, SOURCE, target, {"x-bucketwire-finding": finding["kind"]})


def repair_event(entry: Mapping[str, Any], bucket: str, target: TargetId, newest: str) -> dict[str, Any]:
    """The event that tells the target of an object in a LISTING; `newest` as for `record`, but of true events."""
    thing = _thing(entry) | {"sequencer": sequencer(newest, "", entry["modified"])}
    return _record(_made_by(entry), bucket, thing, entry["modified"], BACKFILL, target, {})


def _thing(entry: Mapping[str, Any]) -> dict[str, Any]:
    thing = {"key": encode_key(entry["key"]), "size": entry["size"], "eTag": entry["etag"]}
    return thing | {"versionId": entry["version"]} if entry["version"] else thing


def _made_by(entry: Mapping[str, Any]) -> str:
    return PARTS if "-" in entry["etag"] else PUT


def _record(
    name: str, bucket: str, thing: Mapping[str, Any], written: int, source: str, target: TargetId,
    more: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    return {
        "eventVersion": "2.0",
        "eventSource": source,
        "awsRegion": "",
        "eventTime": timestamp(written),
        "eventName": name,
        "userIdentity": {"principalId": "bucketwire"},
        "requestParameters": {"principalId": "bucketwire", "region": "", "sourceIPAddress": ""},
        # The target is told, so that two targets that lack the same object get an event each.
        "responseElements": {"x-bucketwire-target": str(target), **more},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": source.partition(":")[2],
            "bucket": {
                "name": bucket,
                "ownerIdentity": {"principalId": "bucketwire"},
                "arn": f"arn:aws:s3:::{bucket}",
            },
            "object": thing,
        },
        "source": {"host": "", "port": "", "userAgent": "bucketwire"},
    }


def sequencer(newest: str, row: str, written: int) -> str:
    """Just above everything known; of an object that nobody knows, its time of writing (ms)."""
    known = max(comparable(newest), comparable(row))
    time = comparable(f"{written * _NANOSECONDS:X}")
    if not known or (known < time and len(known) <= _DIGITS and known[:1] == time[:1]):
        return time.ljust(_DIGITS, "0")
    return known.ljust(_DIGITS, "0") + "1"


def body(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What is posted."""
    return {"Records": list(records)}


def day(at: int) -> str:
    """Milliseconds since 1970 as people read a moment, in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
