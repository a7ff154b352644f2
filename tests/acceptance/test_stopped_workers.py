"""A worker that is stopped for longer than its lease, and then goes on with a write that is out of date.

The write of the first event is kept back on its way to the target, the worker is stopped, another one delivers the
first and a second event of the same object; then the first write arrives, and the stopped worker goes on. Or it was
killed, and cannot do anything about its write any more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from uuid import uuid4

import orjson
import pytest

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.policies import LEASES
from app.resources.undelivered import DeadLetterFilter
from tests import services
from tests.contract.probes import elasticsearch
from tests.services import Proxy, until
from tests.support.builders import DELETE, body, event, records
from tests.support.service_processes import Role, System, start_all, system
from tests.support.target_readers import Record, hashed, listed, path, posted, rows
from workers.delivery.settlement import LOST_WORKER

pytestmark = pytest.mark.promise

LEASE = 2  # seconds
PATIENCE = 60


@dataclass
class Stage:
    """The service with two workers, of which the second is started by the tests, and a wire to each target."""

    whole: System
    redis: services.Redis
    postgres: services.Postgres
    mysql: services.MySQL
    stack: ExitStack

    @property
    def workers(self) -> tuple[Role, Role]:
        first, second = self.whole.workers
        return first, second

    def wire(self, port: int) -> Proxy:
        return self.stack.enter_context(services.proxy(port))


@pytest.fixture(scope="module")
def stage(
    postgres_server: services.Postgres, redis_server: services.Redis, mysql_server: services.MySQL
) -> Iterator[Stage]:
    with ExitStack() as stack:
        broker = stack.enter_context(services.redis())
        url = postgres_server.create_database(f"stopped_{uuid4().hex[:12]}")
        # One process, so that what was connected for one event is used for the next.
        options = {"lease_ttl": f"{LEASE}s", "lease_max_work": "1s", "concurrency": 1}
        whole = stack.enter_context(system(url, broker.url, workers=2, start=False, **options))
        start_all([whole.api, whole.beat, whole.drain])
        yield Stage(whole, redis_server, postgres_server, mysql_server, stack)


@pytest.fixture(autouse=True)
def workers_anew(stage: Stage) -> None:
    """Only the first worker runs when a test begins, and its log is empty."""
    first, second = stage.workers
    for worker in (first, second):
        worker.stop()
    first.start()


@dataclass
class Place:
    """A target: how it is reached, and what it holds."""

    wire: Proxy
    settings: dict[str, str]
    held: Callable[[], list[Record]]


def redis_namespace(stage: Stage, name: str) -> Place:
    wire = stage.wire(stage.redis.port)
    settings = {"address": f"{services.LOOPBACK}:{wire.port}", "key": name}
    return Place(wire, settings, lambda: list(hashed(stage.redis, name).values()))


def redis_list(stage: Stage, name: str) -> Place:
    wire = stage.wire(stage.redis.port)
    settings = {"address": f"{services.LOOPBACK}:{wire.port}", "key": name, "format": "access"}
    return Place(wire, settings, lambda: listed(stage.redis, name))


def postgresql_namespace(stage: Stage, name: str) -> Place:
    wire = stage.wire(stage.postgres.port)
    stage.postgres.create_database(name)
    dsn = stage.postgres.dsn(name).replace(f"port={stage.postgres.port}", f"port={wire.port}")
    settings = {"connection_string": dsn, "table": "held"}
    return Place(wire, settings, lambda: list(rows(stage.postgres, name, "held").values()))


def mysql_namespace(stage: Stage, name: str) -> Place:
    wire = stage.wire(stage.mysql.port)
    stage.mysql.create_database(name)
    dsn = f"{services.USER}:{services.PASSWORD}@tcp({services.LOOPBACK}:{wire.port})/{name}"

    def held() -> list[Record]:
        with stage.mysql.connection(name) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT value FROM held")
            return [orjson.loads(row[0])["Records"][0] for row in cursor.fetchall()]

    return Place(wire, {"dsn_string": dsn, "table": "held"}, held)


def elasticsearch_namespace(stage: Stage, name: str) -> Place:
    """A node of the test's own: no other test of this module has one."""
    probe = elasticsearch.Namespace(stage.stack.enter_context(services.elasticsearch()))
    probe.index = name
    wire = stage.wire(probe.server.port)

    def held() -> list[Record]:
        return [orjson.loads(text)["Records"][0] for _, text in probe.held()]

    return Place(wire, probe.at_port(wire.port), held)


PLACES = {
    "redis": redis_namespace,
    "postgresql": postgresql_namespace,
    "mysql": mysql_namespace,
    "redis list": redis_list,
}
KILLED = {"redis": redis_namespace, "mysql": mysql_namespace, "elasticsearch": elasticsearch_namespace}


