"""The consumers on the pages of Kafka and Elasticsearch, as they stand there."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from app.outbox.engine.database import now_ms
from tests import services
from tests.contract.probes import elasticsearch, kafka
from tests.support import sample_events
from tests.support.doc_consumers import consumers, following, output
from tests.support.names import unused
from workers.delivery.outcomes import DELIVERED

pytestmark = pytest.mark.nightly("the consumers on the pages of the other targets")

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_consumer_of_kafka_reads_what_was_delivered(kafka_server: services.Kafka) -> None:
    server, topic, group = kafka_server, unused("minio_events"), unused("mine")
    probe = kafka.Log(server)
    probe.create_topic(topic, kafka.PARTITIONS)
    assert (
        probe.delivered(
            [sample_events.put("cat.jpg"), sample_events.delete("cat.jpg")],
            1,
            {"brokers": server.brokers, "topic": topic},
        )
        == [DELIVERED] * 2
    )
    places = {"localhost:9092": server.brokers, '"minio_events"': f'"{topic}"', '"mine"': f'"{group}"'}
    (program,) = consumers("kafka", **places)
    with following(program) as lines:
        services.until(lambda: len(lines()) == 2, 30, what="two events")
        assert lines() == ["s3:ObjectCreated:Put images/cat.jpg", "s3:ObjectRemoved:Delete images/cat.jpg"]


def test_the_consumer_of_elasticsearch_reads_what_was_delivered(elastic: services.Elasticsearch) -> None:
    server = elastic
    probe = elasticsearch.Namespace(server)
    with closing(probe.target(index="bucketobjects")) as target:
        batch = [
            sample_events.put("small cat.jpg", number=7),
            sample_events.put("cat.jpg", number=77),
            sample_events.put("gone.jpg"),
        ]
        assert set(target.deliver([*batch, sample_events.delete("gone.jpg")], 1)) == {DELIVERED}
    places = {
        "http://localhost:9200": server.url,
        '"me"': f'"{server.user_name}"',
        '"secret"': f'"{services.PASSWORD}"',
    }
    (program,) = consumers("elasticsearch", **places)
    assert output(program) == ["cat.jpg 77", "small cat.jpg 7"]


def test_the_example_counts_events_by_the_hour_as_kibana_does(elastic: services.Elasticsearch) -> None:
    server, index = elastic, unused("counted-by-the-hour")
    probe = elasticsearch.Access(server)
    with closing(probe.target(index=index, access_shape="guide")) as target:
        now = now_ms()
        batch = [sample_events.put("a"), sample_events.put("b"), sample_events.delete("a"), sample_events.head("b")]
        batch = [event._replace(time=now) for event in [*batch, sample_events.put("c", bucket="other")]]
        old = sample_events.put("a")._replace(time=now - 8 * 86_400_000)
        assert set(target.deliver([*batch, old], 1)) == {DELIVERED}
    with probe.client() as client:
        client.indices.refresh(index=index)
    program = (EXAMPLES / "subscribers/elasticsearch_per_hour.py").read_text()
    for told, actual in (
        ("http://localhost:9200", server.url),
        ('"me"', f'"{server.user_name}"'),
        ('"secret"', f'"{services.PASSWORD}"'),
        ("bucketevents", index),
    ):
        program = program.replace(told, actual)
    counts = [line.split()[1:] for line in output(program)]
    assert counts == [["s3:ObjectCreated:Put", "2"], ["s3:ObjectRemoved:Delete", "1"]]
