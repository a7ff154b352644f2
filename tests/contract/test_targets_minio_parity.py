"""A real MinIO writes into every other server, we write the same events after it, and the two look the same.

Kafka and Elasticsearch have `test_streams_like_minio`, MySQL has `test_mysql_like_minio`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.events.model import Effect, Event
from tests import services
from tests.contract.probes import amqp, mqtt, nats, nats_jetstream, nats_streaming, nsq, postgresql, redis, webhook
from tests.contract.probes.base import Probe
from tests.contract.probes.nats_wire import Wire
from tests.support import minio_life
from workers.delivery.outcomes import DELIVERED

KEYS = (
    "zero.bin",
    "dir a/myphoto+é &<1>.jpg",
    "100%.txt",
    "%2F%00encoded.txt",
    "emoji-\U0001f600.txt",
    "quote'double\"back.txt",
    "/".join("k" * 200 for _ in range(4)),
)
OURS_ALONE = {
    "access_shape",
    "allow_private",
    "body_shape",
    "read_timeout",
    "version",
}  # settings that MinIO does not have


class Place:
    """A server that MinIO writes into, and later we."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        probe.renew()

    def minios(self) -> dict[str, str]:
        """MinIO's settings of it."""
        return {name: text for name, text in self.probe.values().items() if name not in OURS_ALONE}

    def has(self, emitted: Sequence[Event]) -> bool:
        """Whether what these events leave is there."""
        if not self.probe.is_namespace:
            return self.count() >= len(emitted)
        rows: dict[str, Any] = {}
        for event in emitted:
            rows.pop(event.path, None)
            if event.effect is not Effect.REMOVE:
                rows[event.path] = {"Records": [json.loads(event.record)]}
        return rows == {path: json.loads(document) for path, document in self.probe.held()}

    def count(self) -> int:
        """How many entries there are."""
        return len(self.probe.held())

    def entries(self) -> list[tuple[str, Any]]:
        """(path, all that a consumer sees of it) of each entry or row, in order."""
        return list(self.probe.held())

    def built(self) -> object:
        """What its writer made for the entries to lie in."""
        return None


class _RedisPlace(Place):
    probe: redis.Namespace | redis.Access

    def built(self) -> object:
        return self.probe.ask("TYPE", "bucketevents"), self.probe.ask("TTL", "bucketevents")


class _PostgresPlace(Place):
    probe: postgresql.Namespace | postgresql.Access

    def minios(self) -> dict[str, str]:
        chosen = super().minios()
        return chosen | {"connection_string": f"{chosen['connection_string']} sslmode=disable"}

    def entries(self) -> list[tuple[str, Any]]:
        if self.probe.is_namespace:
            return super().entries()
        times = self.probe.ask("SELECT event_time::text FROM bucketevents ORDER BY ctid")
        return [(path, (text, time)) for (path, text), (time,) in zip(super().entries(), times, strict=True)]

    def built(self) -> object:
        columns = "column_name, data_type, is_nullable, column_default, character_maximum_length"
        return (
            self.probe.ask(
                f"SELECT {columns} FROM information_schema.columns WHERE table_name = 'bucketevents' "
                "ORDER BY ordinal_position"
            ),
            self.probe.ask("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'bucketevents' ORDER BY 1"),
        )


class _WebhookPlace(Place):
    probe: webhook.Log

    def entries(self) -> list[tuple[str, Any]]:
        found = []
        for post in self.probe.server.requests():
            if post.method == "POST":
                # Who sends says who it is.
                headers = {name: text for name, text in post.headers.items() if name != "user-agent"}
                found.append((post.json()["Key"], (post.path, headers, post.body)))
        return found


class _Exchange(amqp.Headers):
    """The probe over a server of the session's."""

    def __init__(self, server: services.RabbitMQ) -> None:
        self.server = server

    def bind(self, channel: Any) -> None:
        channel.exchange_delete("minio")
        channel.exchange_declare("minio", "headers", durable=True)
        channel.queue_bind(amqp.QUEUE, "minio", arguments={"x-match": "all-with-x"})  # which everything matches

    def values(self) -> dict[str, str]:
        return super().values() | {"publisher_confirms": "on"}


class _AmqpPlace(Place):
    probe: _Exchange

    def minios(self) -> dict[str, str]:
        chosen = super().minios()
        return chosen | {"publishing_confirms": chosen.pop("publisher_confirms")}  # its variable's name (§4.3)

    def count(self) -> int:
        with self.probe.channel() as channel:
            return int(channel.queue_declare(amqp.QUEUE, passive=True).method.message_count)

    def entries(self) -> list[tuple[str, Any]]:
        # `message_id` is ours alone: what was not routed comes back under it (docs/reference/targets/amqp.md).
        return [
            (json.loads(body)["Key"], ({**vars(properties), "message_id": None}, body))
            for properties, body in self.probe.messages()
        ]


class _StreamingPlace(Place):
    probe: nats_streaming.Streaming

    def count(self) -> int:
        return self.probe._last(self.probe.server)


