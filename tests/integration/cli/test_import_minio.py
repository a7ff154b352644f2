"""`bucketwire import minio`: a real MinIO whose targets are down leaves its events and its rules to us."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import orjson
import pytest
import snappy
from minio.notificationconfig import NotificationConfig, PrefixFilterRule, QueueConfig, SuffixFilterRule

from app.minio_queue_dir import files, read
from app.outbox.engine.database import Database
from tests import services
from tests.integration.api.conftest import keys
from tests.integration.cli.conftest import Cli
from tests.services import until

HOOK, BATCHES = "webhook:down", "kafka:batches"
KEYS = ["a b+c.txt", "päth/%41.txt", *(f"many/{number:03}.txt" for number in range(18))]


@dataclass
class Left:
    """A MinIO, and what it could not deliver: one file for each event of the webhook, batches of ten for Kafka."""

    minio: services.MinIO
    folder: Path


@pytest.fixture(scope="module")
def left() -> Iterator[Left]:
    folder = services.new_folder("queue")
    nobody = f"{services.LOOPBACK}:9"
    settings = {
        "MINIO_NOTIFY_WEBHOOK_ENABLE_down": "on",
        "MINIO_NOTIFY_WEBHOOK_ENDPOINT_down": f"http://{nobody}/",
        "MINIO_NOTIFY_WEBHOOK_QUEUE_DIR_down": str(folder),
        "MINIO_NOTIFY_KAFKA_ENABLE_batches": "on",
        "MINIO_NOTIFY_KAFKA_BROKERS_batches": nobody,
        "MINIO_NOTIFY_KAFKA_TOPIC_batches": "events",
        "MINIO_NOTIFY_KAFKA_QUEUE_DIR_batches": str(folder),
        "MINIO_NOTIFY_KAFKA_BATCH_SIZE_batches": "10",
        "MINIO_NOTIFY_KAFKA_BATCH_COMMIT_TIMEOUT_batches": "1s",  # else a full batch is written after 30 s
    }
    with services.minio(extra_env=settings) as server:
        until(
            lambda: "SQS ARNs:" in server.log.read_text(), 30, what="MinIO's targets, which come after its first answer"
        )
        client = server.client()
        for bucket, name, kind in (("hooked", "down", "webhook"), ("batched", "batches", "kafka")):
            client.make_bucket(bucket)
            suffix = SuffixFilterRule(".txt")
            queue = QueueConfig(
                queue=f"arn:minio:sqs::{name}:{kind}",
                events=["s3:ObjectCreated:*"],
                config_id="one",
                suffix_filter_rule=suffix,
            )
            client.set_bucket_notification(bucket, NotificationConfig(queue_config_list=[queue]))
            for key in KEYS:
                client.put_object(bucket, key, BytesIO(b"x"), 1)
        singles, batches = folder / "minio-webhook-down", folder / "minio-kafka-batches"
        until(lambda: len(list(singles.glob("*.event"))) == len(KEYS), 30, what="the webhook's events in the folder")
        until(lambda: len(list(batches.glob("10:*.snappy"))) == 2, 30, what="two batches in the folder")
        yield Left(server, folder)


@pytest.fixture
def queue(left: Left, tmp_path: Path) -> Path:
    """A copy of what MinIO left, with all that it would choke on."""
    folder = tmp_path / "queue"
    shutil.copytree(left.folder, folder)
    place = folder / "minio-webhook-down"
    (place / "empty.event").touch()
    (place / "blank.event").write_bytes(b" \n\t")
    (place / "half.event").write_bytes(b'{"eventVersion":"2.0","eve')
    (place / "stray.tmp").write_bytes(b"\x00\x01")
    [batch, *_] = (folder / "minio-kafka-batches").glob("*.snappy")
    (batch.parent / "10:cut.event.snappy").write_bytes(batch.read_bytes()[:-40])
    os.mkfifo(place / "pipe.event")
    return folder


@pytest.fixture
def targets(cli: Cli) -> Cli:
    cli("target", "set", HOOK, "endpoint=http://127.0.0.1:9/")
    cli("target", "set", BATCHES, "brokers=127.0.0.1:9", "topic=events")
    return cli


def test_batches_of_a_real_minio_are_read_to_the_last_record(left: Left) -> None:
    found = list(read(files(left.folder)))
    assert [each.problems for each in found if each.problems] == []
    packed = [each for each in found if each.path.name.endswith(".snappy")]
    assert [len(each.events) for each in packed] == [10, 10]
    with pytest.raises(snappy.UncompressError):
        snappy.uncompress(packed[0].path.read_bytes())  # it has the repeat codes that only S2 has
    assert [event.key for each in packed for event in each.events] == KEYS
    assert sorted(event.key for each in found if each not in packed for event in each.events) == sorted(KEYS)
    of_tenant = [event.path for each in read(files(left.folder), "east") for event in each.events]
    assert of_tenant == [f"east:{event.path}" for each in found for event in each.events]


def test_undelivered_events_are_recorded_once_in_their_order_and_nothing_blocks(
    targets: Cli, queue: Path, database: Database
) -> None:
    targets("rule", "add", "hooked", "arn:minio:sqs::down:webhook", "--event", "put")
    before = targets("import", "minio", "--queue-dir", str(queue), "--dry-run", "--json")
    assert before.json["events"] == 2 * len(KEYS)
    assert keys(database) == []

    taken = targets("import", "minio", "--queue-dir", str(queue), "--json")
    assert taken.code == 1, "there is something to look at"
    assert taken.json | {"problems": 0} == {
        "dry_run": False, "files": 20 + 2 + 6, "events": 40, "recorded": 20, "repeated": 0, "not_named_by_rules": 20,
        "empty_files": 2, "problems": 0, "removed_files": 0,
    }  # fmt: skip
    told = {Path(each["file"]).name: each["problem"] for each in taken.json["problems"]}
    assert told.keys() == {"half.event", "stray.tmp", "10:cut.event.snappy", "pipe.event"}
    assert "S2" in told["10:cut.event.snappy"]
    assert keys(database) == KEYS

    targets("rule", "add", "batched", "arn:minio:sqs::batches:kafka", "--event", "put")
    again = targets("import", "minio", "--queue-dir", str(queue), "--remove", "--json").json
    assert (again["recorded"], again["repeated"], again["not_named_by_rules"]) == (20, 20, 0)
    assert sorted(keys(database)) == sorted(KEYS * 2)
    assert again["removed_files"] == 22
    assert {path.name for path in files(queue)} == told.keys() | {"empty.event", "blank.event"}
    counters = {
        f"{target['type']}:{target['name']}": target["events"]["pending"] for target in targets("status", "--json").json
    }
    assert counters == {HOOK: 20, BATCHES: 20}


def test_a_queue_that_would_overflow_is_refused_before_anything_is_recorded(
    targets: Cli, queue: Path, database: Database
) -> None:
    targets("target", "set", HOOK, "queue_limit=19")
    targets("rule", "add", "hooked", "arn:minio:sqs::down:webhook", "--event", "put")
    refused = targets("import", "minio", "--queue-dir", str(queue))
    assert refused.code == 1
    assert "webhook:down would have 20 undelivered events, and its queue_limit is 19" in refused.err
    assert keys(database) == []


def test_the_rules_of_every_bucket_are_copied_and_again_change_nothing(
    cli: Cli, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", left.minio.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", left.minio.secret_key)
    words = ("import", "minio", "--from", left.minio.url)
    refused = cli(*words)
    assert refused.code == 1
    assert "name targets that do not exist here: kafka:batches, webhook:down" in refused.err

    cli("target", "set", HOOK, "endpoint=http://127.0.0.1:9/")
    assert [rule["bucket"] for rule in cli(*words, "--skip-unknown", "--dry-run", "--json").json["added"]] == ["hooked"]
    assert cli("rule", "ls", "--json").json == []

    cli("target", "set", BATCHES, "brokers=127.0.0.1:9", "topic=events")
    assert "2 rules added, 0 rules already present" in cli(*words).out
    assert "0 rules added, 2 rules already present" in cli(*words).out
    of_tenant = cli(*words, "--tenant", "east", "--dry-run", "--json").json["added"]
    assert {rule["bucket"] for rule in of_tenant} == {"east:batched", "east:hooked"}
    for wrong in ("a b", "arn"):
        assert "cannot be a tenant: use 1 to 64 letters" in cli(*words, "--tenant", wrong).err
    rules = cli("rule", "ls", "--json").json
    assert [(rule["bucket"], rule["target"], rule["events"], rule["suffix"], rule["rule_id"]) for rule in rules] == [
        ("batched", "arn:minio:sqs::batches:kafka", ["s3:ObjectCreated:*"], ".txt", "one"),
        ("hooked", "arn:minio:sqs::down:webhook", ["s3:ObjectCreated:*"], ".txt", "one"),
    ]


def test_a_rule_that_only_minio_allows_is_named_and_the_others_are_imported(
    targets: Cli, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", left.minio.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", left.minio.secret_key)
    client = left.minio.client()
    client.make_bucket("odd")
    arn, events = "arn:minio:sqs::down:webhook", ["s3:ObjectCreated:*"]
    queues = [
        QueueConfig(queue=arn, events=events, config_id="dots", prefix_filter_rule=PrefixFilterRule("a/../b/")),
        QueueConfig(queue=arn, events=events, config_id="fine", prefix_filter_rule=PrefixFilterRule("c/")),
    ]
    client.set_bucket_notification("odd", NotificationConfig(queue_config_list=queues))
    try:
        words = ("import", "minio", "--from", left.minio.url)
        planned, done = targets(*words, "--dry-run"), targets(*words)
        assert "3 rules to add" in planned.out
        assert "3 rules added" in done.out
        for told in (planned, done):
            assert told.code == 0
            assert "odd: left out its rule dots: prefix: “a/../b/” contains . or .. as a path segment" in told.err
        assert targets(*words, "--json").json["left_out"]
        assert len(targets("event", "ls", "odd", "--json").json) == 1
    finally:
        client.remove_bucket("odd")


def test_a_server_that_cannot_be_asked_is_told_without_its_secret(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush-9f3")
    for endpoint in (f"http://{services.LOOPBACK}:9", "not an endpoint"):
        refused = cli("import", "minio", "--from", endpoint)
        assert refused.code == 1
        assert endpoint in refused.err
        assert "hush" not in refused.err


def test_one_event_of_two_queues_is_one_event(targets: Cli, left: Left, tmp_path: Path, database: Database) -> None:
    targets("rule", "add", "*", "arn:minio:sqs::down:webhook", "--event", "put")
    folder = tmp_path / "minio-webhook-down"
    folder.mkdir()
    [first, *_] = (left.folder / "minio-webhook-down").glob("*.event")
    record = orjson.loads(first.read_bytes())
    for name in ("one.event", "two.event"):
        (folder / name).write_bytes(orjson.dumps(record))
    assert "1 recorded, 1 already known" in targets("import", "minio", "--queue-dir", str(folder)).out
    assert len(keys(database)) == 1
