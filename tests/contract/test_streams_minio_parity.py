"""A real MinIO writes into Kafka and Elasticsearch, we write the same events beside it, and the two look the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
import urllib3

from app.events.model import Event
from tests import services
from tests.contract.probes import elasticsearch, kafka
from tests.support import minio_life
from tests.support.names import unused
from workers.delivery.outcomes import DELIVERED

pytestmark = pytest.mark.nightly(
    "ids and partitions that MinIO would choose; the targets beside a MinIO in test_targets_minio_parity.py"
)

KEYS = (
    "zero.bin",
    "dir a/myphoto+é &<1>.jpg",
    "100%.txt",
    "%2F%00encoded.txt",
    "emoji-\U0001f600.txt",
    "quote'double\"back.txt",
    "/".join("k" * 200 for _ in range(4)),
)


@dataclass
class Stage:
    """MinIO and what it writes into; `reference` gets the same over a webhook."""

    minio: services.MinIO
    reference: services.Receiver
    topics: kafka.Log
    indices: elasticsearch.Access

    def emitted(self) -> list[Event]:
        """Every event so far, in the order of its arrival."""
        return minio_life.emitted(self.reference)

    def arrives(self, count: int) -> None:
        """Return when this many events are everywhere, so that MinIO cannot mix their order up."""
        services.until(lambda: len(self.emitted()) >= count, 20, what=f"event {count} at the webhook")
        services.until(lambda: len(self.topics.messages("direct")) >= count, 20, what=f"event {count} in Kafka")
        services.until(lambda: len(self.indices.documents("direct-a")) >= count, 20, what=f"document {count}")
        services.until(lambda: self._sequencers() == self._mirrored(), 20, what=f"event {count} in the mirror")

    def _sequencers(self) -> set[str]:
        """The sequencers of the events whose records MinIO's own mirror has."""
        return {hit["_source"]["Records"][0]["s3"]["object"]["sequencer"] for hit in self.indices.documents("direct-n")}

    def _mirrored(self) -> set[str]:
        """The sequencers of the events whose records a mirror has now."""
        newest = {event.key: event for event in self.emitted()}
        return {event.sequencer for event in newest.values() if not event.name.startswith("s3:ObjectRemoved")}


@pytest.fixture(scope="module")
def stage(elastic: services.Elasticsearch, kafka_server: services.Kafka) -> Iterator[Stage]:
    search, broker = elastic, kafka_server
    with services.receiver() as reference:
        topics, indices = kafka.Log(broker), elasticsearch.Access(search)
        topics.create_topic("direct", kafka.PARTITIONS)
        login = {"USERNAME": search.user_name, "PASSWORD": services.PASSWORD, "URL": search.url}
        targets = {"KAFKA": {"K": {"BROKERS": broker.brokers, "TOPIC": "direct"}}}
        targets["ELASTICSEARCH"] = {
            "N": login | {"INDEX": "direct-n", "FORMAT": "namespace"},
            "A": login | {"INDEX": "direct-a", "FORMAT": "access"},
        }
        env = {
            f"MINIO_NOTIFY_{kind}_{key}_{name}": value
            for kind, named in targets.items()
            for name, values in named.items()
            for key, value in (values | {"ENABLE": "on"}).items()
        }
        with services.minio(webhooks={"W": (reference.url, "")}, extra_env=env) as minio:
            made = Stage(minio, reference, topics, indices)
            names = ("W:webhook", "K:kafka", "N:elasticsearch", "A:elasticsearch")
            minio_life.live(minio, names, KEYS, made.arrives)
            yield made


def test_the_same_messages_are_on_the_same_partitions_of_a_topic(stage: Stage) -> None:
    topic = unused("ours")
    stage.topics.create_topic(topic, kafka.PARTITIONS)
    with closing(stage.topics.target({"brokers": stage.topics.server.brokers, "topic": topic})) as target:
        events = stage.emitted()
        assert set(target.deliver(events, 100)) == {DELIVERED}

    def messages(name: str) -> list[tuple[Any, ...]]:
        services.until(lambda: len(stage.topics.messages(name)) >= len(events), 20, what=f"all messages of {name}")
        found = stage.topics.messages(name)
        return [(message.partition(), message.key(), message.value(), message.headers()) for message in found]

    direct = messages("direct")
    assert len(direct) == len(events)
    assert messages(topic) == direct


def raw(stage: Stage, path: str) -> bytes:
    headers = urllib3.make_headers(basic_auth=f"{stage.indices.server.user_name}:{services.PASSWORD}")
    with urllib3.PoolManager() as pool:
        return bytes(pool.request("GET", f"{stage.indices.server.url}/{path}", headers=headers).data)


@pytest.mark.parametrize("window", [1, 100])
def test_a_mirror_has_the_same_documents_under_the_same_ids(stage: Stage, window: int) -> None:
    index = unused(f"ours-n-{window}")
    assert set(elasticsearch.Namespace(stage.indices.server).delivered(stage.emitted(), window, index=index)) == {
        DELIVERED
    }

    def documents(name: str) -> dict[str, Any]:
        return {hit["_id"]: hit["_source"] for hit in stage.indices.documents(name)}

    ours = documents(index)
    services.until(lambda: documents("direct-n") == ours, 20, what=f"MinIO's own documents to be {ours}")
    direct = documents("direct-n")
    assert len(direct) > 4
    for id_ in direct:
        # Sent with a newline at the end, which a bulk request can only have between documents.
        assert raw(stage, f"{index}/_source/{id_}") == raw(stage, f"direct-n/_source/{id_}").rstrip(b"\n")


def test_a_journal_has_the_same_documents_in_the_same_order(stage: Stage) -> None:
    index = unused("ours-a")
    assert set(stage.indices.delivered(stage.emitted(), index=index)) == {DELIVERED}
    ours, direct = ([hit["_source"] for hit in stage.indices.documents(name)] for name in (index, "direct-a"))

    def by_key(hits: list[Any]) -> list[Any]:
        return sorted(hits, key=lambda hit: hit["Records"][0]["s3"]["object"]["key"])

    assert by_key(ours) == by_key(direct)


def test_the_fields_of_both_indices_are_the_same(stage: Stage) -> None:
    index = unused("ours-f")
    assert set(stage.indices.delivered(stage.emitted(), index=index)) == {DELIVERED}
    with stage.indices.client() as client:
        ours, direct = (client.indices.get(index=name)[name] for name in (index, "direct-a"))
    fields, theirs = (each["mappings"]["properties"] for each in (ours, direct))
    assert fields["Records"]["properties"]["eventTime"].pop("ignore_malformed"), "of an event without a time"
    assert fields == theirs
    for each in ("number_of_shards", "number_of_replicas"):
        assert ours["settings"]["index"][each] == direct["settings"]["index"][each]
