"""The newest run of a kind, target and bucket decides whether it failed, on each database; and what is overdue."""

from __future__ import annotations

from functools import partial

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.errors import BadValue
from app.outbox import tables
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.reconcile.runs import (
    BACKFILLING,
    Reconciliations,
    begin_tables,
    end_tables,
    fail_tables,
    latest_results,
)
from app.outbox.reconcile.schedule import RunRequests, RunState, Schedule, read_run_states
from tests.support.builders import add_target, registry

MIRROR = {"address": "127.0.0.1:9", "key": "rows"}
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
_R = tables.reconciliations.c


def states(database: Database, *, later: int = 0, tables_schedule: str = "") -> dict[tuple[str, str], RunState]:
    with database.reading() as connection:
        now = database_now(connection) + later
        found = read_run_states(connection, now, tables_schedule=tables_schedule, oldest=now - 30 * DAY)
    return {(state.kind, state.bucket): state for state in found}


def ended(database: Database, target: TargetId, bucket: str, state: str, problem: str = "", **counts: int) -> None:
    runs = Reconciliations(database)
    runs.end(runs.begin(target, bucket, lease=MINUTE), state, counts, problem=problem)


def test_the_newest_run_decides_and_the_last_good_one_is_kept_beside_it(database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values=MIRROR, bucket="images")
    ended(database, target, "images", "drift", missing=3)
    assert states(database)["reconcile", "images"].failed_at == 0
    ended(database, target, "images", "failed", "MySQL is away")
    state = states(database)["reconcile", "images"]
    assert (state.failed_at > 0, state.problem) == (True, "MySQL is away")
    assert state.good is not None
    assert (state.good.state, state.good.remaining_drift) == ("drift", 3)
    ended(database, target, "images", "clean")
    assert states(database)["reconcile", "images"].failed_at == 0
    ended(database, target, "images", "failed", "again")
    assert states(database, later=31 * DAY) == {}  # nothing schedules it, and nobody has run it for so long
    registry(database).remove(target, force=True)
    assert states(database) == {}


def test_a_run_of_a_prefix_says_nothing_of_the_bucket(database: Database) -> None:
    schedule = MIRROR | {"reconcile": "0 * * * *"}
    target = add_target(database, "x", type_name="redis", values=schedule, bucket="images")
    runs = Reconciliations(database)
    begin = partial(runs.begin, target, "images", lease=MINUTE)
    ended(database, target, "images", "failed", "MySQL is away")
    asked = RunRequests(database, registry(database)).start(target, "images", repair=False, prefix="a%/é")
    assert [(waiting.run, waiting.prefix) for waiting in Schedule(database).waiting()] == [(asked.run, "a%/é")]
    runs.end(begin(run=asked.run), "clean", {"objects": 3})
    [listed] = runs.list(limit=1)
    assert (listed.prefix, listed.place, listed.state) == ("a%/é", "images/a%/é", "clean")
    state = states(database)["reconcile", "images"]
    assert (state.problem, state.good) == ("MySQL is away", None)
    with database.reading() as connection:
        assert latest_results(connection) == []
    assert runs.last_size(target, "images") == 0
    runs.end(begin(prefix="b/"), "failed", {}, problem="SlowDown")
    assert states(database)["reconcile", "images/b/"].problem == "SlowDown"
    with database.writing() as connection:
        connection.execute(tables.reconciliations.update().where(_R.prefix == "").values(started_at=1))
    later = now_ms() // HOUR * HOUR + HOUR + MINUTE
    assert Schedule(database).register(later) == 1, "a run of a prefix counted as the scheduled one"
    with pytest.raises(BadValue, match="the prefix has 1025 bytes"):
        RunRequests(database, registry(database)).start(target, "images", repair=False, prefix="k" * 1025)


def test_a_run_that_waited_and_began_last_is_the_newest(database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values=MIRROR, bucket="images")
    requested = RunRequests(database, registry(database)).start(target, "images", repair=True)
    ended(database, target, "images", "clean")
    runs = Reconciliations(database)
    with database.writing() as connection:  # which began a second before the one that waited
        connection.execute(
            tables.reconciliations.update().where(_R.state == "clean").values(started_at=_R.started_at - 9)
        )
    runs.end(runs.begin(target, "images", lease=MINUTE, run=requested.run), "failed", {}, problem="no Java")
    assert states(database)["reconcile", "images"].problem == "no Java"


