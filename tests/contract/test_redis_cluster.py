"""A target on a Redis Cluster of three nodes, of which the one with the key has a replica."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest
from redis.crc import key_slot

from app.config.target_settings import load
from tests import services
from tests.contract.probes.base import attempt
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, Unavailable
from workers.targets import create
from workers.targets.base import Target, TargetUnavailable

KEY, SLOTS = "bucketevents", 16_384
PRIMARIES = 3
WINDOWS = pytest.mark.parametrize("window", [1, 100])


@dataclass(eq=False)
class Node(services.Redis):
    """A node of a Cluster."""

    def check(self) -> None:
        services.need(self.name)  # the wheel's server cannot choose the port on which nodes talk to each other

    def prepare(self) -> None:
        super().prepare()
        self.bus = services.free_port()

    def argv(self) -> list[Any]:
        options = {"enabled": "yes", "port": self.bus, "node-timeout": 2000, "replica-validity-factor": 0}
        argv = [*super().argv(), "--repl-diskless-sync-delay", "0"]
        for name, value in options.items():
            argv += [f"--cluster-{name}", str(value)]
        return argv

    def ask(self, *command: str | int) -> Any:
        with self.client() as client:
            return client.execute_command(*command)

    def id(self) -> str:
        found: bytes = self.ask("CLUSTER", "MYID")
        return found.decode()

    def is_well(self, nodes: int) -> bool:
        """It serves, and knows so many nodes."""
        known: bytes = self.ask("CLUSTER", "INFO")
        return b"cluster_state:ok" in known and f"cluster_known_nodes:{nodes}\r".encode() in known

    def follows(self, other: Node) -> bool:
        """It is a replica of the other, and has what that has."""
        with self.client() as client:
            found = client.info("replication")
        return bool(found["role"] == "slave" and found["master_port"] == other.port) and (
            found["master_link_status"] == "up"
        )


def ranges() -> list[tuple[int, int]]:
    each = SLOTS // PRIMARIES
    return [(number * each, SLOTS - 1 if number == PRIMARIES - 1 else (number + 1) * each - 1) for number in range(3)]


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    """Three nodes with the slots, the first of them with that of the key, and its replica."""
    slot = key_slot(KEY.encode())
    mine = next(found for found in ranges() if found[0] <= slot <= found[1])
    with ExitStack() as stack:
        started = [stack.enter_context(Node().start()) for _ in range(PRIMARIES + 1)]
        parts = [mine, *(found for found in ranges() if found != mine)]
        for epoch, (node, (first, last)) in enumerate(zip(started, parts, strict=False), 1):
            node.ask("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", epoch)
        for node in started[1:]:
            node.ask("CLUSTER", "MEET", services.LOOPBACK, started[0].port, started[0].bus)
        services.until(lambda: all(node.is_well(len(started)) for node in started), 60, what="the cluster")
        started[-1].ask("CLUSTER", "REPLICATE", started[0].id())
        services.until(lambda: started[-1].follows(started[0]), 60, what="the replica")
        yield started


@pytest.fixture
def cluster(nodes: list[Node]) -> list[Node]:
    """All nodes run, and nothing is in them."""
    for node in nodes:
        if not node.running:
            node.start()
    services.until(lambda: all(node.is_well(len(nodes)) for node in nodes), 60, what="the cluster")
    for node in nodes:
        with node.client() as client:
            if client.info("replication")["role"] == "master":
                client.flushall()
    return nodes


@pytest.fixture
def target(cluster: list[Node]) -> Iterator[Callable[..., Target]]:
    """Targets that are closed at the end; their addresses are those of two nodes that may not have the key."""
    made: list[Target] = []

    def new(**changes: str) -> Target:
        made.append(create("redis", load("redis", values(cluster) | changes)))
        return made[-1]

    yield new
    for each in made:
        each.close()


def values(cluster: list[Node]) -> dict[str, str]:
    places = [f"{services.LOOPBACK}:{node.port}" for node in cluster]
    found = {"cluster": "on", "address": places[1], "nodes": f"{places[2]},{places[0]}"}
    return found | {"key": KEY, "format": "namespace", "timeout": "2s"}


def owner(cluster: list[Node], key: str = KEY) -> Node:
    """The node that has a key now, as another one says."""
    slot = key_slot(key.encode())
    for node in cluster:
        if node.running:
            for first, last, place, *_ in node.ask("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    return next(each for each in cluster if each.port == place[1])
    raise AssertionError("nobody has it")


def objects(cluster: list[Node]) -> set[str]:
    with owner(cluster).client() as client:
        return {path.decode() for path in client.hkeys(KEY)}


@WINDOWS
def test_every_command_goes_to_the_node_that_has_the_key(
    cluster: list[Node], target: Callable[..., Target], window: int
) -> None:
    mirror = target()
    made = [sample_events.put(f"object-{number}") for number in range(5)]
    removed = [sample_events.delete("object-1"), sample_events.delete_version("object-2", "null")]
    assert attempt(mirror, [*made, *removed, sample_events.put("object-9")], window) == [DELIVERED] * 8
    assert objects(cluster) == {f"images/object-{number}" for number in (0, 3, 4, 9)}
    log = target(format="access", key="elsewhere", address=values(cluster)["address"], nodes="")
    assert attempt(log, made, window) == [DELIVERED] * 5, "one address is enough to find the others"
    with owner(cluster, "elsewhere").client() as client:
        assert client.llen("elsewhere") == 5


def test_a_node_that_dies_is_replaced_by_its_replica(cluster: list[Node], target: Callable[..., Target]) -> None:
    died = owner(cluster)
    heir = next(node for node in cluster if node is not died and node.follows(died))
    mirror = target(wait_replicas="1")
    first = [sample_events.put(f"object-{number}") for number in range(5)]
    services.until(lambda: attempt(mirror, first, 100) == [DELIVERED] * 5, 60, what="the replica to have it")
    died.kill()
    later, second = target(), [sample_events.put(f"later-{number}") for number in range(5)]
    services.until(lambda: attempt(later, second, 100) == [DELIVERED] * 5, 60, what="the replica to take over")
    assert owner(cluster) is heir
    assert objects(cluster) == {event.path for event in (*first, *second)}


def test_a_key_that_moves_to_another_node_is_followed(cluster: list[Node], target: Callable[..., Target]) -> None:
    key = "moving"
    log, slot = target(format="access", key=key), key_slot(key.encode())
    assert attempt(log, [sample_events.put("a", number=1)], 1) == [DELIVERED]
    source = owner(cluster, key)
    others = [node for node in cluster if node is not source]
    goal = next(node for node in others if node.ask("ROLE")[0] == b"master")
    goal.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id())
    source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", goal.id())
    source.ask("MIGRATE", services.LOOPBACK, goal.port, key, 0, 5000)
    (outcome,) = attempt(log, [sample_events.put("a", number=2)], 1)
    assert isinstance(outcome, Unavailable)
    assert f"the key's slot {slot} is now, or about to be, at {services.LOOPBACK}:{goal.port}" in outcome.reason
    for node in (goal, source):
        node.ask("CLUSTER", "SETSLOT", slot, "NODE", goal.id())
    event = sample_events.put("a", number=2)
    services.until(lambda: attempt(log, [event], 1) == [DELIVERED], 60, what="the nodes to agree")
    with goal.client() as client:
        numbers = [sample_events.number_of(entry.decode()) for entry in client.lrange(key, 0, -1)]
    assert numbers == [1, 2]


def test_a_server_that_is_no_cluster_says_so(redis_server: services.Redis, target: Callable[..., Target]) -> None:
    with pytest.raises(TargetUnavailable, match="cluster support disabled"):
        target(address=f"{services.LOOPBACK}:{redis_server.port}", nodes="").open()


def test_the_nightly_reconciliation_reads_the_cluster(cluster: list[Node], target: Callable[..., Target]) -> None:
    from spark_jobs.stores import redis as store

    assert attempt(target(), [sample_events.put("a")], 1) == [DELIVERED]
    settings: Any = load("redis", values(cluster))
    store._check(settings)
    client = store.connect(settings)
    assert client.hkeys(KEY) == [b"images/a"]
    client.close()
