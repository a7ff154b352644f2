"""What docs/how-to/send-from-minio.md says about the settings of MinIO's webhook, at a real MinIO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from app.events.parsing import parse
from tests import services
from tests.services import until

pytestmark = pytest.mark.nightly("other targets beside a MinIO in test_targets_minio_parity.py")

LIMIT = 2


@dataclass
class Source:
    """A MinIO with a bucket and a rule for each of its webhooks, which post to the receiver at their own paths."""

    minio: services.MinIO
    receiver: services.Receiver
    folder: Path
    s3: Any
    rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def put(self, bucket: str, *keys: str) -> None:
        for key in keys:
            self.s3.put_object(Bucket=bucket, Key=key, Body=b"x")

    def sent(self, webhook: str) -> list[str]:
        """The keys that arrived at a webhook's path with a 2xx answer, in the order of arrival."""
        posts = self.receiver.requests(f"/{webhook}")
        return [post.json()["Records"][0]["s3"]["object"]["key"] for post in posts if post.status < 300]

    def queued(self, webhook: str) -> list[str]:
        return sorted(path.name for path in (self.folder / f"minio-webhook-{webhook}").iterdir())


def source(stack: ExitStack, *, sync: bool, buckets: Mapping[str, tuple[str, ...]]) -> Source:
    receiver, folder = stack.enter_context(services.receiver()), services.new_folder("queue")
    settings = {"MINIO_API_SYNC_EVENTS": "on" if sync else "off"}
    for name in {name for names in buckets.values() for name in names}:
        settings[f"MINIO_NOTIFY_WEBHOOK_ENABLE_{name}"] = "on"
        settings[f"MINIO_NOTIFY_WEBHOOK_ENDPOINT_{name}"] = f"{receiver.url}{name}"
        if "stored" in name:
            settings[f"MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_{name}"] = str(folder)
        if "small" in name:
            settings[f"MINIO_NOTIFY_WEBHOOK_QUEUE_LIMIT_{name}"] = str(LIMIT)
    minio = stack.enter_context(services.minio(extra_env=settings))
    until(lambda: "SQS ARNs:" in minio.log.read_text(), 30, what="MinIO's targets")
    s3 = minio.boto3()
    stack.callback(s3.close)
    for bucket, names in buckets.items():
        s3.create_bucket(Bucket=bucket)
        events = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
        rules = [{"QueueArn": minio.arn(name), "Events": events} for name in names]
        s3.put_bucket_notification_configuration(
            Bucket=bucket, NotificationConfiguration={"QueueConfigurations": rules}
        )
    return Source(minio, receiver, folder, s3)


@pytest.fixture
def asynchronous() -> Iterator[Source]:
    buckets = {
        "direct": ("direct",), "stored": ("stored",), "limited": ("stored_small",), "pair": ("one", "other"),
        "slow": ("slow",),
    }  # fmt: skip
    with ExitStack() as stack:
        yield source(stack, sync=False, buckets=buckets)


@pytest.fixture
def synchronous() -> Iterator[Source]:
    with ExitStack() as stack:
        yield source(stack, sync=True, buckets={"direct": ("direct",), "stored": ("stored",)})


def test_without_queue_dir_what_cannot_be_posted_is_lost_and_with_it_kept_up_to_queue_limit(
    asynchronous: Source,
) -> None:
    asynchronous.put("direct", "before")
    until(lambda: asynchronous.sent("direct") == ["before"])
    asynchronous.receiver.stop()
    asynchronous.put("direct", "lost")
    asynchronous.put("stored", "kept")
    until(lambda: len(asynchronous.queued("stored")) == 1)
    for number in range(1, LIMIT + 2):
        asynchronous.put("limited", f"{number}")
        until(lambda number=number: len(asynchronous.queued("stored_small")) == min(number, LIMIT))  # type: ignore[misc]
    asynchronous.receiver.start()
    until(lambda: asynchronous.sent("stored") == ["kept"], 20)
    until(lambda: sorted(asynchronous.sent("stored_small")) == ["1", "2"], 20)
    asynchronous.put("direct", "after")
    asynchronous.put("limited", "4")
    until(lambda: asynchronous.sent("direct") == ["before", "after"], 20)
    until(lambda: sorted(asynchronous.sent("stored_small")) == ["1", "2", "4"], 20)


