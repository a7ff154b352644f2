"""Make events that repair drift, and events for objects that were never reported: ordinary records for one target.

A repair must not undo what happens after the bucket was listed. So its sequencer is only just greater than the newest
one that the log and the row have for the object; if neither has one, it is the object's modification time. Every later
event of the bucket is newer. The record depends on nothing but the finding, so the same finding is the same event,
whose id is recorded once.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from app.config.arn import TargetId
from app.events.minio_json import encode_key, timestamp
from app.events.order import comparable

RECONCILE_SOURCE, BACKFILL_SOURCE = "bucketwire:reconcile", "bucketwire:backfill"
_SEQUENCER_DIGITS = 16  # of a sequencer as MinIO writes it: nanoseconds since 1970
_NANOSECONDS = 1_000_000  # in a millisecond
PUT, MULTIPART = "s3:ObjectCreated:Put", "s3:ObjectCreated:CompleteMultipartUpload"
_DELETE = "s3:ObjectRemoved:Delete"


def is_removal(finding: Mapping[str, Any]) -> bool:
    """Return whether the repair removes the row, because the bucket has no such object."""
    return finding["modified"] is None


def repair_event(
    finding: Mapping[str, Any], bucket: str, target: TargetId, newest_sequencer: str, listed_at: int
) -> dict[str, Any]:
    """Return the event that repairs a finding.

    `newest_sequencer` is the log's greatest sequencer of the object, "" for none; `listed_at` is when the bucket was
    listed, in milliseconds since 1970.
    """
    removal = is_removal(finding)
    event_time = listed_at if removal else finding["modified"]
    s3_object = {"key": encode_key(finding["key"])} if removal else _s3_object(finding)
    s3_object["sequencer"] = sequencer(newest_sequencer, finding["row_sequencer"] or "", event_time)
    name = _DELETE if removal else _creation_event(finding)
    extra = {"x-bucketwire-finding": finding["kind"]}
    return _record(name, bucket, s3_object, event_time, RECONCILE_SOURCE, target, extra)


def backfill_event(entry: Mapping[str, Any], bucket: str, target: TargetId, newest_sequencer: str) -> dict[str, Any]:
    """Return the event for an object in a LISTING.

    `newest_sequencer` is as for `repair_event`, but without the events of backfills.
    """
    s3_object = _s3_object(entry) | {"sequencer": sequencer(newest_sequencer, "", entry["modified"])}
    return _record(_creation_event(entry), bucket, s3_object, entry["modified"], BACKFILL_SOURCE, target, {})


def _s3_object(entry: Mapping[str, Any]) -> dict[str, Any]:
    s3_object = {"key": encode_key(entry["key"]), "size": entry["size"], "eTag": entry["etag"]}
    return s3_object | {"versionId": entry["version"]} if entry["version"] else s3_object


def _creation_event(entry: Mapping[str, Any]) -> str:
    return MULTIPART if "-" in entry["etag"] else PUT


def _record(
    name: str, bucket: str, s3_object: Mapping[str, Any], event_time: int, source: str, target: TargetId,
    extra: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    return {
        "eventVersion": "2.0",
        "eventSource": source,
        "awsRegion": "",
        "eventTime": timestamp(event_time),
        "eventName": name,
        "userIdentity": {"principalId": "bucketwire"},
        "requestParameters": {"principalId": "bucketwire", "region": "", "sourceIPAddress": ""},
        # The record names its target, so that two targets that lack the same object get one event each.
        "responseElements": {"x-bucketwire-target": str(target), **extra},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": source.partition(":")[2],
            "bucket": {
                "name": bucket,
                "ownerIdentity": {"principalId": "bucketwire"},
                "arn": f"arn:aws:s3:::{bucket}",
            },
            "object": s3_object,
        },
        "source": {"host": "", "port": "", "userAgent": "bucketwire"},
    }


def sequencer(log: str, row: str, modified: int) -> str:
    """Return a sequencer just above those of the log and the row; without either, the modification time (ms)."""
    known = max(comparable(log), comparable(row))
    time = comparable(f"{modified * _NANOSECONDS:X}")
    if not known or (known < time and len(known) <= _SEQUENCER_DIGITS and known[:1] == time[:1]):
        return time.ljust(_SEQUENCER_DIGITS, "0")
    return known.ljust(_SEQUENCER_DIGITS, "0") + "1"


def request_body(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the request body that carries the records."""
    return {"Records": list(records)}


def format_time(at: int) -> str:
    """Return milliseconds since 1970 as a readable time in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
