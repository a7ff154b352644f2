"""What is Kafka's own as a source: the group that shows the position, and headers."""

from __future__ import annotations

import base64
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, ResourceType
from kafka import KafkaProducer
from kafka.coordinator.consumer import ConsumerCoordinator
from kafka.protocol.consumer import OffsetForLeaderEpochRequest

from app.config.arn import SourceId
from app.config.sources.kafka import KafkaSourceSettings
from app.config.target_settings import load
from app.events.limits import Limits
from app.events.model import Event
from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import StillRejected
from tests.contract.probes.kafka import PARTITIONS
from tests.contract.source_probes.kafka import Topic
from tests.services import until
from tests.support.pulled_events import (
    KEYS,
    Sources,
    check_minio,
    messages,
    numbered,
    pull,
    recorded,
    running,
    wait_for,
)
from tests.support.reported_senders import RIGHT, logged_facts, reports
from workers.source_test import run_source_test
from workers.sources.base import SourceUnavailable
from workers.systems.kafka.client import Client
from workers.systems.kafka.source import KafkaSource, read_position
from workers.targets.sockets import MAX_MESSAGE_BYTES

# The server is that of the source contract.
pytestmark = pytest.mark.parametrize("served", ["kafka"], indirect=True)


@pytest.fixture
def topic(served: Topic) -> Topic:
    served.renew()
    return served


def shown(topic: Topic, group: str) -> int:
    """The offset that the group shows of partition 0."""
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic.target.topic, 0)])
    admin = topic.target.admin()  # kept until it has answered
    [found] = admin.list_consumer_group_offsets([asked])[group].result(20).topic_partitions
    return int(found.offset)


def test_the_group_shows_the_position_of_a_topic_in_which_nothing_happens_any_more(
    topic: Topic, database: Database
) -> None:
    events = numbered(10)
    topic.send(messages(events))
    Sources(database).put("kafka", {**topic.values(), "batch_size": "1", "group": topic.target.topic})
    with running(database):
        wait_for(database, events)
        until(lambda: shown(topic, topic.target.topic) == len(events), what="the position of the last message")


def test_a_batch_that_unpacks_to_too_much_is_rejected_and_passed_over(topic: Topic, database: Database) -> None:
    events = numbered(2)
    topic.send(messages(events[:1]))
    size = MAX_MESSAGE_BYTES + (1 << 20)
    producer = KafkaProducer(
        bootstrap_servers=topic.server.brokers,
        compression_type="gzip",
        max_request_size=2 * size,
    )
    with closing(producer):
        producer.send(topic.target.topic, bytes(size), partition=0).get(60)
    topic.send(messages(events[1:]))
    sources = Sources(database)
    source = sources.put("kafka", topic.values())
    with running(database):
        wait_for(database, events)
    [kept] = sources.rejected.page(sources.stored(source), limit=2)
    assert f"topic {topic.target.topic}, partition 0: offsets 1 to 1 cannot be read: it unpacks to more" in kept.reason


