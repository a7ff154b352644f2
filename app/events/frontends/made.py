"""Make a record with MinIO's members of a message that has a form of its own; `original` keeps the message."""

from typing import Any

from app.events import minio_json
from app.events.frontends.frontend import Record
from app.events.frontends.json_path import without_empty


def made_record(
    source: str, name: str, bucket: str, thing: Record, time: int | None, original: Any, owner: str = ""
) -> Record:
    """Return the record of an event. `thing` are the object's members, `time` is in milliseconds since 1970."""
    return {
        "eventVersion": "2.0",
        "eventSource": source,
        "awsRegion": "",
        "eventTime": "" if time is None else minio_json.timestamp(time),
        "eventName": name,
        "userIdentity": {"principalId": ""},
        "requestParameters": None,
        "responseElements": {},
        "s3": {
            "s3SchemaVersion": "1.0",
            "configurationId": "Config",
            "bucket": {
                "name": bucket,
                "ownerIdentity": {"principalId": owner},
                "arn": f"arn:aws:s3:::{bucket}",
            },
            "object": thing,
        },
        "source": {"host": "", "port": "", "userAgent": ""},
        "original": original,
    }


def made_object(key: str, **members: Any) -> Record:
    """Return the members of an object with a raw key, without those that have no value."""
    return without_empty({"key": minio_json.encode_key(key), **members})
