"""What is Kafka's own as a source: the group that shows the position."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from app.outbox.engine.database import Database
from tests.contract.source_probes.kafka import Topic
from tests.services import until
from tests.support.builders import migrated
from tests.support.pulled_events import Sources, messages, numbered, running, wait_for


@pytest.fixture(scope="module")
def served() -> Iterator[Topic]:
    with closing(Topic()) as topic:
        yield topic


@pytest.fixture
def topic(served: Topic) -> Topic:
    served.renew()
    return served


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with closing(migrated(f"sqlite:///{tmp_path}/outbox.db", partitions=4)) as opened:
        yield opened


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
    url = database.url.render_as_string(hide_password=False)
    Sources(database).put("kafka", {**topic.values(), "batch_size": "1", "group": topic.target.topic})
    with running(url):
        wait_for(database, events)
        until(lambda: shown(topic, topic.target.topic) == len(events), what="the position of the last message")
