"""Make records and events that no frontend reports: of what a listing shows, about the service, and for a test.

Repairs, backfills and watched buckets make records of what a listing shows of an object. A record must not undo what
happens after the bucket was listed, whichever frontend reports it. So its place in the object's order
(`app.events.order`) follows from what the bucket says: an object's modification time; for an object that is gone, a
time before the listing by which the clocks of two hosts may differ. If a newer place is known, it is just above that.
Every later event of the bucket is newer.

Events about the service have the shape of MinIO's records, so that every target can send them. Consumers can recognize
the events of a target test, and a namespace keeps no object of them.
"""

from collections.abc import Mapping
from typing import Any

from app.events import minio_json
from app.events.minio_json import encode_key, timestamp
from app.events.model import Effect, Event
from app.events.normalize import event_of
from app.events.order import comparable, following, from_time

CLOCK_SKEW = 60_000  # ms by which the clocks of this host and of the frontend may differ
PUT, MULTIPART = "s3:ObjectCreated:Put", "s3:ObjectCreated:CompleteMultipartUpload"
DELETE, MARKED = "s3:ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated"
_NANOSECONDS = 1_000_000  # in a millisecond
_SECOND = 1000  # ms; some frontends tell no fractions
# No S3 bucket can have a colon in its name. Rules for every bucket (`*`) do not include it.
SERVICE_BUCKET = "bucketwire:service"
UNAVAILABLE, AVAILABLE = "bucketwire:TargetUnavailable", "bucketwire:TargetAvailable"
FAILING, RECOVERED = "bucketwire:TargetFailing", "bucketwire:TargetRecovered"
DEAD = "bucketwire:EventsDead"
BACKLOG_HIGH, BACKLOG_NORMAL = "bucketwire:BacklogHigh", "bucketwire:BacklogNormal"
DRIFT = "bucketwire:DriftFound"
RESUMED = "bucketwire:DrainResumed"
SOURCE_UNAVAILABLE, SOURCE_AVAILABLE = "bucketwire:SourceUnavailable", "bucketwire:SourceAvailable"
MESSAGES_LOST = "bucketwire:MessagesLost"
TEST_BUCKET = "bucketwire-test"  # reserved for target tests; consumers may ignore its events
TEST_EVENT = "s3:TestEvent"  # AWS's name for the message that tests a notification


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


def make_service_event(name: str, subject: str, now_ms: int, facts: Mapping[str, str]) -> Event:
    """Make an event about a target (`type:name`), a source (`source:type:name`), or a part of the service.

    The subject is the key, so that the events about one target or source keep their order. The `facts` are among the
    record's `responseElements`, each with `x-bucketwire-` before its name.
    """
    record = {
        "eventVersion": "2.0",
        "eventSource": "bucketwire:service",
        "awsRegion": "",
        "eventTime": minio_json.timestamp(now_ms),
        "eventName": name,
        "userIdentity": {"principalId": "bucketwire"},
        "requestParameters": {},
        "responseElements": {f"x-bucketwire-{fact}": value for fact, value in facts.items()},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {
                "name": SERVICE_BUCKET,
                "ownerIdentity": {"principalId": "bucketwire"},
                "arn": f"arn:aws:s3:::{SERVICE_BUCKET}",
            },
            "object": {"key": minio_json.encode_key(subject), "sequencer": f"{now_ms * 1_000_000:016X}"},
        },
        "source": {"host": "", "port": "", "userAgent": "Bucketwire"},
    }
    digest, sequencer = minio_json.digest(record), f"{now_ms * 1_000_000:016X}"
    return Event(digest, name, SERVICE_BUCKET, subject, "", sequencer, now_ms, minio_json.text(record))


def make_test_events(mark: str, now_ms: int, *, namespace: bool) -> list[Event]:
    """Make one `s3:TestEvent`; for a namespace, an object's PUT and DELETE, which add a row and remove it.

    `mark` is the object's key, `now_ms` the time in milliseconds since 1970.
    """
    names = (PUT, DELETE) if namespace else (TEST_EVENT,)
    effects = (Effect.UPSERT, Effect.REMOVE) if namespace else (Effect.NONE,)
    return [
        event_of(_record(name, mark, now_ms, number), now_ms, 32)._replace(effect=effect)
        for number, (name, effect) in enumerate(zip(names, effects, strict=True))
    ]


def _record(name: str, mark: str, now_ms: int, number: int) -> dict[str, object]:
    """Return a record with the same members as MinIO's (§1.4)."""
    return {
        "eventVersion": "2.0",
        "eventSource": "bucketwire:test",
        "awsRegion": "",
        "eventTime": timestamp(now_ms),
        "eventName": name,
        "userIdentity": {"principalId": "bucketwire"},
        "requestParameters": {},
        "responseElements": {},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {
                "name": TEST_BUCKET,
                "ownerIdentity": {"principalId": "bucketwire"},
                "arn": f"arn:aws:s3:::{TEST_BUCKET}",
            },
            "object": {"key": mark, "sequencer": f"{now_ms:012X}{number:04X}"},
        },
        "source": {"host": "", "port": "", "userAgent": "Bucketwire"},
    }