class _JetStreamPlace(Place):
    probe: nats_jetstream.JetStream

    def count(self) -> int:
        with closing(Wire(self.probe.server)) as wire:
            return int(wire.ask(f"STREAM.INFO.{nats_jetstream.STREAM}")["state"]["messages"])

    def entries(self) -> list[tuple[str, Any]]:
        # `Nats-Msg-Id` is ours alone: by it the server drops what comes twice (docs/reference/targets/nats.md).
        found = []
        for each in self.probe.messages():
            lines = [line for line in each.headers.split("\r\n") if line and not line.startswith("Nats-Msg-Id:")]
            assert lines in ([], ["NATS/1.0"])
            found.append((json.loads(each.body)["Key"], (each.subject, each.body)))
        return found


class _CorePlace(Place):
    probe: nats.Core

    def entries(self) -> list[tuple[str, Any]]:
        return [(json.loads(each.body)["Key"], each) for each in self.probe.server.messages()]


@dataclass
class Stage:
    """What MinIO emitted, what it left at each place, and the places."""

    places: Mapping[str, Place]
    events: list[Event] = field(default_factory=list)
    direct: dict[str, tuple[list[tuple[str, Any]], object]] = field(default_factory=dict)


NAMES = (
    "amqp",
    "mqtt-qos1",
    "nats-core",
    "nats-jetstream",
    "nats-streaming",
    "nsq",
    "postgresql-access",
    "postgresql-namespace",
    "redis-access",
    "redis-namespace",
    "webhook",
)


def _places(rabbitmq_server: services.RabbitMQ, stack: ExitStack) -> dict[str, Place]:
    made: dict[str, Place] = {"amqp": _AmqpPlace(_Exchange(rabbitmq_server))}
    kinds: dict[str, tuple[type[Place], type[Probe]]] = {
        "mqtt-qos1": (Place, mqtt.Qos1),
        "nats-core": (_CorePlace, nats.Core),
        "nats-jetstream": (_JetStreamPlace, nats_jetstream.JetStream),
        "nats-streaming": (_StreamingPlace, nats_streaming.Streaming),
        "nsq": (Place, nsq.Log),
        "postgresql-access": (_PostgresPlace, postgresql.Access),
        "postgresql-namespace": (_PostgresPlace, postgresql.Namespace),
        "redis-access": (_RedisPlace, redis.Access),
        "redis-namespace": (_RedisPlace, redis.Namespace),
        "webhook": (_WebhookPlace, webhook.Log),
    }
    for name, (place, probe) in kinds.items():
        started = probe()
        stack.callback(started.close)
        made[name] = place(started)
    return made


@pytest.fixture(scope="module")
def stage(rabbitmq_server: services.RabbitMQ) -> Iterator[Stage]:
    with ExitStack() as stack:
        reference = stack.enter_context(services.receiver())
        made = Stage(_places(rabbitmq_server, stack))
        env = {}
        for name, place in made.places.items():
            short = {"postgresql": "postgres"}.get(place.probe.type, place.probe.type).upper()
            for key, value in (place.minios() | {"enable": "on"}).items():
                env[f"MINIO_NOTIFY_{short}_{key.upper()}_{name.upper().replace('-', '')}"] = value
        arns = [f"{name.upper().replace('-', '')}:{place.probe.type}" for name, place in made.places.items()]

        def arrives(count: int) -> None:
            """Wait for this many events at every place, so that MinIO cannot mix their order up."""
            services.until(lambda: len(minio_life.emitted(reference)) >= count, 20, what=f"event {count}")
            emitted = minio_life.emitted(reference)
            for name, place in made.places.items():
                services.until(lambda place=place: place.has(emitted), 20, what=f"event {count} at {name}")

        with services.minio(webhooks={"W": (reference.url, "")}, extra_env=env) as minio:
            targets = ["W:webhook", *arns]
            count = minio_life.live(minio, targets, KEYS, arrives)
            minio_life.live_on_in_versions(minio, targets, arrives, count)
        made.events = minio_life.emitted(reference)
        made.direct = {name: (place.entries(), place.built()) for name, place in made.places.items()}
        yield made


def by_path(entries: Sequence[tuple[str, Any]]) -> dict[str, list[Any]]:
    """The entries of each object in their order, which is all the order that is promised."""
    found: dict[str, list[Any]] = {}
    for path, seen in entries:
        found.setdefault(path, []).append(seen)
    return found


def test_everything_that_s3_can_do_to_an_object_was_done(stage: Stage) -> None:
    assert {event.name.removeprefix("s3:Object") for event in stage.events} >= {
        "Created:Put",
        "Created:Copy",
        "Created:CompleteMultipartUpload",
        "Created:PutTagging",
        "Accessed:Head",
        "Removed:Delete",
        "Removed:DeleteMarkerCreated",
    }
    assert any(event.name.endswith("Removed:Delete") and event.version for event in stage.events)


@pytest.mark.parametrize("window", [1, 100])
@pytest.mark.parametrize("name", NAMES)
def test_the_server_holds_the_same_whoever_wrote_it(stage: Stage, name: str, window: int) -> None:
    place, (direct, built) = stage.places[name], stage.direct[name]
    place.probe.renew()
    target = place.probe.target(policy="compatible") if place.probe.is_namespace else place.probe.target()
    target.open()
    assert set(target.deliver(stage.events, window)) == {DELIVERED}
    target.close()
    services.until(lambda: place.has(stage.events), what=f"our events at {name}")
    assert len(direct) == len(stage.events) or place.probe.is_namespace
    assert by_path(place.entries()) == by_path(direct)
    assert place.built() == built
