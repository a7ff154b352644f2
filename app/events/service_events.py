"""Make events about the service itself, in the shape of MinIO's records, so that every target can send them."""

from collections.abc import Mapping

from app.events import minio_json
from app.events.model import Event

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
