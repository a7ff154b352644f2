"""Make the events of a target test: consumers can recognize them, and a namespace keeps no object of them."""

from app.events.minio_json import timestamp
from app.events.model import Effect, Event
from app.events.normalize import event_of

TEST_BUCKET = "bucketwire-test"  # reserved for target tests; consumers may ignore its events
NAME = "s3:TestEvent"  # AWS's name for the message that tests a notification
PUT, DELETE = "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete"


def make_test_events(mark: str, now_ms: int, *, namespace: bool) -> list[Event]:
    """Make one `s3:TestEvent`; for a namespace, an object's PUT and DELETE, which add a row and remove it.

    `mark` is the object's key, `now_ms` the time in milliseconds since 1970.
    """
    names = (PUT, DELETE) if namespace else (NAME,)
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
