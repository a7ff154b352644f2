"""A target with the addresses of three RabbitMQ nodes and a quorum queue, of which one node dies or hangs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes.amqp import QUEUE, Queue
from tests.contract.probes.base import attempt
from tests.support import sample_events
from tests.support.pulled_events import check_failover
from workers.delivery.outcomes import DELIVERED
from workers.targets.base import Target, TargetUnavailable

pytestmark = pytest.mark.nightly(
    "a RabbitMQ behind two addresses; Redis with Sentinels, a cluster of NATS; a killed, frozen RabbitMQ"
)


@dataclass(eq=False)
class Member(services.RabbitMQ):
    """A node of a cluster; `follows` makes it join that one's."""

    follows: services.RabbitMQ | None = None

    def prepare(self) -> None:
        super().prepare()
        nodes = [f"rabbit{node.port}@localhost" for node in (self.follows, self) if node]
        with (self.folder / "rabbitmq.conf").open("a") as file:
            file.write("cluster_formation.peer_discovery_backend = classic_config\n")
            for number, node in enumerate(nodes, 1):
                file.write(f"cluster_formation.classic_config.nodes.{number} = {node}\n")

    def env(self) -> Mapping[str, str]:
        first = self.follows or self
        # Of one name server, and with the cookie in the first one's home.
        return {**super().env(), "ERL_EPMD_PORT": str(first.epmd_port), "HOME": str(first.folder)}


@contextmanager
def three_nodes() -> Iterator[list[Member]]:
    """A cluster, of which one may be killed: it would take long to come back."""
    with ExitStack() as stack:
        first = stack.enter_context(Member().start())
        yield [first, *(stack.enter_context(Member(follows=first).start()) for _ in range(2))]


@pytest.fixture(scope="module")
def members() -> Iterator[list[Member]]:
    with three_nodes() as started:
        yield started


@pytest.fixture
def cluster(members: list[Member]) -> Queue:
    """A probe with an empty queue on all three; it looks at the last of them."""
    return queue_of(members[2])


def queue_of(node: Member, **more: bool) -> Queue:
    """A probe with an empty queue on all nodes, which this one leads."""
    probe = Queue.__new__(Queue)
    probe.server = node
    with probe.channel() as channel:
        channel.queue_delete(QUEUE)
        arguments = {"x-queue-type": "quorum", "x-quorum-initial-group-size": 3, **more}
        channel.queue_declare(QUEUE, durable=True, arguments=arguments)
    return probe


def values(probe: Queue, *members: services.RabbitMQ) -> dict[str, str]:
    first, *others = members
    nodes = ",".join(f"{services.LOOPBACK}:{member.port}" for member in others)
    return probe.values() | {"url": first.url, "nodes": nodes, "timeout": "10s"}


def test_a_node_that_hangs_costs_one_attempt(cluster: Queue, members: list[Member]) -> None:
    target = cluster.target(values(cluster, members[1], members[2]), timeout="2s")
    members[1].freeze()
    try:
        with pytest.raises(TargetUnavailable, match="no answer within 2 s"):
            target.open()
        services.until(lambda: _opens(target), 60, what="a connection to the next node")
    finally:
        members[1].thaw()
    target.close()


def test_a_node_that_dies_is_replaced_by_the_next(cluster: Queue, members: list[Member]) -> None:
    with closing(cluster.target(values(cluster, *members))) as target:
        batch = [sample_events.put(f"object-{number}") for number in range(20)]
        assert list(target.deliver(batch[:1], 1)) == [DELIVERED]
        members[0].kill()  # it is the one that is connected to
        waiting = batch[1:]

        def are_delivered() -> bool:
            outcomes = attempt(target, waiting, 100)
            waiting[:] = [event for event, outcome in zip(waiting, outcomes, strict=True) if outcome != DELIVERED]
            return not waiting

        services.until(are_delivered, 90, what="the others to take over")
    assert {path for path, _ in cluster.held()} == {event.path for event in batch}


@pytest.mark.promise
def test_a_source_goes_on_when_the_leader_of_its_queue_dies(database: Database) -> None:
    with three_nodes() as nodes:
        queue = queue_of(nodes[2], **{"x-single-active-consumer": True})  # as the guide says

        def send(bodies: Sequence[bytes]) -> None:
            left = list(bodies)

            def are_taken() -> bool:
                """Send on a new channel: one that saw the leader die may refuse messages for ever."""
                with queue.channel() as channel:
                    channel.confirm_delivery()
                    while left and is_taken(channel, left[0]):
                        left.pop(0)
                return not left

            services.until(are_taken, 60, what="a leader that takes the messages")

        def fail_over() -> None:
            nodes[2].kill()
            queue.server = nodes[0]

        given = values(queue, nodes[2], *nodes[:2])
        settings = {"queue": QUEUE, **{name: given[name] for name in ("url", "nodes", "timeout")}}
        stored = check_failover(database, "amqp", settings, send, fail_over)
    assert stored.messages >= 600


def is_taken(channel: BlockingChannel, body: bytes) -> bool:
    """Publish a message; a queue without a leader refuses it."""
    try:
        channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2))
    except pika.exceptions.NackError:
        return False
    return True


def _opens(target: Target) -> bool:
    try:
        target.open()
    except TargetUnavailable:
        return False
    return True
