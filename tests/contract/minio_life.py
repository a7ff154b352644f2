"""What happens to the objects of a real MinIO while its own targets and a webhook of ours are told of it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

from minio.commonconfig import CopySource, Tags
from minio.error import S3Error
from minio.notificationconfig import NotificationConfig, QueueConfig

from app.events.model import Event
from tests import services
from tests.contract import events

BUCKET = "images"


def emitted(reference: services.Receiver) -> list[Event]:
    """Every event that the webhook got so far, in the order of its arrival."""
    found = []
    for post in reference.requests():
        if post.method != "POST":
            continue
        text = post.body.decode()
        start = text.index('"Records":[') + len('"Records":[')
        found.append(events._from_record(json.loads(text)["Records"][0], text[start:-2]))
    return found


def live(minio: services.MinIO, targets: Sequence[str], keys: Sequence[str], arrives: Callable[[int], None]) -> None:
    """Do one thing after the other with seven objects or more; `arrives(n)` returns when n events are everywhere."""
    client = minio.client()
    client.make_bucket(BUCKET)
    wanted = ["s3:ObjectCreated:*", "s3:ObjectAccessed:*", "s3:ObjectRemoved:*"]
    configs = [QueueConfig(queue=f"arn:minio:sqs::{target}", events=wanted) for target in targets]

    def takes_the_rules() -> bool:
        try:
            client.set_bucket_notification(BUCKET, NotificationConfig(queue_config_list=configs))
        except S3Error as early:  # it answers before it has made its targets
            if "ARN does not exist" not in str(early):
                raise
            return False
        return True

    services.until(takes_the_rules, 20, what="MinIO's targets")

    def put(key: str, content: bytes, **options: Any) -> None:
        client.put_object(BUCKET, key, io.BytesIO(content), len(content), **options)

    tags = Tags.new_object_tags()
    tags["a"] = "b"
    steps: list[Callable[[], object]] = [lambda key=key: put(key, key.encode()) for key in keys]

    def copying() -> object:
        return client.copy_object(BUCKET, "copied", CopySource(BUCKET, keys[1]))

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
    count = 0
    for step in steps:
        step()
        count += 2 if step is copying else 1  # the client looks at the source first
        arrives(count)
