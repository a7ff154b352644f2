"""A target with several addresses, of which one hangs, is gone for a while, and dies.

They are those of a cluster of two nodes, or lead to one node over a wire that does what a node may do.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from urllib3 import HTTPConnectionPool

from app.events.model import Event
from tests import services
from tests.contract.probes.base import attempt
from tests.contract.probes.elasticsearch import Access, Namespace
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, Unavailable
from workers.targets.base import LeaseExpired


@dataclass(eq=False)
class Member(services.Elasticsearch):
    """A node of a cluster; `follows` makes it a second one that holds no documents and elects nobody."""

    follows: services.Elasticsearch | None = None

    def prepare(self) -> None:
        super().prepare()
        file = self.folder / "config/elasticsearch.yml"
        settings: dict[str, Any] = {}
        for line in file.read_text().splitlines():
            name, _, value = line.partition(": ")
            settings[name] = json.loads(value)
        del settings["discovery.type"]
        if self.follows is None:
            settings["cluster.initial_master_nodes"] = ["node-1"]
        else:
            seed = f"{services.LOOPBACK}:{self.follows.transport_port}"
            settings |= {"node.name": "node-2", "node.roles": [], "discovery.seed_hosts": [seed]}
        file.write_text("".join(f"{name}: {json.dumps(value)}\n" for name, value in settings.items()))


class Node(Protocol):
    """What is at an address."""

    @property
    def url(self) -> str: ...
    def freeze(self) -> None: ...
    def thaw(self) -> None: ...
    def kill(self) -> None: ...


@dataclass
class Wired:
    """A wire to a node, and as it seems another node."""

    wire: services.Proxy

    @property
    def url(self) -> str:
        return f"http://{services.LOOPBACK}:{self.wire.port}"

    def freeze(self) -> None:
        self.wire.swallow()

    def thaw(self) -> None:
        self.wire.heal()

    def kill(self) -> None:
        self.wire.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[Member, Member]]:
    with Member().start() as first, Member(follows=first).start() as second:
        yield first, second


TWO = pytest.param("two nodes", marks=pytest.mark.nightly("one node behind two addresses, which hang and die"))


@pytest.fixture(params=["one node", TWO])
def members(request: pytest.FixtureRequest) -> Iterator[tuple[services.Elasticsearch, Node]]:
    """A node, and what seems to be or is a second one."""
    if request.param == "two nodes":
        yield request.getfixturevalue("cluster")
        return
    only = request.getfixturevalue("elastic")
    with services.proxy(only.port) as wire:
        yield only, Wired(wire)


@pytest.fixture
def both(members: tuple[services.Elasticsearch, Node]) -> Namespace:
    """A probe on both nodes, with nothing held."""
    probe = Namespace(members[0])
    probe.renew()
    return probe


def urls(*nodes: Node) -> dict[str, str]:
    return {"url": ",".join(node.url for node in nodes), "timeout": "20s"}


def puts(first: int, last: int) -> list[Event]:
    return [sample_events.put(f"object-{number}") for number in range(first, last)]


class Ending:
    """A lease that ends after it was looked at once."""

    looks = 0

    def check(self) -> None:
        self.looks += 1
        if self.looks > 1:
            raise LeaseExpired("it was only for a test")

    def has_time(self) -> bool:
        return True


def test_a_node_that_hangs_costs_one_call(both: Namespace, members: tuple[services.Elasticsearch, Node]) -> None:
    with closing(both.target(**urls(*members) | {"timeout": "2s"})) as target:
        # New fields would wait until the cluster, too, has left out the node.
        services.until(lambda: attempt(target, puts(0, 1), 1) == [DELIVERED], 60, what="the index to know the fields")
        members[1].freeze()
        try:
            outcomes = [outcome for event in puts(1, 12) for outcome in attempt(target, [event], 1)]
        finally:
            members[1].thaw()
    refused = [outcome for outcome in outcomes if outcome != DELIVERED]
    assert 1 <= len(refused) <= 2  # not each second one; the node is tried again after ten seconds
    assert isinstance(refused[0], Unavailable)
    assert "no answer within 2 s" in refused[0].reason


def test_when_no_node_is_left_the_target_is_unavailable_until_one_is_back(
    both: Namespace, members: tuple[services.Elasticsearch, Node]
) -> None:
    """The node is behind a proxy that goes and comes: a node of its own would need seconds to start again."""
    closed, there = (services.free_port() for _ in range(2))
    with ExitStack() as stack:
        with services.proxy(members[0].port, port=there):
            url = ",".join(f"http://{services.LOOPBACK}:{port}" for port in (closed, there))
            target = stack.enter_context(both.opened(url=url))
        for event in puts(0, 3):
            (outcome,) = attempt(target, [event], 1)
            assert isinstance(outcome, Unavailable)
            assert "refused" in outcome.reason
            assert f":{closed}" in outcome.reason
        stack.enter_context(services.proxy(members[0].port, port=there))
        services.until(lambda: attempt(target, puts(3, 4), 1) == [DELIVERED], 60, what="the node to be asked again")


@pytest.mark.parametrize("format_", ["namespace", "access"])
def test_each_objects_events_keep_their_order_over_several_nodes(
    both: Namespace, members: tuple[services.Elasticsearch, Node], format_: str
) -> None:
    probe = both if format_ == "namespace" else Access(both.server)
    with closing(probe.target(**urls(*members))) as target:
        made = [sample_events.put(f"object-{number % 3}", number=number + 1) for number in range(60)]
        for start in range(0, 60, 6):
            assert set(target.deliver(made[start : start + 6], 1 + start % 2 * 99)) == {DELIVERED}
    for numbers in probe.numbers().values():
        assert numbers == (sorted(numbers) if format_ == "access" else numbers[-1:])
    assert max(max(numbers) for numbers in probe.numbers().values()) == 60


def test_requests_are_compressed_if_that_is_asked_for(both: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[tuple[bytes, str]] = []
    usual = HTTPConnectionPool.urlopen

    def urlopen(self: HTTPConnectionPool, method: str, url: str, **options: Any) -> Any:
        if "/_bulk" in url:
            bodies.append((options["body"], options["headers"].get("content-encoding", "")))
        return usual(self, method, url, **options)

    monkeypatch.setattr(HTTPConnectionPool, "urlopen", urlopen)
    batch: Sequence[Event] = puts(0, 5)
    assert set(both.delivered(batch, 100, compression="on")) == {DELIVERED}
    ((body, encoding),) = bodies
    assert encoding == "gzip"
    assert gzip.decompress(body).count(b"\n") == 10
    assert len(both.held()) == 5


# The last one, so that nothing has to start the node again.
def test_a_node_that_dies_costs_no_event_an_attempt(
    both: Namespace, members: tuple[services.Elasticsearch, Node]
) -> None:
    _, second = members
    target, other = both.target(**urls(*members)), both.target(**urls(*members))
    for each in (target, other):
        each.open()
        assert [list(each.deliver([event], 1)) for event in puts(0, 4)] == [[DELIVERED]] * 4
    second.kill()
    ended = 0
    for event in puts(0, 2):  # one of them is for the node that died
        try:
            assert list(other.deliver([event], 1, Ending())) == [DELIVERED]
        except LeaseExpired:  # before the request was sent to the other node
            ended += 1
    assert ended == 1
    other.close()
    assert [list(target.deliver([event], 1)) for event in puts(4, 20)] == [[DELIVERED]] * 16
    target.close()
    target.open()  # asks the node that is alive at once
    target.close()
    assert len(both.held()) == 20
