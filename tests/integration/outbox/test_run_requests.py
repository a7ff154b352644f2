"""Reconciliations on request: started once, approved, cancelled; and what they found, in pages."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from app.config.arn import TargetId
from app.config.bucket_settings import BucketId
from app.config.errors import BadValue
from app.outbox.audit import AuditFilter, entries
from app.outbox.declared import UnknownTarget
from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import AlreadyRunning, NothingToRepair, UnknownRun, UnseenBucket
from app.outbox.log.append import Log
from app.outbox.reconcile import runs
from app.outbox.reconcile.runs import BACKFILLING, Reconciliations, read_findings, store_findings
from app.outbox.reconcile.schedule import RunRequests, Schedule
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.tuning import tune

pytestmark = databases.ONE

ROWS = {"address": "127.0.0.1:9", "key": "rows"}
MINUTE = 60_000


def mirror(database: Database, **values: str) -> TargetId:
    return add_target(database, "rows", type_name="redis", values=ROWS | values, bucket="images")


def requests(database: Database) -> RunRequests:
    return RunRequests(database, registry(database))


@databases.THREE
def test_a_requested_run_waits_as_a_scheduled_one_does_and_repairs_as_requested(database: Database) -> None:
    target = mirror(database)
    assert not Schedule(database).exists()
    run = requests(database).start(target, "images", repair=True)
    assert (run.state, run.bucket, run.repair) == ("waiting", "images", True)
    [waiting] = Schedule(database).waiting()
    assert (waiting.run, waiting.target, waiting.repair) == (run.run, target, True)
    assert Schedule(database).exists(), "so that `up` starts a worker for it"
    [entry] = [one for one in entries(database, AuditFilter(), limit=100) if one.action == "reconciliation.start"]
    assert entry.resource == f"reconciliation:{run.run}"
    assert entry.details == {"target": "redis:rows", "bucket": "images", "repair": True}


@databases.TWO
def test_of_several_requests_at_once_one_registers_a_run(database: Database) -> None:
    target = mirror(database)

    def start(_: int) -> bool:
        try:
            requests(database).start(target, "images", repair=False)
        except AlreadyRunning:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(start, range(4))) == [False, False, False, True]
    requests(database).start(target, "films", repair=False, unknown_bucket=True)
    assert len(Schedule(database).waiting()) == 2


@databases.TWO
def test_nothing_is_started_while_a_run_is_active_and_a_dead_one_hinders_nobody(database: Database) -> None:
    target, runs = mirror(database, reconcile="* * * * *"), Reconciliations(database)
    runs.begin(target, "images", lease=-1)
    run = requests(database).start(target, "images", repair=True)
    assert Schedule(database).register(now_ms()) == 0, "the request counts for the schedule"
    runs.begin(target, "images", lease=MINUTE, run=run.run)
    with pytest.raises(AlreadyRunning, match="redis:rows with images is running already"):
        requests(database).start(target, "images", repair=False)


@databases.THREE
def test_a_request_that_only_compares_replaces_no_scheduled_run(database: Database) -> None:
    target, schedule, runs = mirror(database, reconcile="* * * * *"), Schedule(database), Reconciliations(database)
    run = requests(database).start(target, "images", repair=False).run
    due = now_ms() + MINUTE
    assert schedule.register(due) == 1, "while the request waits"
    assert schedule.register(due) == 0, "once"
    requested, scheduled = schedule.waiting()
    assert (requested.run, requested.repair, scheduled.repair) == (run, False, None)
    runs.begin(target, "images", lease=MINUTE, run=scheduled.run)
    runs.end(scheduled.run, "repaired", {})

    runs.begin(target, "images", lease=3 * MINUTE, run=run)
    assert schedule.register(due + MINUTE) == 1, "while the request runs"
    schedule.fail(schedule.waiting()[0].run, "no worker", now_ms())
    runs.end(run, "drift", {"missing": 1})
    assert schedule.register(due + 2 * MINUTE) == 1


@pytest.mark.parametrize(("repair", "registered"), [(True, 0), (False, 1)])
def test_a_request_after_the_scheduled_time_counts_for_it_if_it_repairs(
    database: Database, repair: bool, registered: int
) -> None:
    target, runs = mirror(database, reconcile="* * * * *"), Reconciliations(database)
    run = requests(database).start(target, "images", repair=repair).run
    runs.begin(target, "images", lease=MINUTE, run=run)
    runs.end(run, "drift", {"missing": 1})
    assert Schedule(database).register(runs.get(run).started_at) == registered


@databases.TWO
def test_what_has_no_rows_and_what_is_no_bucket_is_not_compared(database: Database) -> None:
    target, log = mirror(database), add_target(database, "log")
    asked = requests(database)
    with pytest.raises(BadValue, match="webhook:log has no rows"):
        asked.start(log, "images", repair=False)
    for name in ("", "..", "-rf", "a/b", "x" * 5000):
        with pytest.raises(BadValue, match="not the name of a bucket"):
            asked.start(target, name, repair=False)
    with pytest.raises(UnknownTarget):
        asked.start(TargetId("redis", "none"), "images", repair=False)
    assert Schedule(database).waiting() == []


@databases.THREE
def test_a_bucket_that_nobody_knows_is_compared_only_if_that_is_meant(database: Database) -> None:
    target, asked = mirror(database), requests(database)
    with pytest.raises(UnseenBucket, match="has named the bucket imges; to compare it all the same, give"):
        asked.start(target, "imges", repair=False)
    Log(database).append([[event(bucket="films"), event(bucket="photos")]])
    with pytest.raises(UnseenBucket, match=r"did you mean photos\?"):
        asked.start(target, "photo", repair=False)
    registry(database).buckets.put(BucketId("set"), {"region": "eu-central-1"})
    for known in ("images", "films", "set"):
        assert asked.start(target, known, repair=False).state == "waiting", known
    run = asked.start(target, "imges", repair=False, unknown_bucket=True)
    asked.cancel(run.run)
    assert asked.start(target, "imges", repair=False).state == "waiting", "an earlier run has named it"


def test_a_repair_is_approved_only_for_a_run_that_found_drift(database: Database) -> None:
    target, runs, asked = mirror(database), Reconciliations(database), requests(database)
    run = asked.start(target, "images", repair=False)
    with pytest.raises(NothingToRepair, match="is waiting"):
        asked.repair(run.run)
    runs.begin(target, "images", lease=MINUTE, run=run.run)
    runs.end(run.run, "drift", {"missing": 3})
    approved = asked.repair(run.run)
    assert (approved.state, approved.repair, approved.run != run.run) == ("waiting", True, True)
    with pytest.raises(AlreadyRunning):
        asked.repair(run.run)
    with pytest.raises(UnknownRun):
        asked.repair("none")


@databases.THREE
def test_a_cancelled_run_does_not_begin_and_one_that_runs_is_told_and_keeps_its_state(database: Database) -> None:
    target, runs, asked = mirror(database), Reconciliations(database), requests(database)
    waiting = asked.start(target, "images", repair=False)
    assert asked.cancel(waiting.run).state == "cancelled"
    assert Schedule(database).waiting() == []
    with pytest.raises(AlreadyRunning):
        runs.begin(target, "images", lease=MINUTE, run=waiting.run)

    running = runs.begin(target, "images", lease=MINUTE)
    assert runs.renew(running, lease=MINUTE)
    assert not runs.is_cancelled(running)
    asked.cancel(running)
    assert runs.is_cancelled(running)
    assert not runs.renew(running, lease=MINUTE)
    runs.end(running, "failed", {}, problem="it was stopped before it finished")
    found = runs.get(running)
    assert (found.state, found.problem) == ("cancelled", "cancelled on request")
    assert found.finished_at
    asked.start(target, "images", repair=False)


def test_what_has_finished_is_not_cancelled_and_a_backfill_stays_unfinished(database: Database) -> None:
    target, runs, asked = mirror(database), Reconciliations(database), requests(database)
    ended = runs.begin(target, "images", lease=MINUTE)
    runs.end(ended, "clean", {})
    assert asked.cancel(ended).state == "clean"
    backfill = runs.begin(target, "images", lease=MINUTE, state=BACKFILLING)
    assert asked.cancel(backfill).state == "unfinished"
    with pytest.raises(UnknownRun):
        asked.cancel("none")
    assert (
        len([one for one in entries(database, AuditFilter(), limit=100) if one.action == "reconciliation.cancel"]) == 1
    )


@databases.THREE
def test_findings_are_bounded_read_in_pages_and_go_with_their_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, runs, "RECONCILIATIONS", max_findings=7)
    register = Reconciliations(database)
    target = TargetId("redis", "rows")
    old = register.begin(target, "images", lease=MINUTE)
    odd = "a\u0000\U0001f600\u202e'\"<b>" + "é" * 1000
    made = [
        {"kind": "stale" if number % 3 else "missing", "key": f"{odd}{number}", "size": None} for number in range(9)
    ]
    assert store_findings(database, old, iter(made)) == 7
    assert store_findings(database, old, iter(made)) == 7
    assert [(one.number, one.facts) for one in read_findings(database, old)] == list(enumerate(made[:7], 1))
    assert [one.number for one in read_findings(database, old, limit=3, after=2)] == [3, 4, 5]
    assert [one.number for one in read_findings(database, old, kind="missing")] == [1, 4, 7]
    register.end(old, "drift", {})
    new = register.begin(target, "images", lease=MINUTE)
    register.end(new, "drift", {})
    store_findings(database, new, iter(made))
    register.delete_old(target, "images", now_ms() + MINUTE)
    assert read_findings(database, old) == []
    assert len(read_findings(database, new)) == 7
