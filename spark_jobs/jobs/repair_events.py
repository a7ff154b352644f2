"""Make events that repair drift, and events for objects that were never reported: ordinary records for one target.

A repair must not undo what happens after the bucket was listed, whichever frontend reports it. So its place in the
object's order (`app.events.order`) follows from what the bucket says: an object's modification time; for an object
that is gone, a time before the listing by which the clocks of two hosts may differ. If the outbox or the row knows a
newer place, it is just above that. Every later event of the bucket is newer. The record depends on nothing but the
finding, so the same finding is the same event, whose id is recorded once.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from app.config.arn import TargetId
from app.events.minio_json import encode_key, timestamp
from app.events.order import MAX_SEQUENCER_CHARACTERS, comparable, following, from_time

RECONCILE_SOURCE, BACKFILL_SOURCE = "bucketwire:reconcile", "bucketwire:backfill"
CLOCK_SKEW = 60_000  # ms by which the clocks of this host and of the frontend may differ
_SECOND = 1000  # ms; some frontends tell no fractions
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

    `newest_sequencer` is the greatest of the object that the outbox knows, "" for none; `listed_at` is when the bucket
    was listed, in milliseconds since 1970.
    """
    removal = is_removal(finding)
    event_time = listed_at if removal else finding["modified"]
    s3_object = {"key": encode_key(finding["key"])} if removal else _s3_object(finding)
    row = comparable(finding["row_sequencer"] or "")
    if len(row) > MAX_SEQUENCER_CHARACTERS or row > _time(listed_at + CLOCK_SKEW):
        row = ""  # that of a frontend whose sequencers are not in their order, or no sequencer
    time = (listed_at - CLOCK_SKEW) // _SECOND * _SECOND if removal else event_time
    s3_object["sequencer"] = sequencer(newest_sequencer, row, time)
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
    """Return a sequencer just above those of the log and the row, and not before a time (ms)."""
    known, time = comparable(log), _time(modified)
    if known and known[:1] != time[:1]:
        return following(known)  # of a sender whose sequencers are no times, so a time orders nothing
    newest = max(known, comparable(row))
    return following(newest) if newest >= time else from_time(modified * _NANOSECONDS)


def _time(milliseconds: int) -> str:
    return comparable(from_time(milliseconds * _NANOSECONDS))


def request_body(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the request body that carries the records."""
    return {"Records": list(records)}


def format_time(at: int) -> str:
    """Return milliseconds since 1970 as a readable time in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
