"""The events of a trial: marked, so that a consumer knows them, and such that no namespace keeps an object of them."""

from app.events.model import Effect, Event
from app.events.normalize import event_of

TEST_BUCKET = "bucketwire-test"  # reserved for trials; every consumer may leave its events aside
NAME = "s3:TestEvent"  # as AWS calls the message by which it tries a notification out
PUT, DELETE = "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete"


def make_test_events(mark: str, now_ms: int, written: str, *, namespace: bool) -> list[Event]:
    """One `s3:TestEvent`; for a namespace the PUT of an object and its DELETE, so that a row comes and goes.

    `mark` is what the object's key ends with, `written` the time `now_ms` (milliseconds since 1970) as MinIO writes it.
    """
    names = (PUT, DELETE) if namespace else (NAME,)
    effects = (Effect.UPSERT, Effect.REMOVE) if namespace else (Effect.NONE,)
    return [
        event_of(_record(name, mark, written, f"{now_ms:012X}{number:04X}"), now_ms, 32)._replace(effect=effect)
        for number, (name, effect) in enumerate(zip(names, effects, strict=True))
    ]


def _record(name: str, mark: str, written: str, sequencer: str) -> dict[str, object]:
    """A record with the members of MinIO's (§1.4)."""
    return {
        "eventVersion": "2.0",
        "eventSource": "bucketwire:test",
        "awsRegion": "",
        "eventTime": written,
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
            "object": {"key": mark, "sequencer": sequencer},
        },
        "source": {"host": "", "port": "", "userAgent": "Bucketwire"},
    }
