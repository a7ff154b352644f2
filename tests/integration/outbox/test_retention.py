"""What leaves the log, when, and that nothing which supersedes an older event leaves before it."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.settings import Settings
from app.events.model import Event
from app.outbox import object_versions as versions_retention
from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.delivery import redelivery
from app.outbox.engine.database import Database, now_ms
from app.outbox.log import retention
from app.outbox.log.append import Log
from app.outbox.log.retention import PurgeProgress, purge
from app.outbox.upkeep import read_tasks
from app.resources.undelivered import DeadLetterFilter
from tests.services import until
from tests.support import databases
from tests.support.builders import DELETE, PUT, add_target, event, migrated, registry
from tests.support.delivery import delivery
from tests.support.mirror import Mirror
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from tests.support.tuning import tune
from workers import drain
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Rejected
from workers.runtime import Runtime

pytestmark = databases.TWO

MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"
DAY = 86_400_000


def purged(database: Database) -> int:
    return purge(database, now_ms() + 1, batch_events=3)


def left(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.execute(sa.select(tables.events.c.id).order_by(tables.events.c.seq)).scalars())


def refusing(*refused: Event) -> ScriptedTarget:
    """A target that refuses some events for good, each once."""
    once = {one.id for one in refused}

    def script(one: Event) -> Any:
        if one.id in once:
            once.discard(one.id)
            return Rejected("no")
        return DELIVERED

    return ScriptedTarget(script)


def record(courier: Courier, *events: Event) -> None:
    for one in events:
        Log(courier.database).append([[one]])
        courier.run()


def replay_dead_letters(mirror: Mirror) -> dict[str, str]:
    assert DeadLetters(mirror.database).replay(DeadLetterFilter()) > 0
    return mirror.deliver()


def replay_everything(mirror: Mirror) -> dict[str, str]:
    Replays(mirror.database).begin(mirror.target, Selection())
    with mirror.database.writing() as connection:
        connection.execute(tables.cursors.update().values(leased_until=0))
    return mirror.deliver()


@databases.THREE
@pytest.mark.parametrize("version", ["", "v1"])
def test_a_dead_letter_does_not_bring_back_what_was_deleted_since(database: Database, version: str) -> None:
    old = event("k", version=version)
    mirror = Mirror(database, add_target(database), refusing(old))
    assert mirror.tell(old) == {}
    assert mirror.tell(event("k", name=DELETE, version=version)) == {}
    for _ in range(2):
        purged(database)
    assert replay_dead_letters(mirror) == {}
    for _ in range(2):  # the dead letter's event goes first, then what superseded it
        purged(database)
    assert left(database) == []
    assert mirror.known() == 0
    assert_counters_balance(database)


@pytest.mark.parametrize("version", ["", "v1"])
def test_a_dead_letter_does_not_overwrite_what_was_written_since(database: Database, version: str) -> None:
    old, new = event("k", version=version), event("k", version=version and "v2")
    mirror = Mirror(database, add_target(database), refusing(old))
    mirror.tell(old)
    held = mirror.tell(new)
    purged(database)
    assert replay_dead_letters(mirror) == held
    assert [one.id for one in mirror.arrived].count(new.id) == 1
    assert_counters_balance(database)


def test_a_dead_letter_is_not_taken_for_the_history_of_a_key_that_comes_again(database: Database) -> None:
    old = event("k", version="v1")
    mirror = Mirror(database, add_target(database), refusing(old))
    mirror.tell(old)
    mirror.tell(event("k", name=DELETE, version="v1"))
    purged(database)
    assert mirror.tell(event("k", version="v5")) == {"k": "v5"}
    purged(database)
    assert mirror.tell(event("k", name=DELETE, version="v5")) == {}
    purged(database)
    assert replay_dead_letters(mirror) == {}


def test_a_dead_letter_of_which_nothing_newer_is_known_is_delivered(database: Database) -> None:
    for version in ("", "v1"):
        only = event(f"k{version}", version=version)
        mirror = Mirror(database, add_target(database, f"x{version}", bucket="images"), refusing(only))
        mirror.tell(only)
        purged(database)
        assert f"k{version}" in replay_dead_letters(mirror)


@pytest.mark.parametrize("version", ["", "v1"])
def test_a_newer_event_with_an_older_time_stays_as_long_as_the_older_one(database: Database, version: str) -> None:
    """Two API hosts whose clocks are an hour apart."""
    mirror = Mirror(database, add_target(database))
    first, second = event("k", version=version), event("k", name=DELETE, version=version)
    mirror.tell(first)
    mirror.tell(second)
    received_at(database, first, 3_600_000)
    received_at(database, second, 1000)
    removed = purge(database, 2000)
    assert removed == (1 if version else 0), "the removal of a version is known without its event"
    assert replay_everything(mirror) == {}
    assert purge(database, 4_000_000) == 2 - removed
    assert (left(database), mirror.known()) == ([], 0)


@databases.THREE
def test_an_event_that_came_late_is_not_written_when_what_supersedes_it_is_older_by_receipt(database: Database) -> None:
    late, newest = event("k"), event("k")
    mirror = Mirror(database, add_target(database))
    held = mirror.tell(newest)
    assert mirror.tell(late) == held
    received_at(database, newest, 1000)
    assert purge(database, 2000) == 0
    assert replay_everything(mirror) == held


@pytest.mark.parametrize("version", ["", "v{}"])
def test_a_dead_letter_keeps_one_newer_event_of_its_object_however_many_there_are(
    database: Database, version: str
) -> None:
    events = [event("hot", version=version.format(number)) for number in range(40)]
    mirror = Mirror(database, add_target(database), refusing(events[0]))
    held = mirror.tell(events[0])
    for some in (events[1:9], events[9:20], events[20:]):
        held = mirror.tell(*some)
        purged(database)
    assert left(database) == [events[0].id, events[-1].id]
    assert replay_dead_letters(mirror) == held
    for _ in range(2):
        purged(database)
    assert left(database) == []


def test_each_target_keeps_the_newest_event_that_it_knows_of(database: Database) -> None:
    """A newer event that another target got, and this one did not, supersedes nothing here."""
    puts = add_target(database, "puts", events=["s3:ObjectCreated:*"])
    deletes = add_target(database, "deletes", events=["s3:ObjectRemoved:*"])
    old, new = event("k"), event("k")
    mirror, other = Mirror(database, puts, refusing(old)), Mirror(database, deletes)
    held = {}
    for one in (old, new, event("k", name=DELETE)):
        held = mirror.tell(one)
        other.deliver()
    purged(database)
    assert replay_dead_letters(mirror) == held


def test_two_keys_of_one_hash_do_not_supersede_each_other(database: Database) -> None:
    old, new = event("k"), event("k")
    mirror = Mirror(database, add_target(database), refusing(old))
    mirror.tell(old)
    held = mirror.tell(new)
    mirror.tell(event("other"))
    with database.writing() as connection:
        connection.execute(tables.events.update().values(key_hash=7, partition=0))
        connection.execute(tables.dead_letters.update().values(partition=0))
        connection.execute(tables.cursors.update().values(position=100))
    assert purged(database) == 1
    assert left(database) == [old.id, new.id]
    assert held["k"] == new.sequencer


def test_what_lies_beneath_forgotten_versions_is_not_guessed_from_a_dead_letter(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, versions_retention, "RETENTION", max_layers=4)
    first = event("k", version="first")
    mirror = Mirror(database, add_target(database), refusing(first), batch=1000)
    mirror.tell(first)
    versions = [f"v{number}" for number in range(4 + 4)]
    mirror.tell(*(event("k", version=version) for version in versions))
    purged(database)
    for version in reversed(versions[4:]):
        mirror.tell(event("k", name=DELETE, version=version))
    assert mirror.rows == {}, "v3 is there, but it was forgotten, and the dead letter is older still"


@pytest.mark.parametrize("policy", [Policy.LOG, Policy.MIRROR])
def test_a_redelivery_finds_its_events_after_their_retention(database: Database, policy: Policy) -> None:
    courier = Courier(database, add_target(database), policy=policy)
    late, newest = event("k"), event("k")
    record(courier, late, event("l"), newest)
    courier.scripted.got.append(late)  # as a worker does that was stopped meanwhile
    redelivery.request(database, row_id(courier), {place(database, late): seq(database, late)})
    purged(database)
    assert set(left(database)) == {late.id, newest.id}
    courier.run()
    assert courier.scripted.got[-1].id == newest.id
    purged(database)
    assert left(database) == []
    assert_counters_balance(database)


def test_a_redelivery_whose_events_are_gone_is_warned_of(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    courier = Courier(database, add_target(database))
    late, newest, other = event("k"), event("k"), event("other")
    record(courier, late, newest, other)
    where, number = place(database, late), seq(database, late)
    purge(database, now_ms() + 1)
    record(courier, kept := event("other"))
    redelivery.request(database, row_id(courier), {where: number, place(database, kept): seq(database, kept)})
    with caplog.at_level(logging.WARNING):
        courier.run()
    [warning] = [each.getMessage() for each in caplog.records if "may hold an old state" in each.getMessage()]
    assert f"hash {where[1]}" in warning
    assert count(database, tables.redeliveries) == 0


def test_a_request_that_asks_for_more_while_it_is_carried_out_stays(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier = Courier(database, add_target(database))
    first, second = event("k"), event("k")
    record(courier, first, second)
    where, target = place(database, first), row_id(courier)
    redelivery.request(database, target, {where: seq(database, second)})
    real = redelivery._newest

    def meanwhile(*arguments: Any) -> Any:
        chosen = real(*arguments)
        redelivery.request(database, target, {where: seq(database, first)})
        return chosen

    with monkeypatch.context() as patched:
        patched.setattr(redelivery, "_newest", meanwhile)
        courier.run()
    assert courier.scripted.got[2:] == [], "nothing is newer than the second event"
    courier.run()
    assert [one.id for one in courier.scripted.got[2:]] == [second.id]
    assert count(database, tables.redeliveries) == 0


def test_a_request_that_is_raised_while_it_is_carried_out_goes_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if database.dialect == "sqlite":
        pytest.skip("nobody else writes in the middle of a transaction")
    courier = Courier(database, add_target(database))
    first, second = event("k"), event("k")
    record(courier, first, second)
    where, target = place(database, first), row_id(courier)
    redelivery.request(database, target, {where: seq(database, second)})
    delete, runs = tables.redeliveries.delete, list[Future[Any]]()
    with ThreadPoolExecutor(1) as worker:

        def meanwhile() -> Any:
            if not runs:
                runs.append(worker.submit(courier.run))
            return delete()

        monkeypatch.setattr(tables.redeliveries, "delete", meanwhile)
        redelivery.request(database, target, {where: seq(database, first)})
        runs[0].result(60)
    courier.run()
    assert [one.id for one in courier.scripted.got[2:]] == [second.id]


def test_a_purge_goes_on_where_the_last_one_ended(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(database, kept=30, free=10)
    progress = PurgeProgress()
    looked_at = spy(monkeypatch)
    runs = []
    while len(runs) < 20 and sum(runs) < 10:
        runs.append(interrupted_purge(database, monkeypatch, 4, progress))
    assert sum(runs) == 10, runs
    assert len(left(database)) == 30
    assert purge(database, DAY, batch_events=5, progress=progress) == 0
    looked_at.clear()
    assert purge(database, DAY, batch_events=5, progress=progress) == 0
    assert sum(looked_at) == 0, "nothing is looked at twice"
    DeadLetters(database).purge(DeadLetterFilter())
    tune(monkeypatch, retention, "RETENTION", revisit_seconds=-1.0)
    assert purge(database, DAY, batch_events=5, progress=progress) == 30
    assert_counters_balance(database)


def test_old_entries_of_the_audit_log_are_removed_by_drains_however_many_there_are(
    outbox_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = migrated(outbox_url, partitions=4)
    entry = {"at": 1, "actor": "local", "address": "", "via": "", "operation": "0" * 32, "action": "rule.add"}
    entry |= {"resource": "rule:1", "details": "{}"}
    with database.writing() as connection:
        connection.execute(tables.audit.insert(), [entry] * 3500)
    settings = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": outbox_url}
    context = Runtime(Settings.from_environ(settings))
    requested: list[float] = []
    monkeypatch.setattr(drain, "_MAX_PURGE_SECONDS", -1)  # one statement each
    monkeypatch.setattr(drain, "_PURGE_PAUSE_SECONDS", 0)
    monkeypatch.setattr(context.wakeups, "request", requested.append)

    def left() -> int:
        with database.reading() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(tables.audit)).scalar_one())

    context.upkeep.purge()
    assert left() == 2500, "a purge is short: the drain waits for it"
    assert requested == [0], "the drain is woken to go on"
    for expected in (1500, 500, 0):
        context.drain.run(lambda _: None)
        assert left() == expected
    monkeypatch.setattr(drain, "_MAX_PURGE_SECONDS", 60)
    context.drain.run(lambda _: None)
    requested.clear()
    context.drain.run(lambda _: None)
    assert requested == []
    context.close()


@pytest.mark.slow
def test_a_purge_that_leaves_old_events_is_continued_by_drains_until_none_are_left(
    outbox_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = migrated(outbox_url, partitions=4)
    Log(database).append([[event(f"k{number}") for number in range(100)]])
    settings = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": outbox_url}
    context = Runtime(Settings.from_environ(settings | {"BUCKETWIRE_RETENTION": "1s"}))
    requested: list[float] = []
    monkeypatch.setattr(drain, "_MAX_PURGE_SECONDS", 60)
    monkeypatch.setattr(drain, "purge", partial(purge, batch_events=5, max_events=20))
    monkeypatch.setattr(context.wakeups, "request", requested.append)
    until(lambda: context.clock() > newest(database) + 1000, 30, what="the events to be old")
    assert context.upkeep.purge() == 20
    assert [0 < delay <= 1 for delay in requested] == [True], "the drain is woken to go on"
    monkeypatch.setattr(drain, "_PURGE_PAUSE_SECONDS", 60)
    context.drain.run(lambda _: None)
    assert requested[1:], "it is woken again if it was woken too soon"
    monkeypatch.setattr(drain, "_PURGE_PAUSE_SECONDS", 0)
    until(lambda: context.drain.run(lambda _: None) == 0 and not left(database), 30, what="the log to be purged")
    requested.clear()
    context.drain.run(lambda _: None)
    assert requested == []
    context.close()
    database.close()


def newest(database: Database) -> int:
    """When the newest event of the log was received (ms)."""
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.max(tables.events.c.received_at))).scalar_one())


def test_events_that_all_stay_are_looked_at_without_a_lock(database: Database) -> None:
    fill(database, kept=30, free=0)
    with locked_tail(database):
        assert purge(database, DAY, batch_events=5) == 0


def test_a_purge_does_not_wait_for_who_has_locked_the_tail(database: Database) -> None:
    if database.dialect == "sqlite":
        pytest.skip("SQLite locks the whole database")
    fill(database, kept=1, free=10)
    progress = PurgeProgress()
    with locked_tail(database):
        assert purge(database, DAY, batch_events=5, progress=progress) == 0
        assert progress.is_behind
    assert purge(database, DAY, batch_events=5, progress=progress) == 10


def test_what_cannot_be_tidied_stops_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def failing(name: str, error: Exception) -> Callable[..., None]:
        def run(*_: object, **__: object) -> None:
            tried.append(name)
            raise error

        return run

    full = sa.exc.OperationalError("", None, OSError("no space"))
    monkeypatch.setattr(drain.audit, "purge", failing("audit", full))
    monkeypatch.setattr(drain.event_states, "forget_attempts", failing("attempts", KeyError("a defect")))
    monkeypatch.setattr(drain.availability, "forget_removed", failing("rates", full))
    monkeypatch.setattr(drain, "drop_unused", failing("unused", full))
    monkeypatch.setattr(drain, "_MAX_PURGE_SECONDS", 60)
    url = f"sqlite:///{tmp_path}/outbox.db"
    database = migrated(url, partitions=4)
    Log(database).append([[event(f"k{number}") for number in range(10)]])
    with database.writing() as connection:
        connection.execute(tables.events.update().values(received_at=1))
    with delivery(url, tmp_path) as made:
        assert made.context.upkeep.purge() == 10
        assert made.context.upkeep.purge() == 0
        assert tried == ["audit", "attempts", "rates", "unused"], "each once in an interval"
        monkeypatch.setattr(drain, "_REPAIR_INTERVAL_SECONDS", 0.0)
        made.context.upkeep._next_tidying = 0.0
        for _ in range(2):
            made.context.upkeep.purge()
        assert tried[4:] == 2 * ["audit", "attempts", "rates", "unused"], "those that fail soon again"
    with database.reading() as connection:
        states = {one.name: one for one in read_tasks(connection, now_ms(), service_events=True)}
    assert {name for name, one in states.items() if one.has_failed} == {"audit", "attempts", "rates", "versions"}
    assert states["attempts"].problem == "unexpected KeyError; the worker's log says more"
    assert states["purge"].succeeded_at > now_ms() - 60_000
    database.close()


def test_a_purge_asks_for_what_refers_to_a_batch_once(database: Database) -> None:
    if database.dialect != "sqlite":
        pytest.skip("SQLite counts its steps")
    steps = []
    for kept in (100, 2000):
        with database.writing() as connection:
            for table in (tables.dead_letters, tables.events):
                connection.execute(table.delete())
        fill(database, kept=kept, free=100, kept_first=False)
        with database.reading() as connection:
            raw: sqlite3.Connection = connection.connection.driver_connection
            ticks = 0

            def tick() -> int:
                nonlocal ticks
                ticks += 1
                return 0

            raw.set_progress_handler(tick, 100)
            window = retention._read_window(connection, 0, 0, DAY, 50, {})
            raw.set_progress_handler(None, 0)
        assert len(window.removable) == 50
        steps.append(ticks)
    assert steps[1] < 1.5 * steps[0] + 10


def fill(database: Database, *, kept: int, free: int, kept_first: bool = True) -> None:
    """Old events in partition 0: dead letters of one target, and settled ones."""
    row_id = registry(database).target(add_target(database, f"x{kept}-{free}")).row_id
    total = kept + free
    dead = range(kept) if kept_first else range(free, total)
    blank = {"partition": 0, "received_at": 1, "name": PUT, "bucket": "images", "version": ""}
    blank |= {"sequencer": "A", "time": 0, "record": "{}", "trace": ""}
    rows = [
        blank | {"seq": n + 1, "id": f"{n:032d}", "key_hash": n, "key": f"k{n}", "targets": f",{row_id},"}
        for n in range(total)
    ]
    letter = {"target_id": row_id, "partition": 0, "reason": "no", "attempts": 1, "history": "[]"}
    letter |= {"first_tried": 1, "last_tried": 1}
    letters = [letter | {"seq": n + 1, "event_id": f"{n:032d}"} for n in dead]
    c = tables.cursors.c
    with database.writing() as connection:
        connection.execute(tables.events.insert(), rows)
        connection.execute(tables.dead_letters.insert(), letters)
        connection.execute(tables.log_head.update().values(last_seq=total, arrivals_seq=total))
        connection.execute(tables.cursors.update().values(position=total))
        mine = tables.cursors.update().where(c.target_id == row_id, c.partition == 0)
        connection.execute(mine.values(delivered=free, dead=kept, freed=total))
        connection.execute(tables.targets.update().where(tables.targets.c.id == row_id).values(recorded=total))


def spy(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events each look at the log covers."""
    looked_at: list[int] = []
    real = retention._referred

    def referred(connection: Any, partition: int, first: int, last: int) -> set[int]:
        looked_at.append(last - first + 1)
        return real(connection, partition, first, last)

    monkeypatch.setattr(retention, "_referred", referred)
    return looked_at


