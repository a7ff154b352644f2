"""Kafka when it is more than one broker, and when it is stricter than usual: leaders, replicas, topics, rights."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from app.events.model import Event
from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes.base import LIMIT, attempt
from tests.contract.probes.kafka import Log
from tests.support import sample_events
from tests.support.pulled_events import Sources, check_failover, messages, numbered, recorded, running, wait_for
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Unavailable
from workers.systems.kafka.target import partition_of
from workers.targets.base import Target, TargetUnavailable

pytestmark = pytest.mark.nightly(
    "Redis with Sentinels, a cluster of NATS; a killed, frozen and absent Kafka; test_kafka_source.py"
)

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(eq=False)
class Broker(services.Kafka):
    """One with settings of its own; `follows` makes it a further broker of that one's cluster."""

    extra: tuple[str, ...] = ()
    follows: services.Kafka | None = None
    number: int = 2

    def _properties(self, store: Path, ca: Path, controller: int) -> list[str]:
        lines = super()._properties(store, ca, controller) + [f"{line}\n" for line in self.extra]
        if self.follows is None:
            return lines
        first = (self.follows.folder / "server.properties").read_text().splitlines(keepends=True)
        voters = [line for line in first if line.startswith("controller.quorum.voters=")]
        (listeners,) = [line for line in lines if line.startswith("listeners=")]
        own = listeners.partition(",CONTROLLER")[0] + "\n"
        return [*lines, *voters, own, "process.roles=broker\n", f"node.id={self.number}\n"]


# Makes no topics, and lets nobody but the users of the plaintext listener do anything.
STRICT = (
    "auto.create.topics.enable=false",
    f"authorizer.class.name={AUTHORIZER}",
    "super.users=User:ANONYMOUS",
)


@pytest.fixture(scope="module")
def first_broker() -> Iterator[Broker]:
    """One that is strict; later tests add others to its cluster."""
    with Broker(extra=STRICT).start() as server:
        yield server


@pytest.fixture
def strict(first_broker: Broker) -> Log:
    probe = Log(first_broker)
    probe.renew()
    return probe


def test_a_topic_that_is_not_there_is_unavailable_until_it_is(strict: Log) -> None:
    strict.topic = f"{strict.topic}-later"
    target = strict.target()
    began = time.monotonic()
    with pytest.raises(TargetUnavailable, match=r"UnknownTopicOrPartition.*create it") as caught:
        target.open()
    assert time.monotonic() - began < LIMIT
    assert strict.topic in caught.value.reason
    strict.create_topic(strict.topic, 3)
    assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
    target.close()


def test_a_topic_that_is_deleted_meanwhile_is_unavailable(strict: Log) -> None:
    with strict.opened() as target:
        assert list(target.deliver([sample_events.put("a")], 1)) == [DELIVERED]
        admin = strict.admin()
        admin.delete_topics([strict.topic])[strict.topic].result(20)
        began = time.monotonic()
        outcomes = attempt(target, [sample_events.put("a"), sample_events.put("a")], 1)
        assert time.monotonic() - began < LIMIT
    assert isinstance(outcomes[0], Unavailable)
    assert "UnknownTopic" in outcomes[0].reason
    assert outcomes[1] == NOT_ATTEMPTED


