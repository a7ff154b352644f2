"""A sick network before database, broker and targets: nothing taken is lost, and all goes on by itself when it is well.

Every connection of the service goes through a proxy that can be slow, cut, half open, deaf on one side or a black hole.
The service never starts anew in between.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random
from uuid import uuid4

import pytest
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from tests import services
from tests.services import Proxy, until
from tests.support.service_processes import System, system
from tests.support.target_readers import appended, create_log, listed, posted
from tests.support.traffic import Poster, Traffic

NIGHTLY = pytest.mark.nightly(
    "a deaf network before Redis as the broker; targets that are down, hang and drip; an outbox that is away"
)

pytestmark = pytest.mark.promise

PATIENCE = 90  # seconds for what comes within few on a quiet machine
SHARE = 40  # events that each poster has for a fault, and again after it
FAULTS: dict[str, Callable[[Proxy], None]] = {
    "slow": lambda proxy: proxy.slow(0.1),
    "cut": Proxy.cut,
    "half open": Proxy.halve,
    "mute": Proxy.mute,
    "black hole": Proxy.swallow,
}


@dataclass
class Ward:
    """The service with a proxy before everything that it talks to."""

    whole: System
    database: Proxy
    broker: Proxy
    redis: Proxy
    postgres: Proxy
    webhook: Proxy
    receiver: services.Receiver
    redis_server: services.Redis
    postgres_server: services.Postgres
    table: str = ""
    took: dict[str, float] = field(default_factory=dict)

    @property
    def targets(self) -> list[Proxy]:
        return [self.redis, self.postgres, self.webhook]

    def idle(self) -> bool:
        """No worker has a partition in hand."""
        c = tables.cursors.c
        with self.whole.database.reading() as connection:
            query = sa.select(c.partition).where(c.leased_until > now_ms()).limit(1)
            return connection.execute(query).first() is None

    def recovers(self, flow: Traffic, fault: str) -> None:
        """Heal everything; what was recorded goes out by itself, and what comes now too."""
        for proxy in (self.database, self.broker, *self.targets):
            proxy.heal()
        began = time.monotonic()
        flow.allow_more(SHARE)
        until(lambda: flow.all_taken, PATIENCE, what=f"posts taken after: {fault}")
        until(self.whole.settled, PATIENCE, what=f"everything delivered after: {fault}")
        self.took[fault] = time.monotonic() - began

    def check(self, flow: Traffic) -> None:
        """All of it arrived at each target, in order for each object, and the counters say so."""
        table, expected = self.table, flow.expected()
        assert expected.count == flow.taken
        arrived = {
            "webhook": posted(self.receiver),
            "redis": listed(self.redis_server, table),
            "well": listed(self.redis_server, f"{table}-well"),
            "postgresql": appended(self.postgres_server, table, "log"),
        }
        for name, records in arrived.items():
            expected.check(records, name)
        for entry in self.whole.audits():
            assert entry.difference == 0
            counters = entry.counters
            assert (counters.recorded, counters.delivered, counters.dead, counters.discarded) == (
                flow.taken,
                flow.taken,
                0,
                0,
            )


@contextmanager
def ward(
    postgres: services.Postgres, redis: services.Redis, broker: services.Redis | services.RabbitMQ
) -> Iterator[Ward]:
    name = f"faults_{uuid4().hex[:12]}"
    url = postgres.create_database(f"{name}_outbox")
    postgres.create_database(name)
    create_log(postgres, name, "log")
    with ExitStack() as stack:
        receiver = stack.enter_context(services.receiver())
        to_database, to_broker, to_redis, to_postgres, to_webhook = (
            stack.enter_context(services.proxy(server.port)) for server in (postgres, broker, redis, postgres, receiver)
        )
        proxied = url.replace(f":{postgres.port}/", f":{to_database.port}/")
        broker_url = broker.url.replace(f":{broker.port}/", f":{to_broker.port}/")
        whole = stack.enter_context(
            system(proxied, broker_url, concurrency=4, lease_ttl="4s", lease_max_work="3s", database_timeout="2s")
        )
        whole.database = direct = Database(url)  # the test itself looks past the proxy
        stack.callback(direct.close)
        dsn = postgres.dsn(name).replace(f"port={postgres.port}", f"port={to_postgres.port}")
        place, well = f"{services.LOOPBACK}:{to_redis.port}", f"{services.LOOPBACK}:{redis.port}"
        whole.add_target("redis:ill", address=place, key=name, format="access", timeout="2s")
        whole.add_target("redis:well", address=well, key=f"{name}-well", format="access")
        whole.add_target("postgresql:ill", connection_string=dsn, table="log", format="access", timeout="2s")
        hook = f"http://{services.LOOPBACK}:{to_webhook.port}/"
        whole.add_target("webhook:ill", endpoint=hook, timeout="2s", read_timeout="2s")
        yield Ward(whole, to_database, to_broker, to_redis, to_postgres, to_webhook, receiver, redis, postgres, name)


@pytest.fixture
def over_redis(postgres_server: services.Postgres, redis_server: services.Redis) -> Iterator[Ward]:
    with services.redis() as broker, ward(postgres_server, redis_server, broker) as made:
        yield made


@pytest.fixture
def over_rabbitmq(
    postgres_server: services.Postgres, redis_server: services.Redis, rabbitmq_server: services.RabbitMQ
) -> Iterator[Ward]:
    with ward(postgres_server, redis_server, rabbitmq_server) as made:
        yield made


@contextmanager
def posting(sick: Ward) -> Iterator[Traffic]:
    """Two frontends that post, of which everything posted so far has arrived."""
    flow = Traffic(sick.whole, [Poster(number, Random(number)) for number in range(2)])
    try:
        with flow.running():
            sick.recovers(flow, "nothing")
            yield flow
        sick.check(flow)
    except BaseException:
        sys.stderr.write(sick.whole.logs()[-50_000:])
        raise


def tell(capsys: pytest.CaptureFixture[str], sick: Ward, flow: Traffic) -> None:
    with capsys.disabled():
        took = ", ".join(f"{fault} {seconds:.1f} s" for fault, seconds in sick.took.items())
        sys.stdout.write(f"\n  all delivered after {took}; {flow.taken} events, refused {dict(flow.refused)}\n")


def answered(flow: Traffic, refused: int, when: str) -> None:
    """Return when everything was taken, or something refused."""
    until(lambda: flow.all_taken or flow.refused.total() > refused, PATIENCE, what=f"an answer {when}")


@NIGHTLY
def test_a_sick_network_before_the_database_refuses_or_takes_and_loses_nothing(
    over_redis: Ward, capsys: pytest.CaptureFixture[str]
) -> None:
    with posting(over_redis) as flow:
        for fault in ("cut", "half open", "mute"):
            FAULTS[fault](over_redis.database)
            flow.allow_more(SHARE)
            answered(flow, flow.refused.total(), f"while {fault}")
            over_redis.recovers(flow, fault)
    assert set(flow.refused) <= {"503 database-unavailable"}
    tell(capsys, over_redis, flow)


@pytest.mark.parametrize(
    ("broker", "faults"),
    [("over_redis", ["mute"]), pytest.param("over_rabbitmq", ["black hole"], marks=NIGHTLY)],
)
def test_a_sick_network_before_the_broker_refuses_nothing_and_loses_nothing(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], broker: str, faults: list[str]
) -> None:
    sick: Ward = request.getfixturevalue(broker)
    with posting(sick) as flow:
        for fault in faults:
            FAULTS[fault](sick.broker)
            flow.allow_more(SHARE)
            until(lambda: flow.all_taken, PATIENCE, what=f"posts taken while {fault}")
            until(sick.idle, PATIENCE, what=f"nobody at work while {fault}")
            flow.allow_more(SHARE)
            until(lambda: flow.all_taken, PATIENCE, what=f"posts taken while {fault}")
            sick.recovers(flow, fault)
    assert not flow.refused
    tell(capsys, sick, flow)


@NIGHTLY
def test_sick_networks_before_targets_hold_no_other_target_up_and_lose_nothing(
    over_redis: Ward, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = over_redis.whole
    with posting(over_redis) as flow:
        for fault in ("slow", "cut", "half open", "black hole"):
            for proxy in over_redis.targets:
                FAULTS[fault](proxy)
            flow.allow_more(SHARE)
            until(lambda: flow.all_taken, PATIENCE, what=f"posts taken while {fault}")
            until(lambda: whole.settled("redis:well"), PATIENCE, what=f"the other target served while {fault}")
            over_redis.recovers(flow, fault)
    assert not flow.refused
    tell(capsys, over_redis, flow)