class TimeIsOver(Exception):
    """Ends a purge."""


def interrupted_purge(
    database: Database, monkeypatch: pytest.MonkeyPatch, batches: int, progress: PurgeProgress
) -> int:
    """A purge that ends after so many batches; how many events it removed."""
    real = retention._purge_batch
    removed: list[int] = []

    def batch(*arguments: Any) -> int:
        if len(removed) == batches:
            raise TimeIsOver
        removed.append(real(*arguments))
        return removed[-1]

    with monkeypatch.context() as patched:
        patched.setattr(retention, "_purge_batch", batch)
        with suppress(TimeIsOver):
            purge(database, DAY, batch_events=5, progress=progress)
    return sum(removed)


@contextmanager
def locked_tail(database: Database) -> Iterator[None]:
    """Whoever wants to remove events waits, and with SQLite whoever wants to write."""
    with database.writing() as connection:
        connection.execute(sa.select(tables.log_tail.c.id).with_for_update()).all()
        yield


def received_at(database: Database, one: Event, at: int) -> None:
    with database.writing() as connection:
        connection.execute(tables.events.update().where(tables.events.c.id == one.id).values(received_at=at))


def row_id(courier: Courier) -> int:
    return registry(courier.database).target(courier.target).row_id


def place(database: Database, one: Event) -> tuple[int, int]:
    e = tables.events.c
    with database.reading() as connection:
        row = connection.execute(sa.select(e.partition, e.key_hash).where(e.id == one.id)).one()
        return row.partition, row.key_hash


def seq(database: Database, one: Event) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(tables.events.c.seq).where(tables.events.c.id == one.id)).scalar_one())


def count(database: Database, table: sa.Table) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_events_that_a_wrong_clock_dated_in_the_future_stay_and_stop_no_purge(database: Database) -> None:
    courier = Courier(database, add_target(database), ScriptedTarget())
    early, dated, late = ([event(f"{name}{number}") for number in range(8)] for name in ("early", "dated", "late"))
    record(courier, *early, *dated, *late)
    with database.writing() as connection:
        future = tables.events.update().where(tables.events.c.id.in_([one.id for one in dated]))
        connection.execute(future.values(received_at=now_ms() + 365 * DAY))
    assert purge(database, now_ms() + 1, batch_events=1) == 16
    assert sorted(left(database)) == sorted(one.id for one in dated)
    assert purge(database, now_ms() + 366 * DAY) == 8
