"""What happens to the objects of a real MinIO while its own targets and a webhook of ours are told of it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from minio import Minio
from minio.commonconfig import ENABLED, Tags
from minio.error import S3Error
from minio.notificationconfig import NotificationConfig, QueueConfig
from minio.versioningconfig import VersioningConfig

from app.events.model import Event
from tests import services
from tests.support import sample_events

BUCKET = "images"
VERSIONED = "versions"
PART = 5 * 1024 * 1024  # bytes, the least that S3 takes as a part


def emitted(reference: services.Receiver) -> list[Event]:
    """Every event that the webhook got so far, in the order of its arrival."""
    found = []
    for post in reference.requests():
        if post.method != "POST":
            continue
        text = post.body.decode()
        start = text.index('"Records":[') + len('"Records":[')
        found.append(sample_events._from_record(json.loads(text)["Records"][0], text[start:-2]))
    return found


def watched_bucket(client: Minio, bucket: str, targets: Sequence[str]) -> None:
    """A new bucket, all of whose events go to these targets."""
    client.make_bucket(bucket)
    wanted = ["s3:ObjectCreated:*", "s3:ObjectAccessed:*", "s3:ObjectRemoved:*"]
    configs = [QueueConfig(queue=f"arn:minio:sqs::{target}", events=wanted) for target in targets]

    def takes_the_rules() -> bool:
        try:
            client.set_bucket_notification(bucket, NotificationConfig(queue_config_list=configs))
        except S3Error as early:  # it answers before it has made its targets
            if "ARN does not exist" not in str(early):
                raise
            return False
        return True

    services.until(takes_the_rules, 20, what="MinIO's targets")


def live(minio: services.MinIO, targets: Sequence[str], keys: Sequence[str], arrives: Callable[[int], None]) -> int:
    """Do one thing after the other with seven objects or more; `arrives(n)` returns when n events are everywhere.

    Returns how many events that made.
    """
    client = minio.client()
    watched_bucket(client, BUCKET, targets)

    def put(key: str, content: bytes, **options: Any) -> None:
        client.put_object(BUCKET, key, io.BytesIO(content), len(content), **options)

    tags = Tags.new_object_tags()
    tags["a"] = "b"
    steps: list[Callable[[], object]] = [lambda key=key: put(key, key.encode()) for key in keys]

    def copying() -> object:
        # Minio's own client looks at the source first, and MinIO could mix up the order of these two events.
        with closing(minio.boto3()) as s3:
            return s3.copy_object(Bucket=BUCKET, Key="copied", CopySource={"Bucket": BUCKET, "Key": keys[1]})

    steps += [
        lambda: put(keys[0], b"", metadata={"A-Note": "x <y> & z"}),
        lambda: client.stat_object(BUCKET, keys[1]),
        lambda: client.remove_object(BUCKET, keys[2]),
        copying,
        lambda: client.set_object_tags(BUCKET, "copied", tags),
        lambda: client.remove_object(BUCKET, "copied"),
        lambda: put("copied", b"again"),
        lambda: client.remove_object(BUCKET, keys[6]),
    ]
    for count, step in enumerate(steps, 1):
        step()
        arrives(count)
    return len(steps)


def live_on_in_versions(
    minio: services.MinIO, targets: Sequence[str], arrives: Callable[[int], None], count: int
) -> None:
    """After `count` events: an upload in parts, then the versions of an object written, hidden, shown and removed."""
    client = minio.client()
    parts, size = io.BytesIO(bytes(PART + 1)), PART + 1
    client.put_object(BUCKET, "in parts", parts, size, part_size=PART)
    arrives(count := count + 1)
    watched_bucket(client, VERSIONED, targets)
    client.set_bucket_versioning(VERSIONED, VersioningConfig(ENABLED))
    written = []
    for content in (b"old", b"new"):
        written.append(client.put_object(VERSIONED, "kept", io.BytesIO(content), len(content)).version_id)
        arrives(count := count + 1)
    client.put_object(VERSIONED, "hidden", io.BytesIO(b"x"), 1)
    arrives(count := count + 1)
    client.remove_object(VERSIONED, "hidden")
    arrives(count := count + 1)
    client.remove_object(VERSIONED, "kept")
    arrives(count := count + 1)
    markers = [each for each in client.list_objects(VERSIONED, "kept", include_version=True) if each.is_delete_marker]
    client.remove_object(VERSIONED, "kept", version_id=markers[0].version_id)
    arrives(count := count + 1)
    client.remove_object(VERSIONED, "kept", version_id=written[0])
    arrives(count + 1)
