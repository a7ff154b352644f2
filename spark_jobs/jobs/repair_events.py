"""Make events that repair drift, and events for objects that were never reported: ordinary records for one target.

What orders them is in `app.events.own_events`. The record depends on nothing but the finding, so the same finding is
the same event, whose id is recorded once.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from app.config.arn import TargetId
from app.events.order import MAX_SEQUENCER_CHARACTERS, comparable
from app.events.own_events import (
    CLOCK_SKEW,
    DELETE,
    creation_name,
    object_members,
    own_record,
    place_of_time,
    sequencer,
    time_of_removal,
)

RECONCILE_SOURCE, BACKFILL_SOURCE = "bucketwire:reconcile", "bucketwire:backfill"


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
    s3_object = object_members(finding["key"], "") if removal else _s3_object(finding)
    row = comparable(finding["row_sequencer"] or "")
    if len(row) > MAX_SEQUENCER_CHARACTERS or row > place_of_time(listed_at + CLOCK_SKEW):
        row = ""  # that of a frontend whose sequencers are not in their order, or no sequencer
    s3_object["sequencer"] = sequencer(newest_sequencer, row, time_of_removal(listed_at) if removal else event_time)
    name = DELETE if removal else creation_name(finding["etag"])
    extra = {"x-bucketwire-finding": finding["kind"]}
    return _record(name, bucket, s3_object, event_time, RECONCILE_SOURCE, target, extra)


def backfill_event(entry: Mapping[str, Any], bucket: str, target: TargetId, newest_sequencer: str) -> dict[str, Any]:
    """Return the event for an object in a LISTING.

    `newest_sequencer` is as for `repair_event`, but without the events of backfills.
    """
    s3_object = _s3_object(entry) | {"sequencer": sequencer(newest_sequencer, "", entry["modified"])}
    return _record(creation_name(entry["etag"]), bucket, s3_object, entry["modified"], BACKFILL_SOURCE, target, {})


def _s3_object(entry: Mapping[str, Any]) -> dict[str, Any]:
    return object_members(entry["key"], entry["version"], entry["etag"], entry["size"])


def _record(
    name: str, bucket: str, s3_object: Mapping[str, Any], event_time: int, source: str, target: TargetId,
    extra: Mapping[str, str],
) -> dict[str, Any]:  # fmt: skip
    # The record names its target, so that two targets that lack the same object get one event each.
    return own_record(source, name, bucket, s3_object, event_time, {"x-bucketwire-target": str(target), **extra})


def request_body(records: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the request body that carries the records."""
    return {"Records": list(records)}


def format_time(at: int) -> str:
    """Return milliseconds since 1970 as a readable time in UTC."""
    return datetime.fromtimestamp(at / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