class Latin(str):
    """A header's name as clients write it that do not look at its bytes."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return super().encode("latin-1")


@pytest.mark.promise
def test_a_header_whose_name_is_no_text_stops_nothing(topic: Topic, database: Database) -> None:
    events = numbered(3)
    bodies = messages(events)
    with closing(KafkaProducer(bootstrap_servers=topic.server.brokers)) as producer:
        for body, headers in ((bodies[0], []), (bodies[1], [(Latin("é"), b"x")]), (bodies[2], [])):
            producer.send(topic.target.topic, body, headers=headers, partition=0)
        producer.flush(30)
    Sources(database).put("kafka", topic.values())
    with running(database):
        wait_for(database, events)
    assert recorded(database) == [one.id for one in events]


def test_what_a_seaweedfs_has_written_is_recorded_by_the_path_in_the_key(topic: Topic, database: Database) -> None:
    fixture = Path(__file__).parents[1] / "fixtures" / "seaweedfs_kafka.jsonl"
    lines = [json.loads(line) for line in fixture.read_text(encoding="utf-8").splitlines()]
    with closing(KafkaProducer(bootstrap_servers=topic.server.brokers)) as producer:
        for line in [{"key": "/buckets/images/cut", "body": "Cv8="}, *lines]:
            producer.send(topic.target.topic, base64.b64decode(line["body"]), key=line["key"].encode(), partition=0)
        producer.flush(30)
    sources = Sources(database)
    source = sources.put("kafka", topic.values())
    with running(database):
        until(lambda: len(recorded(database)) == 9, what="the events of the objects")
        until(lambda: sources.stored(source).messages == 26, what="every message")
    [rejected] = sources.rejected.page(sources.stored(source), limit=2)
    assert "no message of a SeaweedFS filer" in rejected.reason
    with pytest.raises(StillRejected, match="no message of a SeaweedFS filer"):
        sources.rejected.retry(sources.stored(source), rejected.number, Limits(), None)


def test_what_is_reported_of_senders_is_recorded_and_what_is_refused_says_why(topic: Topic, database: Database) -> None:
    # A source has one frontend for all, and these messages have no headers.
    known = [number for number in RIGHT if not reports()[number]["query"] and not reports()[number].get("headers")]
    topic.send([json.dumps(reports()[number]["body"]).encode() for number in known])
    sources = Sources(database)
    source = sources.put("kafka", topic.values())
    refused = [right for number in known if isinstance(right := RIGHT[number], str)]
    expected = [fact for number in known if not isinstance(right := RIGHT[number], str) for fact in right]
    with running(database):
        until(lambda: sources.stored(source).messages == len(known), what="every message")
    assert sorted(logged_facts(database)) == sorted(expected)
    kept = sources.rejected.page(sources.stored(source), limit=100)
    assert len(kept) == len(refused)
    assert all(words in one.reason for words, one in zip(refused, kept, strict=True))


def test_what_a_real_minio_writes_is_recorded(topic: Topic, database: Database) -> None:
    check_minio(database, "kafka", topic.values(), "kafka", BROKERS=topic.server.brokers, TOPIC=topic.target.topic)


def test_a_partition_that_is_added_is_read_from_its_beginning(topic: Topic, database: Database) -> None:
    sources, events = Sources(database), numbered(4)
    source = sources.put("kafka", {**topic.values(), "start": "latest"})
    topic.send(messages(events[:1]))
    with running(database):
        until(lambda: len(offsets(sources, source)) == PARTITIONS, what="the positions at which it begins")
        topic.send(messages(events[1:3]))
        wait_for(database, events[1:3])
        admin = topic.target.admin()
        admin.create_partitions([NewPartitions(topic.target.topic, PARTITIONS + 1)])[topic.target.topic].result(20)
        topic.send(messages(events[3:]), PARTITIONS)
        wait_for(database, events[3:], 60)
    assert recorded(database) == [one.id for one in events[1:]]
    assert sources.stored(source).notice == ""


def test_messages_that_kafka_has_removed_are_counted_and_those_after_them_are_pulled(
    topic: Topic, database: Database
) -> None:
    sources, events = Sources(database), numbered(6)
    source = sources.put("kafka", topic.values())
    topic.send(messages(events[:2]))
    with running(database):
        wait_for(database, events[:2])
    topic.send(messages(events[2:5]))
    admin = topic.target.admin()
    [removed] = admin.delete_records([TopicPartition(topic.target.topic, 0, 4)]).values()
    removed.result(20)
    with running(database):
        wait_for(database, events[4:5])
        assert sources.stored(source).notice == "2 messages of partition 0 were removed before they were pulled"
        admin.delete_topics([topic.target.topic])[topic.target.topic].result(20)
        until(lambda: sources.state(source) == "failing", 60, what="a failing source")
        topic.target.create_topic(topic.target.topic, PARTITIONS)
        topic.send(messages(events[5:]))
        wait_for(database, events[5:], 60)
    assert "the topic was made again" in sources.stored(source).notice
    assert recorded(database) == [one.id for one in [*events[:2], *events[4:]]]


@pytest.mark.promise
def test_what_compaction_leaves_of_a_topic_is_recorded_in_order_and_that_it_removes_messages_is_said(
    topic: Topic, database: Database
) -> None:
    sources, events = Sources(database), numbered(40)
    values = {**topic.values(), "topic": f"{topic.target.topic}-compacted"}
    config = {"cleanup.policy": "compact,delete", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.01"}
    topic.target.create_topic(values["topic"], 1, **config)
    clean_soon(topic)
    source = sources.put("kafka", values)
    send_keyed(topic, values["topic"], events[:2])
    with running(database):
        wait_for(database, events[:2])
    send_keyed(topic, values["topic"], events[2:])
    left = list[bytes]()

    def is_compacted() -> bool:
        left[:] = [message.value() for message in topic.target.messages(values["topic"])]
        return len(left) == KEYS + 1  # nothing more is removed: the segment that is written to stays as it is

    until(is_compacted, 60, what="a topic of which Kafka has removed all that it ever will")
    kept = [one for one in events[2:] if messages([one])[0] in left]
    step, *_ = run_source_test(load(KafkaSourceSettings, values), {}, Limits())
    assert "cleanup.policy=compact" in step.message
    with running(database):
        wait_for(database, kept)
        until(lambda: sources.stored(source).lag == 0, what="no lag")
        stored = sources.stored(source)
        assert "cleanup.policy=compact" in stored.state_reason(now_ms())
        assert recorded(database) == [one.id for one in [*events[:2], *kept]]
        assert stored.notice == ""
        alter(topic, ResourceType.TOPIC, values["topic"], "cleanup.policy", "delete")
        sources.registry.resume(source)
        until(lambda: sources.state(source) == "running", what="a source that was opened again")
        assert sources.stored(source).reason == ""


def send_keyed(topic: Topic, name: str, events: Sequence[Event]) -> None:
    """Write events with the object's key, as MinIO does, each in a segment of its own."""
    producer = Producer({"bootstrap.servers": topic.server.brokers, "linger.ms": 0})
    for one in events:
        producer.produce(name, messages([one])[0], key=one.key)
        assert producer.flush(30) == 0
        time.sleep(0.003)  # a segment ends by the messages' times, at least 1 ms apart


