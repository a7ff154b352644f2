"""A target with the addresses of three Sentinels, which watch a Redis and its two replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis as redis_py

from app.config.target_settings import load
from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes.base import attempt
from tests.services.brokers import _redis_binary
from tests.support import sample_events
from tests.support.pulled_events import check_failover
from workers.delivery.outcomes import DELIVERED, Unavailable
from workers.targets import create
from workers.targets.base import Target, TargetUnavailable

MASTER, KEY = "events", "bucketevents"
QUORUM = 2


@dataclass(eq=False)
class Sentinel(services.Server):
    """A Sentinel with a password of its own."""

    name: ClassVar[str] = "redis"
    master: int = 0  # the port at which the master was at first

    def check(self) -> None:
        """It is the same program as Redis, which is there."""

    def prepare(self) -> None:
        (self.folder / "sentinel.conf").write_text(
            f"bind {services.LOOPBACK}\nport {self.port}\ndir {self.folder}\n"
            f"requirepass {services.PASSWORD}\nsentinel sentinel-pass {services.PASSWORD}\n"
            f"sentinel monitor {MASTER} {services.LOOPBACK} {self.master} {QUORUM}\n"
            f"sentinel down-after-milliseconds {MASTER} 1500\n"
            f"sentinel failover-timeout {MASTER} 6000\n"
        )

    def argv(self) -> Sequence[str | Path]:
        return [_redis_binary(), self.folder / "sentinel.conf", "--sentinel"]

    def client(self) -> redis_py.Redis:
        return redis_py.Redis(services.LOOPBACK, self.port, password=services.PASSWORD, socket_timeout=10)

    def ping(self) -> None:
        with self.client() as client:
            client.ping()

    def state(self) -> dict[str, Any]:
        """What it knows of the master."""
        with self.client() as client:
            found: dict[str, Any] = client.sentinel_master(MASTER)
        return found


@dataclass
class Group:
    servers: list[services.Redis]
    sentinels: list[Sentinel]
    stack: ExitStack = field(default_factory=ExitStack)

    def master(self) -> services.Redis:
        """The server that two Sentinels take for the master."""
        ports = [sentinel.state()["port"] for sentinel in self.sentinels if sentinel.running]
        port = max(ports, key=ports.count)
        return next(server for server in self.servers if server.port == port)

    def is_whole(self) -> bool:
        """The master has two replicas that follow it, and the Sentinels know each other and all of them."""
        states = [sentinel.state() for sentinel in self.sentinels]
        with self.master().client() as client:
            followers = client.info("replication")
        return (
            len({state["port"] for state in states}) == 1
            and all(state["num-other-sentinels"] == 2 and state["num-slaves"] == 2 for state in states)
            and not any(state["is_sdown"] for state in states)
            and followers["role"] == "master"
            and [followers.get(f"slave{number}", {}).get("state") for number in (0, 1)] == ["online"] * 2
        )

    def restore(self) -> None:
        """Start what was killed, and wait until everything is as at the beginning, with any server as the master."""
        for sentinel in self.sentinels:
            if not sentinel.running:
                sentinel.start()
        for server in self.servers:
            if not server.running:
                server.start()
                self.demote(server)
        services.until(self.is_whole, 60, what="a master with two replicas, and three Sentinels")

    def demote(self, server: services.Redis) -> None:
        """Make it a replica of the master, as Sentinels do it some 10 seconds later."""
        with server.client() as client:
            client.replicaof(services.LOOPBACK, self.master().port)

    def held(self) -> list[int]:
        """The numbers of the events in the list, as the present master has them."""
        with self.master().client() as client:
            return [sample_events.number_of(entry.decode()) for entry in client.lrange(KEY, 0, -1)]


@pytest.fixture(scope="module")
def group() -> Iterator[Group]:
    with ExitStack() as stack:
        servers = [stack.enter_context(services.redis(extra=("--repl-diskless-sync-delay", "0")))]
        follow = ("--replicaof", services.LOOPBACK, str(servers[0].port), "--repl-diskless-sync-delay", "0")
        servers += [stack.enter_context(services.redis(extra=follow)) for _ in range(2)]
        yield Group(servers, [stack.enter_context(Sentinel(master=servers[0].port).start()) for _ in range(3)], stack)


@pytest.fixture
def whole(group: Group) -> Iterator[Group]:
    group.restore()
    with group.master().client() as client:
        client.flushall()
    yield group
    group.restore()


@pytest.fixture
def target(whole: Group) -> Iterator[Callable[..., Target]]:
    """Targets that are closed at the end."""
    made: list[Target] = []

    def new(**changes: str) -> Target:
        made.append(create("redis", load("redis", values(whole) | changes)))
        return made[-1]

    yield new
    for each in made:
        each.close()


def values(group: Group) -> dict[str, str]:
    first, *others = [f"{services.LOOPBACK}:{sentinel.port}" for sentinel in group.sentinels]
    found = {"address": first, "nodes": ",".join(others), "sentinel": MASTER, "sentinel_password": services.PASSWORD}
    return found | {"key": KEY, "format": "access", "timeout": "2s"}


def delivered(target: Target, numbers: Sequence[int]) -> None:
    """Deliver these events, one after the other, each as often as it takes."""
    for number in numbers:
        event = sample_events.put("object", number=number)
        services.until(lambda: attempt(target, [event], 1) == [DELIVERED], 60, what=f"event {number}")  # noqa: B023


def test_a_master_that_dies_costs_seconds_and_no_event_that_replicas_have(
    whole: Group, target: Callable[..., Target]
) -> None:
    writing = target(wait_replicas="2")
    delivered(writing, range(1, 6))
    died = whole.master()
    died.kill()
    later = target()  # one replica is left, and nobody to wait for
    delivered(later, range(6, 11))
    services.until(lambda: whole.master() is not died, 60, what="the Sentinels to agree")
    assert sorted(set(whole.held())) == list(range(1, 11))
    assert list(dict.fromkeys(whole.held())) == list(range(1, 11)), "in the order in which they came"


def test_a_connection_to_a_master_that_was_demoted_is_replaced(whole: Group, target: Callable[..., Target]) -> None:
    writing = target()
    delivered(writing, [1])
    before = whole.master()

    def has_changed() -> bool:
        if whole.master() is not before:
            return True
        # Refused while it is under way, or while no replica is good enough.
        with whole.sentinels[0].client() as client, contextlib.suppress(redis_py.ResponseError):
            client.execute_command("SENTINEL", "FAILOVER", MASTER)
        return False

    services.until(has_changed, 60, what="another master")
    whole.demote(before)
    delivered(writing, [2])
    whole.restore()
    assert sorted(set(whole.held())) == [1, 2]


def test_one_sentinel_that_answers_is_enough(whole: Group, target: Callable[..., Target]) -> None:
    whole.sentinels[0].kill()
    whole.sentinels[1].kill()
    delivered(target(), [1])
    assert whole.held() == [1]


def test_what_sentinels_do_not_know_is_the_reason(whole: Group, target: Callable[..., Target]) -> None:
    with pytest.raises(TargetUnavailable, match="knows no master 'other'"):
        target(sentinel="other").open()
    with pytest.raises(TargetUnavailable, match=r"(?i)password|auth"):
        target(sentinel_password="wrong-s3cret").open()


def test_an_event_that_too_few_replicas_have_is_not_delivered(whole: Group, target: Callable[..., Target]) -> None:
    writing = target(wait_replicas="2", timeout="1s")
    delivered(writing, [1])
    master = whole.master()
    stopped = next(server for server in whole.servers if server is not master)
    stopped.freeze()
    try:
        (outcome,) = attempt(writing, [sample_events.put("object", number=2)], 1)
    finally:
        stopped.thaw()
    assert isinstance(outcome, Unavailable)
    assert "1 replicas have the events, 2 are asked for" in outcome.reason
    delivered(writing, [2])


def test_the_nightly_reconciliation_reads_the_master(whole: Group, target: Callable[..., Target]) -> None:
    from spark_jobs.stores import redis as store

    mirror = target(format="namespace", key="bucketobjects")
    services.until(lambda: attempt(mirror, [sample_events.put("a")], 1) == [DELIVERED], 60)
    settings: Any = load("redis", values(whole) | {"format": "namespace", "key": "bucketobjects"})
    store._check(settings)
    client = store.connect(settings)
    assert client.hkeys("bucketobjects") == [b"images/a"]
    client.close()


@pytest.mark.promise
@pytest.mark.parametrize("kind", ["access", "stream"])
def test_a_source_goes_on_with_the_next_master(whole: Group, database: Database, kind: str) -> None:
    died = whole.master()

    def send(bodies: Sequence[bytes]) -> None:
        with whole.master().client() as client:
            for body in bodies:
                client.rpush(KEY, body) if kind == "access" else client.xadd(KEY, {"body": body})
            replicas = sum(server.running for server in whole.servers) - 1
            assert client.wait(replicas, 30_000) == replicas

    def fail_over() -> None:
        died.kill()
        services.until(lambda: whole.master() is not died, 60, what="another master")

    stored = check_failover(database, "redis", values(whole) | {"format": kind}, send, fail_over)
    assert stored.notice == ""
    if kind == "stream":
        assert (stored.messages, stored.repeated) == (600, 0)
    with whole.master().client() as client:
        assert client.llen(KEY) == 0 if kind == "access" else client.xlen(KEY) == 600
