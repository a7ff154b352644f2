"""A worker opens what was set: the table is there before the first event, and a wrong address shows at once."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import psycopg2
import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.errors import BadSettings
from app.config.tls import Validity, validities_of_file
from app.outbox import tables
from app.outbox.declared import OPENED, OPENING_DUE, OPENING_FAILED, StoredTarget
from app.outbox.delivery.availability import begin_opening
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.processes import read_certificates
from app.outbox.tokens import Tokens
from tests import services
from tests.services import until
from tests.support.builders import add_target, event, migrated, registry
from tests.support.delivery import Delivery, delivery
from tests.support.scripted_target import ScriptedTarget, assert_counters_balance
from workers import deliverer
from workers.delivery import pooled_target
from workers.delivery.retry import RetrySchedule
from workers.idle_processes import ProcessStates


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db", partitions=2)
    yield opened
    opened.close()


@pytest.fixture
def whole(database: Database, tmp_path: Path) -> Iterator[Delivery]:
    with delivery(database.url.render_as_string(hide_password=False), tmp_path) as made:
        yield made


def stored(database: Database, target: TargetId) -> StoredTarget:
    return registry(database).target(target)


def open_now(whole: Delivery, database: Database, target: TargetId) -> str:
    """What a worker does when it is woken for a target that is due to be opened."""
    with database.writing() as connection:  # whenever it was tried last
        connection.execute(tables.targets.update().where(tables.targets.c.opening != OPENED).values(opening_due_at=0))
    return whole.context.deliverer.deliver(target)


def redis_at(port: int, database: Database, **settings: object) -> TargetId:
    values = {"address": f"{services.LOOPBACK}:{port}", "key": "opened", "format": "access"}
    return add_target(database, type_name="redis", values=values, **settings)


def test_the_drain_has_a_target_opened_whose_table_is_there_before_the_first_event(
    whole: Delivery, database: Database, postgres_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bucketwire.worker")
    url = sa.make_url(postgres_database)
    dsn = f"host={url.host} port={url.port} user={url.username} password={url.password} dbname={url.database}"
    target = add_target(database, type_name="postgresql", values={"connection_string": dsn, "table": "bucketevents"})
    woken: list[TargetId] = []
    assert whole.context.drain.run(woken.append) == 1
    assert woken == [target]
    assert [whole.context.deliverer.deliver(each) for each in woken * 2] == ["opened", "nothing due"]
    with psycopg2.connect(dsn) as connection, connection.cursor() as rows:
        rows.execute("SELECT count(*) FROM bucketevents")
        assert rows.fetchone() == (0,)
    assert stored(database, target).opening == OPENED
    assert "arn:minio:sqs::x:postgresql opened in " in caplog.text


def test_a_wrong_address_shows_and_the_target_is_opened_when_its_server_is_there(
    whole: Delivery, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    port = services.free_port()
    target = redis_at(port, database)
    for _ in range(2):
        assert "refused" in open_now(whole, database, target)
    found = stored(database, target)
    assert (found.opening, found.state, found.breaker) == (OPENING_FAILED, "running", "closed")
    assert f"{port}" in found.opening_reason
    assert caplog.text.count("cannot be opened") == 1, "the same reason is logged once"
    with services.redis() as server:
        registry(database).put(target, dict(found.values) | {"address": f"{services.LOOPBACK}:{server.port}"})
        assert stored(database, target).opening == OPENING_DUE
        assert open_now(whole, database, target) == "opened"
    assert_counters_balance(database)


def test_a_server_that_never_answers_costs_its_timeout(whole: Delivery, database: Database) -> None:
    with socket.create_server((services.LOOPBACK, 0)) as silent:
        target = redis_at(silent.getsockname()[1], database, timeout="300ms")
        assert open_now(whole, database, target).startswith("cannot be opened: ")
    assert "Timeout" in stored(database, target).opening_reason


def test_a_result_for_settings_that_were_replaced_meanwhile_is_dropped(
    whole: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database)

    class Replaced(ScriptedTarget):
        def open(self) -> None:
            registry(database).put(target, {"endpoint": "http://127.0.0.1:10/"})

    monkeypatch.setattr(pooled_target, "create", lambda *_: Replaced())
    assert open_now(whole, database, target) == "opened by another worker, or set again meanwhile"
    assert stored(database, target).opening == OPENING_DUE


def test_what_an_adapter_did_not_expect_is_a_failure_without_its_text(
    whole: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, closed = add_target(database), list[bool]()

    class Broken(ScriptedTarget):
        def open(self) -> None:
            raise KeyError("hush-hush")

        def close(self) -> None:
            closed.append(True)
            raise OSError("hush-hush")

    monkeypatch.setattr(pooled_target, "create", lambda *_: Broken())
    assert open_now(whole, database, target) == "cannot be opened: unexpected KeyError"
    assert closed[-1:] == [True]


def test_settings_that_cannot_be_read_are_its_reason(
    whole: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_PASSWORD", "hush-hush")
    target = redis_at(services.free_port(), database, password="env:REDIS_PASSWORD")
    monkeypatch.delenv("REDIS_PASSWORD")
    assert open_now(whole, database, target).startswith("cannot be opened: ")
    assert "REDIS_PASSWORD" in stored(database, target).opening_reason
    with pytest.raises(BadSettings):
        registry(database).settings(stored(database, target))


def test_a_removed_or_paused_target_is_left_alone(whole: Delivery, database: Database) -> None:
    target = add_target(database)
    registry(database).pause(target, "a new disk")
    assert open_now(whole, database, target) == "nothing due"
    registry(database).resume(target)
    registry(database).remove(target, force=True)
    assert open_now(whole, database, target) == "the target was removed"


def test_a_delivery_that_was_answered_says_that_the_target_can_be_opened(whole: Delivery, database: Database) -> None:
    target = add_target(database)
    whole.serve(ScriptedTarget(), RetrySchedule())
    Log(database).append([[event()]])
    until(lambda: "delivered=1" in whole.turn())
    assert stored(database, target).opening == OPENED


def test_a_queue_that_nobody_empties_gets_no_more_messages(whole: Delivery, database: Database) -> None:
    add_target(database)
    woken: list[TargetId] = []
    assert whole.context.drain.run(woken.append, lambda _: 1) == 0
    assert woken == []


def test_a_late_wake_up_opens_nothing_that_was_tried_just_now(whole: Delivery, database: Database) -> None:
    target = redis_at(services.free_port(), database)
    assert "refused" in whole.context.deliverer.deliver(target)
    assert whole.context.deliverer.deliver(target) == "nothing due"


def test_an_opening_leaves_a_process_for_deliveries(
    whole: Delivery, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ProcessStates()
    pool.share()
    pool.begin(0)
    pool.set_busy(busy=True)
    monkeypatch.setattr(deliverer, "processes", pool)
    target = redis_at(services.free_port(), database)
    assert pool.take_turn(), "another process opens a target that does not answer"
    assert whole.context.deliverer.deliver(target) == "declined: no process is free to open the target"
    assert stored(database, target).opening == OPENING_DUE
    assert begin_opening(database, stored(database, target), whole.context.clock()), "it is tried as soon as one is"
    pool.end_turn(0.0)
    assert "refused" in open_now(whole, database, target)


def test_a_target_that_a_limited_token_may_set_is_not_sought_on_the_link(whole: Delivery, database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values={"address": "169.254.1.1:9", "key": "k"}, timeout="1s")
    Tokens(database).create("tenant", ["admin"], targets=[target])
    assert "is link-local" in whole.context.deliverer.deliver(target)
    Log(database).append([[event("a")]])
    whole.until(lambda: stored(database, target).state == "unavailable")
    assert "is link-local" in stored(database, target).reason


def test_certificates_that_a_worker_meets_are_kept_and_looked_at_anew_after_a_resume(
    whole: Delivery, database: Database
) -> None:
    ca = services.certificates().ca
    [valid] = validities_of_file(str(ca))

    def kept() -> dict[str, Validity]:
        with database.reading() as connection:
            found = read_certificates(connection, [], now_ms())
        return {one.name: one.valid for one in found if one.of == f"target {target}"}

    with services.redis(tls=True) as server:
        address = server.tls_url.rpartition("/")[0]
        target = add_target(
            database, type_name="redis", values={"address": address, "key": "k", "format": "access", "tls_ca": str(ca)}
        )
        assert open_now(whole, database, target) == "opened"
        assert kept() == {services.LOOPBACK: valid, "tls_ca": valid}
        registry(database).resume(target)
        assert kept() == {}
        Log(database).append([[event("a")]])
        whole.context.deliverer.deliver(target)
        assert kept() == {services.LOOPBACK: valid, "tls_ca": valid}