def test_an_answer_other_than_2xx_loses_the_event_or_with_queue_dir_is_followed_by_another_attempt(
    asynchronous: Source,
) -> None:
    asynchronous.receiver.take()
    asynchronous.receiver.set(services.Answer(status=503, times=2))
    asynchronous.put("direct", "refused")
    until(lambda: len(asynchronous.receiver.requests("/direct")) == 1)
    asynchronous.put("stored", "refused")
    until(lambda: asynchronous.sent("stored") == ["refused"], 20)
    assert [post.status for post in asynchronous.receiver.requests("/stored")] == [503, 200]
    assert [post.status for post in asynchronous.receiver.requests("/direct")] == [503]


def test_two_webhooks_with_the_same_rule_send_the_same_event_which_is_recorded_once(asynchronous: Source) -> None:
    asynchronous.put("pair", "twice")
    until(lambda: asynchronous.sent("one") == asynchronous.sent("other") == ["twice"])
    ids = [
        event.id
        for name in ("one", "other")
        for body in asynchronous.receiver.bodies(f"/{name}")
        for event in parse(body, {}, now_ms=0).events
    ]
    assert len(ids) == 2
    assert len(set(ids)) == 1


def test_with_sync_events_a_put_returns_after_the_post_or_with_queue_dir_after_the_file(synchronous: Source) -> None:
    synchronous.put("direct", "first")
    assert synchronous.sent("direct") == ["first"]
    synchronous.receiver.stop()
    synchronous.put("stored", "kept")
    assert len(synchronous.queued("stored")) == 1
    synchronous.put("direct", "lost although the request succeeds")
    synchronous.receiver.start()
    until(lambda: synchronous.sent("stored") == ["kept"], 20)
    assert synchronous.sent("direct") == ["first"]


def test_what_is_in_memory_is_lost_when_minio_stops(asynchronous: Source) -> None:
    """MinIO posts as many events at a time as it has processors."""
    asynchronous.receiver.take()
    asynchronous.receiver.set(services.Answer(delay=60, path="/slow"))
    asynchronous.put("slow", *map(str, range(40)))
    asynchronous.minio.stop()
    asynchronous.receiver.set()
    asynchronous.minio.start()
    until(lambda: asynchronous.minio.log.read_text().count("SQS ARNs:") == 2, 30, what="MinIO's targets")
    asynchronous.put("direct", "later")
    until(lambda: asynchronous.sent("direct") == ["later"], 20)
    assert len(asynchronous.receiver.requests("/slow")) < 40


EXPIRE_ALL = """expire:
  apiVersion: v1
  bucket: direct
  prefix: batch/
  rules:
    - type: object
      purge: {retainVersions: 0}
"""


def test_a_batch_that_expires_and_a_forced_removal_send_nothing(synchronous: Source) -> None:
    keys = ["batch/0", "batch/1", "forced/0", "forced/1"]
    synchronous.put("direct", *keys)
    job = synchronous.folder / "expire.yaml"
    job.write_text(EXPIRE_ALL)
    synchronous.minio.mc("batch", "start", "m", str(job))
    until(lambda: left(synchronous) == keys[2:], 30, what="objects that are expired")
    synchronous.minio.mc("rm", "--force", "--purge", "m/direct/forced/")
    until(lambda: left(synchronous) == [], 30, what="objects that are removed")
    synchronous.put("direct", "known")
    synchronous.s3.delete_object(Bucket="direct", Key="known")
    until(lambda: len(synchronous.sent("direct")) == 6, what="the last events")
    assert synchronous.sent("direct") == [key.replace("/", "%2F") for key in keys] + ["known", "known"]


def left(given: Source) -> list[str]:
    """The keys in the bucket."""
    return [one["Key"] for one in given.s3.list_objects_v2(Bucket="direct").get("Contents", ())]