def clean_soon(topic: Topic) -> None:
    """Have the broker look all the time for what it may remove; it does so every 15 s unless set."""
    [broker] = topic.target.admin().list_topics(timeout=20).brokers
    alter(topic, ResourceType.BROKER, str(broker), "log.cleaner.backoff.ms", "100")


def alter(topic: Topic, kind: ResourceType, name: str, setting: str, value: str) -> None:
    """Change a setting of the broker, or of a topic."""
    entry = ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
    admin = topic.target.admin()  # kept until it has answered
    [changed] = admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]).values()
    changed.result(20)


def make_again(topic: Topic, partitions: int = PARTITIONS) -> None:
    """Delete the topic, and create one of its name."""
    admin = topic.target.admin()  # kept until it has answered
    admin.delete_topics([topic.target.topic])[topic.target.topic].result(20)
    topic.target.create_topic(topic.target.topic, partitions)


@pytest.mark.promise
@pytest.mark.parametrize("count", [2, 5], ids=["equal", "longer"])
def test_a_topic_that_was_made_again_is_pulled_from_its_beginning_also_if_it_has_the_position(
    topic: Topic, database: Database, count: int
) -> None:
    sources, events = Sources(database), numbered(2 + count)
    source = sources.put("kafka", topic.values())
    topic.send(messages(events[:2]))
    with running(database):
        wait_for(database, events[:2])
    make_again(topic)
    topic.send(messages(events[2:]))
    with running(database):
        wait_for(database, events)
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    assert sources.stored(source).notice == "the topic was made again; it is pulled from its beginning"
    assert recorded(database) == [one.id for one in events]


@pytest.mark.promise
def test_a_topic_that_is_made_again_while_it_is_pulled_loses_nothing(topic: Topic, database: Database) -> None:
    sources, events = Sources(database), numbered(8)
    source = sources.put("kafka", topic.values())
    topic.send(messages(events[:2]))
    with running(database):
        wait_for(database, events[:2])
        make_again(topic)
        topic.send(messages(events[2:]))
        wait_for(database, events, 60)
        until(lambda: offsets(sources, source)["0"] == 6, what="the position in the new topic")
    assert "the topic was made again" in sources.stored(source).notice
    assert sources.stored(source).recorded == 8


@pytest.mark.promise
@pytest.mark.parametrize("sent", [5, 30], ids=["shorter", "longer"])
def test_a_partition_that_has_lost_its_end_is_pulled_from_there_also_if_it_has_grown_beyond_the_position(
    topic: Topic, database: Database, tmp_path: Path, sent: int
) -> None:
    """The broker's disk is that of before, as a replica's that becomes the leader without having had all messages."""
    sources, events = Sources(database), numbered(20 + sent)
    source = sources.put("kafka", topic.values())
    folder, older = topic.server.folder / "data" / f"{topic.target.topic}-0", tmp_path / "older"
    topic.send(messages(events[:10]))
    topic.server.stop()
    shutil.copytree(folder, older)
    topic.server.start()
    topic.send(messages(events[10:20]))
    with running(database):
        wait_for(database, events[:20])
    topic.server.stop()
    shutil.rmtree(folder)
    shutil.copytree(older, folder)
    topic.server.start()
    topic.send(messages(events[20:]))
    with running(database):
        wait_for(database, events)
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    stored = sources.stored(source)
    assert recorded(database) == [one.id for one in events]
    assert "partition 0 has lost its messages from offset 10 on" in stored.notice
    assert (stored.messages, stored.repeated) == (20 + sent, 0)


