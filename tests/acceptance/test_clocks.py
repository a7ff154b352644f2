"""Hosts whose wall clocks differ by ten seconds, which is more than a lease: all is delivered, and no lease is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from uuid import uuid4

import pytest

from tests import services
from tests.services import until
from tests.services.clock import Clock
from tests.support.properties import times
from tests.support.service_processes import System, start_all, system
from tests.support.target_readers import posted
from tests.support.traffic import Poster, Traffic

pytestmark = [
    pytest.mark.promise,
    pytest.mark.nightly("a clock that is set on and back in test_local_faults.py; the times of all four databases"),
]

AHEAD = 10  # seconds
LEASE = 4
PATIENCE = 90


@contextmanager
def by_clocks(whole: System, sign: int) -> Iterator[System]:
    """Two workers, one by a clock that is ahead and one behind; beat, drain and API by turns."""
    ahead, behind = Clock(), Clock()
    ahead.set(sign * AHEAD)
    behind.set(-sign * AHEAD)
    first, second = whole.workers
    for role, clock in ((first, ahead), (second, behind), (whole.beat, ahead), (whole.drain, behind)):
        role.settings = {**role.settings, **clock.env}
    whole.api.settings = {**whole.api.settings, **ahead.env}
    start_all(whole.roles)
    yield whole


def everything_is_delivered(whole: System, receiver: services.Receiver) -> None:
    # Slow enough that both workers have partitions in hand, again and again, while the other looks for work.
    receiver.set(delay=0.05)
    whole.add_target("webhook:slow", endpoint=receiver.url, max_in_flight="4")
    flow = Traffic(whole, [Poster(number, Random(number)) for number in range(2)])
    with flow.running():
        for _ in range(times(2, 3)):
            flow.allow_more(times(50, 100))
            until(lambda: flow.all_taken, PATIENCE, what="posts taken")
            until(whole.settled, PATIENCE, what="everything delivered")
    repeats = flow.expected().check(posted(receiver), "webhook")
    assert repeats == 0
    assert "lease lost" not in whole.logs()
    assert {entry.difference for entry in whole.audits()} == {0}
    ready = whole.ask("GET", "/readyz").json()
    assert ready["checks"]["drain"]["age"] < AHEAD / 2


@pytest.mark.parametrize("sign", [1, -1], ids=["ahead", "behind"])
def test_clocks_ten_seconds_apart_over_postgresql_and_redis(
    postgres_server: services.Postgres, receiver: services.Receiver, sign: int
) -> None:
    url = postgres_server.create_database(f"clocks_{uuid4().hex[:12]}")
    options = {"workers": 2, "start": False, "lease_ttl": f"{LEASE}s", "lease_max_work": "1s"}
    with services.redis() as broker, system(url, broker.url, **options) as whole, by_clocks(whole, sign):
        everything_is_delivered(whole, receiver)


@pytest.mark.parametrize("sign", [1, -1], ids=["ahead", "behind"])
def test_clocks_ten_seconds_apart_over_mariadb_and_rabbitmq(
    mariadb_server: services.MariaDB, rabbitmq_server: services.RabbitMQ, receiver: services.Receiver, sign: int
) -> None:
    url = mariadb_server.create_database(f"clocks_{uuid4().hex[:12]}")
    options = {"workers": 2, "start": False, "lease_ttl": f"{LEASE}s", "lease_max_work": "1s"}
    with system(url, rabbitmq_server.url, **options) as whole, by_clocks(whole, sign):
        everything_is_delivered(whole, receiver)