@pytest.mark.nightly(
    "a hash in Redis: the newest event goes out once more, whatever it is; test_late_requests.py has each target",
    when=lambda kind, removed: kind != "redis" or removed,
)
@pytest.mark.parametrize("removed", [False, True], ids=["replaced", "removed"])
@pytest.mark.parametrize("kind", PLACES)
def test_an_old_write_that_arrives_late_is_put_right(stage: Stage, kind: str, removed: bool) -> None:
    whole, (first, second) = stage.whole, stage.workers
    name = f"stopped_{uuid4().hex[:12]}"
    bucket = name.replace("_", "-")
    place = PLACES[kind](stage, name)
    target = f"{kind.partition(' ')[0]}:{name}"
    whole.add_target(target, bucket, timeout="60s", **place.settings)
    whole.post(body(event("warm", bucket=bucket)))
    until(lambda: whole.settled(target), PATIENCE, what="the first event delivered")
    old = event("k", bucket=bucket)
    new = event("k", bucket=bucket, name=DELETE) if removed else event("k", bucket=bucket)

    place.wire.hold_next()
    whole.post(body(old))
    until(place.wire.held.is_set, PATIENCE, what="the old write on its way")
    first.freeze()
    stopped = time.monotonic()
    whole.post(body(new))
    second.start()
    until(lambda: whole.settled(target), PATIENCE, what="both delivered by the other worker")
    until(lambda: time.monotonic() - stopped > 3 * LEASE, PATIENCE, what="three leases over")
    place.wire.release()
    first.thaw()

    until(lambda: "lease lost" in first.said(), PATIENCE, what="the loss noticed")
    expected = records(*([] if removed and kind != "redis list" else [new]))
    until(
        lambda: whole.settled(target) and [each for each in place.held() if path(each).endswith("/k")][-1:] == expected,
        PATIENCE,
        what=f"the newest state at the target, not {place.held()}",
    )
    assert {audit.difference for audit in whole.audits()} == {0}


@pytest.mark.nightly(
    "a worker that was stopped; one that was killed in test_lost_leases.py; late requests at each mirror"
)
@pytest.mark.parametrize("kind", KILLED)
def test_an_old_write_of_a_killed_worker_that_arrives_late_is_put_right(stage: Stage, kind: str) -> None:
    """Nobody knows what it had sent, but its lease runs out instead of being released."""
    whole, (first, second) = stage.whole, stage.workers
    name = f"killed_{uuid4().hex[:12]}"
    bucket = name.replace("_", "-")
    place, target = KILLED[kind](stage, name), f"{kind}:{name}"
    whole.add_target(target, bucket, **place.settings | {"timeout": "60s"})
    whole.post(body(event("warm", bucket=bucket)))
    until(lambda: whole.settled(target), PATIENCE, what="the first event delivered")
    old, new = event("k", bucket=bucket), event("k", bucket=bucket)

    place.wire.hold_next(b'"key":"k"' if kind == "elasticsearch" else b"")
    whole.post(body(old))
    until(place.wire.held.is_set, PATIENCE, what="the old write on its way")
    first.kill()
    whole.post(body(new))
    second.start()
    until(lambda: whole.settled(target), PATIENCE, what="both delivered by the other worker")
    place.wire.let_arrive()

    def written() -> list[Record]:
        return [record for record in place.held() if path(record).endswith("/k")]

    if kind != "mysql":  # whose new connection waits for the old write's lock
        until(lambda: written() == records(old), PATIENCE, what="the late write carried out")
    with whole.database.writing() as connection:  # a quarter of an hour passes
        requests = tables.redeliveries.update().values(due=1, until=1)
        assert connection.execute(requests).rowcount
    until(lambda: written() == records(new), PATIENCE, what="the newest state at the target")
    until(lambda: whole.settled(target), PATIENCE, what="the redelivery settled")
    assert {audit.difference for audit in whole.audits()} == {0}


def test_a_call_of_five_leases_is_delivered_once(stage: Stage, receiver: services.Receiver) -> None:
    whole, (first, second) = stage.whole, stage.workers
    receiver.set(delay=5 * LEASE, times=1)
    bucket = f"slow-{uuid4().hex[:12]}"
    second.start()
    whole.add_target("webhook:slow", bucket, endpoint=receiver.url, read_timeout="60s")
    sent = [event(f"k{number}", bucket=bucket) for number in range(4)]
    whole.post(body(*sent))
    until(lambda: whole.settled("webhook:slow"), PATIENCE, what="all delivered")
    assert sorted(map(path, posted(receiver))) == sorted(one.path for one in sent)
    assert "lease lost" not in first.said() + second.said()


def test_an_event_that_kills_each_process_that_sends_it_becomes_a_dead_letter(
    stage: Stage, receiver: services.Receiver
) -> None:
    """As one for which the system has no memory; the events around it are delivered meanwhile."""
    whole, (first, _) = stage.whole, stage.workers
    receiver.set(containing='"key":"poison"', delay=PATIENCE)
    bucket, attempts = f"killing-{uuid4().hex[:12]}", 2
    whole.add_target("webhook:killing", bucket, endpoint=receiver.url, max_attempts=attempts, retry_base="100ms")
    sent = [event("poison" if number == 10 else f"k{number}", bucket=bucket) for number in range(20)]
    whole.post(body(*sent))
    kills = 0

    def is_over() -> bool:
        nonlocal kills
        arrived = sum(b'"key":"poison"' in one for one in receiver.bodies())
        for process in first.children() if arrived > kills else ():
            process.kill()
        kills = arrived
        counters = whole.counters()["webhook:killing"]
        return (counters.delivered, counters.dead, counters.parked) == (len(sent) - 1, 1, 0)

    until(is_over, PATIENCE, what="all but one delivered, and that one dead")
    assert kills == LEASES.max_lost + attempts
    [letter] = DeadLetters(whole.database).page(DeadLetterFilter(target=TargetId("webhook", "killing"))).dead_letters
    assert (letter.key, letter.attempts, letter.reason) == ("poison", attempts, LOST_WORKER)
    assert {path(one) for one in posted(receiver)} >= {one.path for one in sent}
    assert {audit.difference for audit in whole.audits()} == {0}