@pytest.mark.parametrize("part", ["topics", "partitions", "number"])
def test_an_answer_without_the_end_of_an_epoch_is_not_taken_for_a_partition_that_has_all(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    ask = Client.ask

    def asked(self: Client, request: Any, *arguments: Any) -> Any:
        answer = ask(self, request, *arguments)
        if isinstance(request, OffsetForLeaderEpochRequest):
            if part == "topics":
                answer.topics = []
            elif part == "partitions":
                answer.topics[0].partitions = []
            else:
                answer.topics[0].partitions[0].partition = 77
        return answer

    monkeypatch.setattr(Client, "ask", asked)
    topic.send([b"{}"] * 3)
    source = KafkaSource(load(KafkaSourceSettings, topic.values()))
    with closing(source), pytest.raises(SourceUnavailable, match="does not say where the epochs of partition 0 end"):
        source.open({"0": "2:0"})


def test_a_broker_that_does_not_say_where_an_epoch_ends_is_pulled_from_all_the_same(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka before 2.1 says it to its own brokers alone."""
    config = KafkaSource._config
    monkeypatch.setattr(KafkaSource, "_config", lambda source: config(source) | {"api_version": (2, 0)})
    topic.send([b"{}"] * 3)
    with closing(KafkaSource(load(KafkaSourceSettings, topic.values()))) as source:
        assert source.open({"0": "2:0"}).lost == []
        [message] = pull(source, 1)
    assert message.position == "3:0"


def test_a_topic_that_was_made_again_with_fewer_partitions_is_read_whole_when_it_gets_more(
    topic: Topic, database: Database
) -> None:
    sources, events = Sources(database), numbered(6)
    source = sources.put("kafka", topic.values())
    topic.send(messages(events[:2]), PARTITIONS - 1)
    with running(database):
        wait_for(database, events[:2])
    make_again(topic, 1)
    topic.send(messages(events[2:3]))
    with running(database):
        wait_for(database, events[2:3])
    admin = topic.target.admin()
    admin.create_partitions([NewPartitions(topic.target.topic, PARTITIONS)])[topic.target.topic].result(20)
    topic.send(messages(events[3:]), PARTITIONS - 1)
    with running(database):
        wait_for(database, events)
    assert sources.stored(source).recorded == 6


def test_the_test_of_a_source_counts_no_topic_id_among_its_positions(topic: Topic) -> None:
    first, *_ = run_source_test(load(KafkaSourceSettings, topic.values()), {}, Limits())
    assert (first.step, first.message) == ("open", "begins at new positions")


def test_a_group_without_a_coordinator_holds_up_nothing(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only broker that has the group may be down, while every partition of the topic has a leader."""
    monkeypatch.setattr(ConsumerCoordinator, "ensure_coordinator_ready", lambda *_, **__: False)
    topic.send([b"{}"] * 3)
    left = 3
    with closing(KafkaSource(load(KafkaSourceSettings, topic.values()))) as source:
        source.open({})

        def has_all() -> bool:
            nonlocal left
            left -= len(source.pull(10, 1))
            return left == 0

        until(has_all, 30, what="the messages")


def test_markers_of_transactions_that_kafka_removes_are_no_lost_messages(topic: Topic, database: Database) -> None:
    sources, [event] = Sources(database), numbered(1)
    source = sources.put("kafka", topic.values())
    producer = Producer({"bootstrap.servers": topic.server.brokers, "transactional.id": topic.target.topic})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic.target.topic, messages([event])[0], partition=0)
    producer.commit_transaction(60)
    after_it = {**dict.fromkeys(map(str, range(PARTITIONS)), "0"), "0": "1"}
    *_, step = run_source_test(load(KafkaSourceSettings, topic.values()), after_it, Limits())
    assert step.message == "no message waits"
    with running(database):
        wait_for(database, [event])
        until(lambda: offsets(sources, source)["0"] == 2, what="the position after the marker")
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    admin = topic.target.admin()
    [removed] = admin.delete_records([TopicPartition(topic.target.topic, 0, 2)]).values()
    removed.result(20)
    with running(database):
        until(lambda: sources.stored(source).lag is not None and sources.state(source) == "running", what="a pull")
        stored = sources.stored(source)
    assert (stored.notice, stored.messages, stored.recorded) == ("", 1, 1)


def offsets(sources: Sources, source: SourceId) -> dict[str, int]:
    """The offset of the next message of each partition."""
    positions = sources.registry.positions(sources.stored(source))
    return {share: read_position(position).next for share, position in positions.items() if share.isdigit()}
