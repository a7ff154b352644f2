"""A target that takes long for each request, and a worker's process that is killed at its hard time limit."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.config.arn import TargetId
from app.config.targets.webhook import WebhookSettings
from app.outbox.admin.counters import read_counters
from app.outbox.delivery.ready_targets import HARD_LIMIT_SECONDS, time_limit
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.services import Answer, Receiver, speed
from tests.support.builders import add_target, event, migrated
from tests.support.delivery import Delivery, delivery
from tests.support.scripted_target import assert_counters_balance

ANSWER, LIMIT = 0.5, 4.0  # seconds; 16 answers take twice the limit
EVENTS = 16


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db", partitions=1)
    yield opened
    opened.close()


def settings(database: Database, folder: Path) -> dict[str, str]:
    return {
        "database_url": database.url.render_as_string(hide_password=False),
        "folder": str(folder),
        "lease_ttl": "3s",
        "lease_max_work": "2s",
        "allow_private": "on",
    }


def turn_and_be_killed(database: Database, folder: Path) -> None:
    """One drain and what it offers, in a child that Celery would kill at the hard limit."""
    chosen = settings(database, folder)
    child = os.fork()
    if child == 0:
        try:
            made = Delivery(chosen.pop("database_url"), Path(chosen.pop("folder")), **chosen)
            made.turn()
        finally:
            os._exit(0)
    killer = threading.Timer(LIMIT, os.kill, (child, signal.SIGKILL))
    killer.start()
    os.waitpid(child, 0)
    killer.cancel()


@pytest.mark.parametrize("keys", [1, EVENTS], ids=["one object", "many objects"])
def test_a_slow_endpoint_gets_each_event_although_all_take_longer_than_the_hard_limit(
    database: Database, tmp_path: Path, receiver: Receiver, keys: int
) -> None:
    receiver.set(Answer(delay=ANSWER))
    add_target(database, "slow", endpoint=receiver.url, read_timeout="30s", sync="on")
    Log(database).append([[event(f"key-{number % keys}") for number in range(EVENTS)]])
    database.close()  # before it forks
    until = speed.deadline(90)
    while time.monotonic() < until and len(receiver.requests()) < EVENTS:
        turn_and_be_killed(database, tmp_path)
    with delivery(settings(database, tmp_path)["database_url"], tmp_path) as whole:
        assert whole.turn() == [], "all are settled"
    assert_counters_balance(database)
    assert len(receiver.requests()) == EVENTS, "and none was sent twice"


def test_an_endpoint_that_hangs_is_unavailable_and_costs_no_event_an_attempt(
    database: Database, tmp_path: Path, receiver: Receiver
) -> None:
    """Each lease has one request without an answer: what it means is known across leases, and so across processes."""
    receiver.set(Answer(delay=30))
    target = add_target(
        database, "hangs", endpoint=receiver.url, read_timeout="200ms", max_attempts="1", retry_base="100ms"
    )
    Log(database).append([[event(f"key-{number}") for number in range(12)]])
    with delivery(settings(database, tmp_path)["database_url"], tmp_path, allow_private="on") as whole:
        whole.until(lambda: whole.context.registry.target(target).failures > 1, what="a probe that finds it so again")
        stored = whole.context.registry.target(target)
        assert (stored.state, "no answer within 0.2 s" in stored.reason) == ("unavailable", True)
        receiver.set()
        receiver.forget()
        whole.until(lambda: len(receiver.requests()) == 12, what="each event, once the endpoint answers")
        assert whole.context.registry.target(target).state == "running"
    with database.reading() as connection:
        (entry,) = read_counters(connection)
    assert (entry.delivered, entry.dead) == (12, 0)
    assert_counters_balance(database)


def test_a_slow_endpoint_that_answers_in_time_is_never_unavailable(
    database: Database, tmp_path: Path, receiver: Receiver
) -> None:
    receiver.set(Answer(delay=1.5))  # more than a second opinion waits
    target = add_target(database, "slow", endpoint=receiver.url, read_timeout="10s", sync="on")
    Log(database).append([[event(f"key-{number}") for number in range(4)]])
    with delivery(settings(database, tmp_path)["database_url"], tmp_path, allow_private="on") as whole:
        while len(receiver.requests()) < 4:
            whole.turn()
            assert whole.context.registry.target(target).failures == 0
    assert_counters_balance(database)


def test_the_hard_limit_grows_with_the_targets_own(database: Database, tmp_path: Path) -> None:
    target = add_target(database, "patient", read_timeout="1h")
    usual = add_target(database, "usual")
    chosen = settings(database, tmp_path)
    with delivery(chosen["database_url"], tmp_path) as whole:
        assert whole.context.drain.time_limit(target) > 3 * 3600 + 5
        assert whole.context.drain.time_limit(usual) == HARD_LIMIT_SECONDS
        assert whole.context.drain.time_limit(TargetId("webhook", "gone")) == HARD_LIMIT_SECONDS
    assert time_limit(WebhookSettings(endpoint="http://localhost/", timeout=60), 5) == 1205