def test_a_run_whose_process_died_has_failed_before_another_one_says_so(database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values=MIRROR, bucket="images")
    runs = Reconciliations(database)
    runs.begin(target, "images", lease=MINUTE)
    runs.begin(target, "docs", lease=MINUTE, state=BACKFILLING)
    assert not states(database), "they run, and say nothing yet"
    found = states(database, later=2 * MINUTE)
    assert {key: state.problem for key, state in found.items()} == {
        ("reconcile", "images"): "the process of the run died", ("backfill", "docs"): "the process of the run died",
    }  # fmt: skip


def test_a_backfill_is_not_a_reconciliation_and_one_up_to_a_limit_has_not_failed(database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values=MIRROR, bucket="images")
    runs = Reconciliations(database)
    ended(database, target, "images", "clean")
    for state, problem in (("unfinished", ""), ("unfinished", "ClientError: SlowDown"), ("backfilled", "")):
        runs.end(runs.begin(target, "images", lease=MINUTE, state=BACKFILLING), state, {}, problem=problem)
        assert runs.list()[0].job == "backfill"
        found = states(database)
        assert found["backfill", "images"].problem == problem
        assert found["reconcile", "images"].failed_at == 0
    run = runs.begin(target, "images", lease=MINUTE, state=BACKFILLING)
    RunRequests(database, registry(database)).cancel(run)
    assert states(database)["backfill", "images"].failed_at == 0


@pytest.mark.parametrize("kind", ["reconcile", "scan"])
def test_a_schedule_is_overdue_without_beat_and_without_a_worker(database: Database, kind: str) -> None:
    target = add_target(database, "x", type_name="redis", values=MIRROR | {kind: "0 * * * *"}, bucket="images")
    assert states(database)[kind, "images"].due_at == 0  # it was set just now
    late = states(database, later=2 * HOUR)[kind, "images"]
    assert late.due_at > 0
    assert late.due_at % HOUR == 0
    schedule = Schedule(database)
    assert schedule.register(late.due_at) == 1
    assert states(database, later=2 * HOUR)[kind, "images"].waits, "to be registered is not to begin"
    [waiting] = schedule.waiting()
    runs = Reconciliations(database)
    runs.end(runs.begin(target, "images", lease=MINUTE, run=waiting.run), "clean", {})
    assert states(database)[kind, "images"].due_at == 0
    assert states(database, later=4 * HOUR)[kind, "images"].due_at > late.due_at
    values = MIRROR | {kind: "30 * * * *"}
    with database.writing() as connection:
        connection.execute(tables.reconciliations.update().values(started_at=_R.started_at - DAY))
    assert states(database)[kind, "images"].due_at > 0
    registry(database).put(target, values)
    assert states(database)[kind, "images"].due_at == 0, "by another schedule, nothing was due yet"


def test_a_request_that_only_compares_is_not_the_scheduled_run(database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values=MIRROR | {"reconcile": "0 * * * *"}, bucket="images")
    runs, requests = Reconciliations(database), RunRequests(database, registry(database))
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(created_at=tables.targets.c.created_at - DAY))
        connection.execute(tables.audit.update().values(at=tables.audit.c.at - DAY))
        connection.execute(tables.buckets.update().values(created_at=tables.buckets.c.created_at - DAY))
    run = requests.start(target, "images", repair=False).run
    runs.end(runs.begin(target, "images", lease=MINUTE, run=run), "clean", {})
    assert states(database)["reconcile", "images"].due_at > 0


def test_an_update_of_the_tables_that_failed_or_is_overdue_is_seen(database: Database) -> None:
    add_target(database, "x")
    assert states(database, tables_schedule="*/5 * * * *")["tables", ""].due_at == 0
    assert states(database, tables_schedule="*/5 * * * *", later=HOUR)["tables", ""].due_at > 0
    end_tables(database, begin_tables(database, lease=MINUTE))
    assert states(database)["tables", ""].failed_at == 0
    begin_tables(database, lease=MINUTE)
    assert states(database, later=HOUR)["tables", ""].problem == "the process of the run died"
    with database.reading() as connection:
        since = database_now(connection)
    end_tables(database, begin_tables(database, lease=MINUTE), problem="LogMovedBack: another log")
    fail_tables(database, "the job exited with code 1", since)
    assert states(database)["tables", ""].problem == "LogMovedBack: another log"
    end_tables(database, begin_tables(database, lease=MINUTE))
    assert states(database)["tables", ""].failed_at == 0
    with database.reading() as connection:
        since = database_now(connection) + 1
        number = connection.execute(sa.select(sa.func.count()).select_from(tables.reconciliations)).scalar_one()
    assert number == 2, "the last of each state"
    fail_tables(database, "no Java", since)
    state = states(database)["tables", ""]
    assert (state.problem, state.good is not None) == ("no Java", True)
    assert Reconciliations(database).list() == [], "a table of targets and buckets"
