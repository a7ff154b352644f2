"""A target with the addresses of a cluster of three nats-servers, of which one dies, hangs, and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import pytest

from app.config.fields.fields import parse
from app.config.sources.jetstream import JetstreamSourceSettings
from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes.base import attempt
from tests.contract.probes.nats import SUBJECT
from tests.contract.probes.nats_jetstream import STREAM, JetStream
from tests.contract.probes.nats_wire import Wire
from tests.contract.source_probes.jetstream import Stream
from tests.services.messaging import http_json
from tests.services.server_process import accepting
from tests.support import sample_events
from tests.support.pulled_events import check_failover
from workers.delivery.outcomes import DELIVERED, Unavailable
from workers.sources.base import SourceUnavailable
from workers.systems.nats.source import JetstreamSource
from workers.targets.base import TargetUnavailable


@dataclass(eq=False)
class Member(services.Nats):
    """One server of a cluster with JetStream, which needs two of the three."""

    jetstream: bool = True
    number: int = 0
    routes: tuple[int, ...] = ()

    def configuration(self) -> str:
        urls = ", ".join(f'"nats-route://{services.LOOPBACK}:{port}"' for port in self.routes)
        listen = f"{services.LOOPBACK}:{self.routes[self.number]}"
        cluster = f'cluster {{ name: "peers", listen: "{listen}", routes: [{urls}] }}\n'
        return f'{super().configuration()}server_name: "peer-{self.number}"\n{cluster}'

    def ping(self) -> None:
        accepting(self.port)  # it is well only once it has a leader, for which it needs another

    def is_well(self) -> bool:
        with contextlib.suppress(OSError):
            return bool(http_json(f"http://{services.LOOPBACK}:{self.monitor_port}/healthz")["status"] == "ok")
        return False


@pytest.fixture(scope="module")
def members() -> Iterator[list[Member]]:
    routes = tuple(services.free_port() for _ in range(3))
    with ExitStack() as stack:
        started = [stack.enter_context(Member(number=number, routes=routes).start()) for number in range(3)]
        for member in started:
            services.until(member.is_well, 60, what="the cluster")
        yield started


@pytest.fixture
def cluster(members: list[Member]) -> Iterator[JetStream]:
    """A probe with an empty stream on all three."""
    probe = JetStream.__new__(JetStream)
    probe.server, probe._secure = members[2], None

    def is_made() -> bool:
        with closing(Wire(members[2])) as wire:
            wire.ask(f"STREAM.DELETE.{STREAM}")
            config: dict[str, Any] = {"name": STREAM, "subjects": [SUBJECT], "storage": "file", "num_replicas": 3}
            return "error" not in wire.ask(f"STREAM.CREATE.{STREAM}", **config)

    services.until(is_made, 60, what="a stream on three servers")
    yield probe

    def is_removed() -> bool:
        with closing(Wire(members[2])) as wire:
            return "error" not in wire.ask(f"STREAM.DELETE.{STREAM}")

    # A server that starts again need not catch up with a stream that nobody needs: 2.9 may never say that it has.
    services.until(is_removed, 60, what="the stream to go")
    restart(members)


def restart(members: list[Member]) -> None:
    """Start the servers that were killed, and wait until each is in the cluster again."""
    for member in members:
        if not member.running:
            member.start()
            services.until(member.is_well, 60, what="the server in its cluster")


def values(probe: JetStream, *members: services.Nats) -> dict[str, str]:
    return probe.values() | {"address": ",".join(f"{services.LOOPBACK}:{member.port}" for member in members)}


def test_a_server_that_dies_is_replaced_by_the_next(cluster: JetStream, members: list[Member]) -> None:
    with closing(cluster.target(values(cluster, *members))) as target:
        batch = [sample_events.put(f"object-{number}") for number in range(20)]
        services.until(lambda: attempt(target, batch[:1], 1) == [DELIVERED], 60, what="the stream to have a leader")
        members[0].kill()  # it is the one that is connected to
        waiting = batch[1:]

        def are_delivered() -> bool:
            outcomes = attempt(target, waiting, 100)
            waiting[:] = [event for event, outcome in zip(waiting, outcomes, strict=True) if outcome != DELIVERED]
            return not waiting

        services.until(are_delivered, 60, what="the others to take over")
    restart(members)  # the consumer that reads the stream lives on one of the three, which must not be the dead one
    assert {path for path, _ in cluster.held()} == {event.path for event in batch}


def test_a_source_goes_on_at_another_server(cluster: JetStream, members: list[Member]) -> None:
    login = {"username": services.USER, "password": services.PASSWORD, "stream": STREAM, "timeout": "2s"}
    settings = parse(JetstreamSourceSettings, {**login, "address": values(cluster, *members)["address"]})
    sent = [b"%d" % number for number in range(200)]
    with closing(Wire(members[2])) as wire:
        for body in sent:
            wire.publish(SUBJECT, body)
        wire.flush()
    pulled: list[bytes] = []
    positions: dict[str, str] = {}

    with closing(JetstreamSource(settings)) as source:
        is_open = False

        def has_pulled(count: int) -> bool:
            nonlocal is_open
            try:
                if not is_open:
                    positions.update(source.open(positions).moved)
                    is_open = True
                for message in source.pull(20, 0.5):
                    pulled.append(message.body)
                    positions[message.share] = message.position
            except SourceUnavailable:
                is_open = False
            return len(pulled) >= count

        services.until(lambda: has_pulled(40), 60, what="the first messages")
        members[0].kill()  # it is the one that is connected to
        services.until(lambda: has_pulled(200), 60, what="every message")
    assert pulled == sent


@pytest.mark.promise
def test_a_source_goes_on_with_the_next_leader(cluster: JetStream, members: list[Member], database: Database) -> None:
    sender = Stream(cluster)

    def leader() -> str:
        with closing(Wire(sender.server)) as wire, contextlib.suppress(TimeoutError):  # nobody answers meanwhile
            answer = wire.ask(f"STREAM.INFO.{STREAM}") or {}
            return str(answer.get("cluster", {}).get("leader") or "")
        return ""

    def is_led_by_another() -> bool:
        if leader() == "peer-2":
            with closing(Wire(members[2])) as wire:
                wire.ask(f"STREAM.LEADER.STEPDOWN.{STREAM}")
        return leader() in ("peer-0", "peer-1")

    def fail_over() -> None:
        led = leader()
        members[int(led.removeprefix("peer-"))].kill()
        services.until(lambda: leader() not in ("", led), 60, what="another leader")

    services.until(is_led_by_another, 60, what="a leader that can be killed")
    address = values(cluster, *members)["address"]
    login = {"username": services.USER, "password": services.PASSWORD}
    given = {"address": address, **login, "stream": STREAM, "timeout": "10s"}
    stored = check_failover(database, "jetstream", given, sender.send, fail_over)
    assert (stored.messages, stored.repeated, stored.notice) == (600, 0, "")


def test_a_server_that_hangs_costs_one_attempt(cluster: JetStream, members: list[Member]) -> None:
    target = cluster.target(values(cluster, members[1], members[2]))
    members[1].freeze()
    try:
        with pytest.raises(TargetUnavailable, match=f"{members[1].port}: no answer within 2 s"):
            target.open()
        target.open()
    finally:
        members[1].thaw()
    target.close()


def test_addresses_at_which_nobody_listens_are_passed_over(cluster: JetStream, members: list[Member]) -> None:
    closed = [services.free_port() for _ in range(2)]
    somewhere = ",".join(f"{services.LOOPBACK}:{port}" for port in closed)
    target = cluster.target(cluster.values() | {"address": f"{somewhere},{services.LOOPBACK}:{members[2].port}"})
    target.open()
    target.close()
    (outcome,) = attempt(cluster.target(cluster.values() | {"address": somewhere}), [sample_events.put("a")], 1)
    assert isinstance(outcome, Unavailable)
    assert "refused" in outcome.reason
