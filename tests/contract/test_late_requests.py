"""A request without an answer that arrives after newer ones cannot overwrite them, or the target says that it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from app.events.model import Event
from tests import services
from tests.contract.probes import elasticsearch, mysql, postgresql, redis
from tests.contract.probes.base import Probe, attempt
from tests.services import until
from tests.support import sample_events
from workers.delivery.outcomes import DELIVERED, Outcome, Unavailable
from workers.targets.base import Target

pytestmark = pytest.mark.promise

KEY = "held-back"

MADE: dict[str, Callable[[], Probe]] = {
    "redis": redis.Namespace, "mysql": mysql.Namespace, "mariadb": mysql.MariaNamespace,
    "postgresql": postgresql.Namespace,
}  # fmt: skip
MARIADB = pytest.param("mariadb", marks=pytest.mark.nightly("MySQL: both lock a row alike"))


@pytest.fixture(scope="module", params=["redis", "mysql", MARIADB, "postgresql", "elasticsearch"])
def mirror(request: pytest.FixtureRequest) -> Iterator[Probe]:
    if request.param == "elasticsearch":
        yield elasticsearch.Namespace(request.getfixturevalue("elastic"))
        return
    probe = MADE[request.param]()
    yield probe
    probe.close()


@pytest.fixture
def wire(mirror: Probe) -> Iterator[services.Proxy]:
    mirror.renew()
    with services.proxy(mirror.server.port) as made:
        yield made


def opened(mirror: Probe, wire: services.Proxy) -> Target:
    """A target behind the wire, which holds one row already."""
    target = mirror.target(mirror.in_clear(wire.port))  # the wire reads what it holds back
    target.open()
    assert deliver(target, sample_events.put(KEY, number=1)) is DELIVERED
    return target


def deliver(target: Target, event: Event) -> Outcome:
    (outcome,) = attempt(target, [event], 1)
    return outcome


def row(mirror: Probe) -> list[int]:
    return next(iter(mirror.numbers().values()))


def test_a_write_that_arrives_late_is_harmless_or_announced(mirror: Probe, wire: services.Proxy) -> None:
    target = opened(mirror, wire)
    old, new = sample_events.put(KEY, number=2), sample_events.put(KEY, number=3)
    wire.hold_next(KEY.encode())
    lost = deliver(target, old)
    assert wire.held.is_set()
    assert isinstance(lost, Unavailable)
    assert deliver(target, old) is DELIVERED
    assert deliver(target, new) is DELIVERED
    wire.let_arrive()
    if mirror.type in ("mysql", "postgresql"):
        assert row(mirror) == [3]
    else:
        until(lambda: row(mirror) == [2], 30, what="the late write carried out")
        assert lost.may_arrive
    target.close()


def test_a_late_commit_comes_before_newer_writes(mirror: Probe, wire: services.Proxy) -> None:
    if mirror.type not in ("mysql", "postgresql"):
        pytest.skip("it has no transactions of several requests")
    target = opened(mirror, wire)
    old, new = sample_events.put(KEY, number=2), sample_events.put(KEY, number=3)
    wire.hold_next(b"COMMIT")
    assert isinstance(deliver(target, old), Unavailable)
    assert wire.held.is_set()
    assert isinstance(deliver(target, new), Unavailable), "the row is locked"
    wire.let_arrive()
    assert row(mirror) == [2]
    until(lambda: deliver(target, new) is DELIVERED, 30, what="the newer write")
    assert row(mirror) == [3]
    target.close()


def test_a_row_is_free_soon_after_the_network_has_forgotten_who_locked_it(mirror: Probe, wire: services.Proxy) -> None:
    if mirror.type not in ("mysql", "postgresql"):
        pytest.skip("it has no transactions of several requests")
    target = opened(mirror, wire)
    wire.hold_next(b"COMMIT")
    assert isinstance(deliver(target, sample_events.put(KEY, number=2)), Unavailable)
    assert wire.held.is_set()
    until(lambda: deliver(target, sample_events.put(KEY, number=3)) is DELIVERED, 20, what="the row")
    wire.release()  # to a connection that has ended
    assert row(mirror) == [3]
    target.close()