def grant(probe: Log, *operations: AclOperation) -> None:
    """Allow the user these operations on the topic."""
    admin = probe.admin()
    bindings = [
        AclBinding(
            ResourceType.TOPIC,
            probe.topic,
            ResourcePatternType.LITERAL,
            f"User:{services.USER}",
            "*",
            operation,
            AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for answer in admin.create_acls(bindings).values():
        answer.result(20)


@pytest.mark.parametrize("idempotent", ["on", "off"])
def test_a_user_needs_only_the_right_to_write(strict: Log, idempotent: str) -> None:
    values = strict.by_sasl("sha256") | {"idempotent": idempotent}
    target = strict.target(values)
    with pytest.raises(TargetUnavailable, match=r"needs Describe and Write|UnknownTopic"):
        target.open()
    grant(strict, AclOperation.WRITE)
    services.until(lambda: list(attempt(target, [sample_events.put("a")], 1)) == [DELIVERED], timeout=20)
    target.close()


def test_a_user_that_may_only_look_is_unavailable(strict: Log) -> None:
    grant(strict, AclOperation.DESCRIBE)
    with closing(strict.target(strict.by_sasl("plain"))) as target:
        services.until(lambda: opened(target), timeout=20)
        (outcome,) = attempt(target, [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "the user needs" in outcome.reason
    assert strict.held() == []


def opened(target: object) -> bool:
    """Rights take a moment to reach the broker's own copy."""
    try:
        target.open()  # type: ignore[attr-defined]  # any target
    except TargetUnavailable:
        return False
    return True


@pytest.fixture(scope="module")
def second_broker(first_broker: Broker) -> Iterator[Broker]:
    with Broker(extra=STRICT, follows=first_broker).start() as second:
        yield second


@pytest.fixture
def cluster(first_broker: Broker, second_broker: Broker) -> tuple[Log, Broker]:
    """A probe of the first broker, and the second, which a test that failed may have left killed."""
    if not second_broker.running:
        second_broker.start()
    probe = Log(first_broker)
    services.until(lambda: len(probe.admin().list_topics(timeout=10).brokers) == 2, timeout=30, what="two brokers")
    return probe, second_broker


def created(probe: Log, replicas: list[list[int]], **config: str) -> None:
    """A fresh topic with these replicas of each partition, the first of which leads."""
    probe.topic = f"cluster-{time.monotonic_ns()}"
    admin = probe.admin()
    topic = NewTopic(probe.topic, num_partitions=len(replicas), replica_assignment=replicas, config=config)
    admin.create_topics([topic])[probe.topic].result(20)
    leaders = {number: each[0] for number, each in enumerate(replicas)}
    services.until(lambda: probe.leaders(probe.topic) == leaders, timeout=20, what="leaders")


def on_partition(number: int, of: int, count: int) -> list[Event]:
    """PUTs of different objects that all belong to one partition."""
    keys = (f"object-{each}" for each in range(10_000))
    chosen = [key for key in keys if partition_of(f"images/{key}".encode(), of) == number]
    return [sample_events.put(key) for key in chosen[:count]]


def test_a_lost_broker_holds_up_what_needs_it_until_it_is_back_and_nothing_else(cluster: tuple[Log, Broker]) -> None:
    """One loss for all, each with a topic of its own: two ways of sending, a replica that takes over, one too few."""
    probe, second = cluster
    ours, theirs = on_partition(0, 2, 5), on_partition(1, 2, 5)
    again = [sample_events.put(theirs[0].key), *on_partition(0, 2, 5), sample_events.put(theirs[0].key)]
    with ExitStack() as stack:
        sending: dict[int, tuple[str, Target]] = {}
        for window in (1, 100):
            created(probe, [[1], [2]])
            sending[window] = probe.topic, stack.enter_context(probe.opened())
            assert set(sending[window][1].deliver([*ours, *theirs], window)) == {DELIVERED}
        created(probe, [[2, 1]])
        replicated, taken_over = probe.topic, stack.enter_context(probe.opened())
        made = [sample_events.put("a"), sample_events.put("b")]
        assert set(taken_over.deliver(made, 1)) == {DELIVERED}
        created(probe, [[1, 2]], **{"min.insync.replicas": "2"})
        few = stack.enter_context(probe.opened())
        services.until(lambda: is_delivered(few, made[:1]), timeout=30)

        second.kill()
        for window, (_, target) in sending.items():
            began = time.monotonic()
            outcomes = attempt(target, again, window)
            assert time.monotonic() - began < LIMIT
            assert isinstance(outcomes[0], Unavailable)
            assert outcomes[0] != NOT_ATTEMPTED
            assert outcomes[-1] == NOT_ATTEMPTED
        services.until(lambda: is_delivered(taken_over, made), timeout=40, what="another leader")
        assert probe.leaders(replicated) == {0: 1}
        reasons = []

        def told() -> bool:
            # Until the controller misses the broker, the leader itself waits for it in vain.
            (outcome,) = attempt(few, made[:1], 1)
            assert isinstance(outcome, Unavailable)
            reasons.append(outcome.reason)
            return "NotEnoughReplicas" in outcome.reason

        services.until(told, timeout=40, what=f"the broker's word for it; got {reasons}")

        second.start()
        services.until(lambda: is_delivered(few, made[:1]), timeout=40, what="both replicas")
        sent = [sample_events.number_of(probe.expected(event)) for event in (theirs[0], again[0], again[-1])]
        for window, (topic, target) in sending.items():
            services.until(lambda: is_delivered(target, again, window), timeout=40, what="a leader")  # noqa: B023 - called at once
            probe.topic = topic
            assert list(dict.fromkeys(probe.numbers()[theirs[0].path])) == sent


def is_delivered(target: Target, events: Sequence[Event], window: int = 1) -> bool:
    return set(attempt(target, events, window)) == {DELIVERED}


@pytest.mark.promise
def test_a_source_goes_on_with_the_next_leader(cluster: tuple[Log, Broker], database: Database) -> None:
    probe, second = cluster
    with Broker(extra=STRICT, follows=probe.server, number=3).start() as third:
        services.until(
            lambda: len(probe.admin().list_topics(timeout=10).brokers) == 3, timeout=30, what="three brokers"
        )
        with suppress(KafkaException):  # unless another test had a group: the broker that dies has that of the source
            groups = NewTopic("__consumer_offsets", 1, replica_assignment=[[2]], config={"cleanup.policy": "compact"})
            probe.admin().create_topics([groups])[groups.topic].result(20)
        created(probe, [[2, 3, 1]], **{"min.insync.replicas": "2"})
        brokers = ",".join(broker.brokers for broker in (second, third, probe.server))
        producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "acks": "all", "log_level": 0})

        def send(bodies: Sequence[bytes]) -> None:
            for body in bodies:
                producer.produce(probe.topic, body, partition=0)
            assert producer.flush(60) == 0

        values = {"brokers": brokers, "topic": probe.topic, "timeout": "2s"}
        stored = check_failover(database, "kafka", values, send, second.kill)
        assert probe.leaders(probe.topic)[0] in (1, 3)
        assert (stored.messages, stored.repeated, stored.notice) == (600, 0, "")


@pytest.mark.promise
def test_a_source_says_what_an_unclean_election_has_lost_and_goes_on_from_there(
    cluster: tuple[Log, Broker], database: Database
) -> None:
    """The next leader was away while the source pulled ten messages, and gets more than ten before the source looks."""
    probe, second = cluster
    sources, events = Sources(database), numbered(50)
    with Broker(extra=STRICT, follows=probe.server, number=3).start() as third:
        services.until(
            lambda: len(probe.admin().list_topics(timeout=10).brokers) == 3, timeout=30, what="three brokers"
        )
        created(probe, [[2, 3]], **{"unclean.leader.election.enable": "true"})
        brokers = ",".join(broker.brokers for broker in (second, third, probe.server))

        def send(some: Sequence[Event]) -> None:
            producer = Producer({"bootstrap.servers": brokers, "acks": "all", "log_level": 0})
            for body in messages(some):
                producer.produce(probe.topic, body, partition=0)
            assert producer.flush(60) == 0

        source = sources.put("kafka", {"brokers": brokers, "topic": probe.topic, "timeout": "30s"})
        send(events[:10])
        with running(database):
            third.kill()
            send(events[10:20])
            wait_for(database, events[:20], 60)
            second.kill()
            third.start()
            services.until(lambda: probe.leaders(probe.topic) == {0: 3}, timeout=60, what="the other leader")
            send(events[20:])
            wait_for(database, events, 60)
            services.until(lambda: sources.stored(source).lag == 0, what="no lag")
    assert recorded(database) == [one.id for one in events]
    assert (
        "partition 0 has lost its messages from offset 10 on, up to 20 it was pulled" in sources.stored(source).notice
    )
