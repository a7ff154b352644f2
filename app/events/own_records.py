"""Make records of what a listing shows of an object, and place them in the object's order, whoever has listed it.

Repairs, backfills and watched buckets use it. A record must not undo what happens after the bucket was listed,
whichever frontend reports it. So its place in the object's order (`app.events.order`) follows from what the bucket
says: an object's modification time; for an object that is gone, a time before the listing by which the clocks of two
hosts may differ. If a newer place is known, it is just above that. Every later event of the bucket is newer.
"""

from collections.abc import Mapping
from typing import Any

from app.events.minio_json import encode_key, timestamp
from app.events.order import comparable, following, from_time

CLOCK_SKEW = 60_000  # ms by which the clocks of this host and of the frontend may differ
PUT, MULTIPART = "s3:ObjectCreated:Put", "s3:ObjectCreated:CompleteMultipartUpload"
DELETE, MARKED = "s3:ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated"
_NANOSECONDS = 1_000_000  # in a millisecond
_SECOND = 1000  # ms; some frontends tell no fractions


def creation_name(etag: str) -> str:
    """Return the name of the event that creates an object with this ETag."""
    return MULTIPART if "-" in etag else PUT


def object_members(key: str, version: str, etag: str | None = None, size: int | None = None) -> dict[str, Any]:
    """Return what a record says of an object; of one that is gone neither its ETag nor its size."""
    content = {} if etag is None else {"size": size, "eTag": etag}
    return {"key": encode_key(key)} | content | ({"versionId": version} if version else {})


def own_record(
    source: str, name: str, bucket: str, s3_object: Mapping[str, Any], event_time: int, facts: Mapping[str, str]
) -> dict[str, Any]:
    """Return a record of MinIO's form; `source` names what made it, and `facts` are among its response elements."""
    return {
        "eventVersion": "2.0",
        "eventSource": source,
        "awsRegion": "",
        "eventTime": timestamp(event_time),
        "eventName": name,
        "userIdentity": {"principalId": "bucketwire"},
        "requestParameters": {"principalId": "bucketwire", "region": "", "sourceIPAddress": ""},
        "responseElements": dict(facts),
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
    known, time = comparable(log), place_of_time(modified)
    if known and known[:1] != time[:1]:
        return following(known)  # of a sender whose sequencers are no times, so a time orders nothing
    newest = max(known, comparable(row))
    return following(newest) if newest >= time else from_time(modified * _NANOSECONDS)


def place_of_time(milliseconds: int) -> str:
    """Return the comparable sequencer of a time."""
    return comparable(from_time(milliseconds * _NANOSECONDS))


def time_of_removal(listed_at: int) -> int:
    """Return the time (ms) that orders a removal which a listing of that time has found."""
    return (listed_at - CLOCK_SKEW) // _SECOND * _SECOND
