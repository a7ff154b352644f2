"""What runs by time beside deliveries: that it failed, or does not run, is on record, and nothing waits for that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.config.settings import Settings
from app.doctor.checks import CHECKS
from app.outbox import tables, upkeep
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.policies import UPKEEP
from tests.support import databases
from tests.support.builders import migrated, registry
from workers.drain import TaskRecords
from workers.runtime import Runtime

pytestmark = databases.TWO


def now(database: Database) -> int:
    with database.reading() as connection:
        return database_now(connection)


def states(database: Database, later: int = 0, *, service_events: bool = False) -> dict[str, upkeep.TaskState]:
    with database.reading() as connection:
        at = database_now(connection) + later
        return {one.name: one for one in upkeep.read_tasks(connection, at, service_events=service_events)}


def age(database: Database, name: str, ms: int) -> None:
    """Have what is on record of a task be older."""
    u = tables.upkeep.c
    older = {column: sa.case((u[column] > 0, u[column] - ms), else_=0) for column in ("succeeded_at", "failed_at")}
    with database.writing() as connection:
        connection.execute(tables.upkeep.update().where(u.name == name).values(older))


@databases.THREE
def test_a_task_fails_succeeds_and_becomes_overdue(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    records = TaskRecords(database, lambda: now(database))
    assert states(database) == {}, "no process has begun to run any"
    with records.running("purge"):
        pass
    assert states(database).keys() == upkeep.TASKS.keys() - {upkeep.NOTICES}, "what never runs becomes overdue, too"
    with pytest.raises(KeyError), records.running("samples"):
        raise KeyError("hush-hush")
    failed = states(database)["samples"]
    assert (failed.has_failed, failed.problem) == (True, "unexpected KeyError; the worker's log says more")
    with records.running("samples"):
        pass
    assert not states(database)["samples"].has_failed, "a success after a failure is recorded at once"
    monkeypatch.setattr(upkeep, "record_success", lambda *_: pytest.fail("it was recorded just now"))
    records.succeed("samples")
    due = upkeep.TASKS["purge"].interval_seconds * 1000 + UPKEEP.grace_ms
    assert [states(database, later)["purge"].due_at > 0 for later in (due - 5_000, due + 5_000)] == [False, True]
    assert states(database, due + 5_000)["audit"].due_at == 0
    assert states(database, 10 * due, service_events=True)[upkeep.NOTICES].due_at > 0
    assert upkeep.NOTICES not in states(database, 10 * due)


def test_what_fails_for_want_of_the_database_is_recorded_once_it_answers_with_its_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = TaskRecords(database, lambda: now(database))
    records.succeed("purge")
    recorded: list[str] = []
    record_failure = upkeep.record_failure

    def record(to: Database, name: str, at: int, problem: str) -> None:
        recorded.append(name)
        if len(recorded) == 1:
            raise sa.exc.OperationalError("UPDATE", None, Exception("it does not answer"))
        record_failure(to, name, at, problem)

    monkeypatch.setattr(upkeep, "record_failure", record)
    lost = sa.exc.OperationalError("DELETE", None, Exception("it does not answer"))
    for name in ("audit", "rates"):
        with pytest.raises(sa.exc.OperationalError), records.running(name):
            raise lost
    assert recorded == [], "nobody waits for it a second time"
    with records.running("rates"):
        pass
    assert recorded == ["audit"], "what has succeeded since is no failure any more"
    assert not states(database)["audit"].has_failed
    monkeypatch.setattr(time, "monotonic", lambda at=time.monotonic: at() + 40)
    with records.running("purge"):
        pass
    failed = states(database)["audit"]
    assert failed.problem.startswith("the outbox database was unavailable")
    assert now(database) - failed.failed_at > 39_000
    with records.running("audit"):
        pass
    assert not states(database)["audit"].has_failed


def test_a_database_that_is_away_fails_no_task_for_its_record(database: Database, tmp_path: Path) -> None:
    away = Database(f"sqlite:///{tmp_path}/none/outbox.db")
    records = TaskRecords(away, lambda: 1)
    with records.running("purge"):
        pass
    with pytest.raises(sa.exc.OperationalError), records.running("purge"), away.reading() as connection:
        connection.execute(sa.select(tables.upkeep))
    away.close()


def test_the_doctor_says_what_failed_and_why_and_what_is_overdue_as_one(database: Database, tmp_path: Path) -> None:
    class Service:
        settings = Settings.from_environ({"BUCKETWIRE_DATA_DIR": str(tmp_path)})

    service = Service()
    service.database, service.registry = database, registry(database)  # type: ignore[attr-defined]
    records = TaskRecords(database, lambda: now(database))
    records.succeed("purge")

    def found() -> list[str]:
        return [one.text for one in CHECKS["upkeep"](service)]  # type: ignore[arg-type]

    assert found() == []
    with pytest.raises(KeyError), records.running("audit"):
        raise KeyError
    age(database, "audit", 10_000)
    [text] = found()
    assert text.startswith("removing entries of the audit log older than BUCKETWIRE_AUDIT_RETENTION failed 10")
    assert "unexpected KeyError; the worker's log says more; it succeeded " in text
    for name in ("purge", "samples", "schedule"):
        age(database, name, 300_000)
    [_, overdue] = found()
    assert overdue.startswith(
        "overdue: registering the reconciliations that are due, not done for 5.0 m (due each 5.0 s); "
    )
    assert overdue.count("not done for") == 3
    assert "does `bucketwire beat` run" in overdue


def test_every_task_is_run_by_the_drains_process_and_recorded(tmp_path: Path, outbox_url: str) -> None:
    database = migrated(outbox_url, partitions=4)
    settings = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": outbox_url}
    context = Runtime(Settings.from_environ(settings | {"BUCKETWIRE_SERVICE_EVENTS": "on"}))
    began = now(database)
    for turn in range(2):
        if turn:
            for name in upkeep.TASKS:
                age(database, name, 100_000_000)
            context.upkeep.records._recorded.clear()
            context.upkeep._next_tidying = context.upkeep._repaired = 0.0
            with database.writing() as connection:
                connection.execute(tables.series.delete())  # a sample is due again
        context.upkeep.purge()
        context.upkeep.sample()
        context.upkeep.publish_runs(lambda _: None, lambda _: None)
        context.drain.run(lambda _: None)
    late = {name for name, one in states(database, service_events=True).items() if one.succeeded_at < began}
    assert late == set()
    context.close()
    database.close()
