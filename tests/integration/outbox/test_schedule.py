"""Runs that come due are registered once and wait until one takes them, on each database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from app.config.arn import TargetId
from app.events.parsing import parse
from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import AlreadyRunning
from app.outbox.log.append import Log
from app.outbox.policies import RECONCILIATIONS
from app.outbox.reconcile import schedule as schedule_module
from app.outbox.reconcile.runs import Reconciliations, latest_results
from app.outbox.reconcile.schedule import Schedule
from app.rules.model import Rule
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.hostile_names import BUCKETS, scheduled
from tests.support.tuning import tune

pytestmark = databases.ONE

SCHEDULED = [name for name in BUCKETS if scheduled(name)]
EACH_MINUTE = {"reconcile": "* * * * *", "address": "127.0.0.1:9", "key": "rows"}
MINUTE = 60_000


def waiting(database: Database) -> set[tuple[str, str, bool]]:
    return {(str(each.target), each.bucket, each.first) for each in Schedule(database).waiting()}


@databases.THREE
def test_what_is_due_is_registered_once_for_each_target_and_bucket(database: Database) -> None:
    add_target(database, "all", type_name="redis", values=EACH_MINUTE)
    add_target(database, "one", type_name="redis", values=EACH_MINUTE, bucket="quiet")
    off = add_target(database, "off", type_name="redis", values=EACH_MINUTE | {"enable": "off"})
    add_target(database, "unscheduled", type_name="redis", values={"address": "127.0.0.1:9", "key": "rows"})
    assert Schedule(database).register(now_ms()) == 2  # it knows of one bucket yet, which a rule names
    Log(database).append([[event(bucket="busy")]])
    now = now_ms()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: Schedule(database).register(now), range(4)))
    assert sum(found) == 1
    assert waiting(database) == {
        ("redis:all", "quiet", True), ("redis:all", "busy", True), ("redis:one", "quiet", True),
    }  # fmt: skip
    assert off not in {each.target for each in Schedule(database).waiting()}
    assert Schedule(database).register(now + 2 * MINUTE) == 0  # they wait, however many moments pass


def test_a_run_that_waits_is_begun_once_and_the_next_moment_makes_another(database: Database) -> None:
    target = add_target(database, "x", type_name="redis", values=EACH_MINUTE, bucket="bucket")
    schedule, runs = Schedule(database), Reconciliations(database)
    by_hand = runs.begin(target, "bucket", lease=MINUTE)
    assert schedule.register(now_ms()) == 0  # it is at work already
    runs.end(by_hand, "clean", {})
    later = now_ms() + MINUTE
    assert schedule.register(later) == 1
    [found] = schedule.waiting()
    assert (found.target, found.bucket, found.registered_at, found.first) == (target, "bucket", later, False)

    by_hand = runs.begin(target, "bucket", lease=MINUTE)  # somebody comes before it: it goes on waiting
    with pytest.raises(AlreadyRunning, match="redis:x is already being reconciled with bucket"):
        runs.begin(target, "bucket", lease=MINUTE, run=found.run)
    runs.end(by_hand, "clean", {})
    assert runs.begin(target, "bucket", lease=MINUTE, run=found.run) == found.run
    assert schedule.waiting() == []
    with pytest.raises(AlreadyRunning):
        runs.begin(target, "bucket", lease=MINUTE, run=found.run)
    runs.end(found.run, "drift", {"missing": 1})
    with pytest.raises(AlreadyRunning, match="has already been started"):
        runs.begin(target, "bucket", lease=MINUTE, run=found.run)
    assert [(each.run, each.state) for each in runs.list()][1] == (found.run, "drift")
    assert schedule.register(later) == 0
    assert schedule.register(later + MINUTE) == 1

    [found] = schedule.waiting()
    assert schedule.fail(found.run, "no Java " + "x" * 3000, now_ms())
    assert not schedule.fail(found.run, "again", now_ms())
    last = runs.list()[0]
    assert (last.run, last.state, last.problem[:8], schedule.waiting()) == (found.run, "failed", "no Java ", [])
    assert schedule.register(later + MINUTE) == 0


def test_a_scan_is_scheduled_for_the_buckets_whose_scanner_events_a_target_gets(database: Database) -> None:
    values = {"endpoint": "http://127.0.0.1:9/", "scan": "* * * * *"}
    target = add_target(database, "ops", type_name="webhook", values=values, bucket="every-event")
    stored = registry(database)
    for bucket, name in (
        ("scanned", "s3:Scanner:*"),
        ("many", "s3:Scanner:ManyVersions"),
        ("puts", "s3:ObjectCreated:*"),
    ):
        stored.add_rule(Rule(bucket=bucket, events=(name,), target=target))
    rows = add_target(database, "rows", type_name="redis", values=EACH_MINUTE | {"scan": "* * * * *"}, bucket="both")
    schedule, runs, now = Schedule(database), Reconciliations(database), now_ms()
    assert schedule.exists()
    assert schedule.register(now) == 5
    assert schedule.register(now) == 0
    found = {(str(each.target), each.bucket, each.job) for each in schedule.waiting()}
    assert found == {
        ("webhook:ops", "every-event", "scan"), ("webhook:ops", "scanned", "scan"), ("webhook:ops", "many", "scan"),
        ("redis:rows", "both", "scan"), ("redis:rows", "both", "reconcile"),
    }  # fmt: skip
    scan = next(each for each in schedule.waiting() if (each.target, each.job) == (rows, "scan"))
    runs.begin(rows, "both", lease=MINUTE, run=scan.run)
    with pytest.raises(AlreadyRunning, match="both is already being scanned"):
        runs.begin(rows, "both", lease=MINUTE)
    runs.end(scan.run, "clean", {})
    other = next(each for each in schedule.waiting() if each.target == rows)
    assert (other.job, other.first) == ("reconcile", True)  # a scan is no reconciliation
    with database.reading() as connection:
        assert latest_results(connection) == []
    assert {each.job for each in runs.list()} == {"scan", "reconcile"}
    assert schedule.register(now + MINUTE) == 1  # the others wait


def test_a_moment_that_nobody_saw_is_made_up_for_within_the_hour(database: Database) -> None:
    registry(database).put(TargetId("redis", "x"), EACH_MINUTE | {"reconcile": "0 3 * * *"})
    add_target(database, "x", type_name="redis", values=EACH_MINUTE | {"reconcile": "0 3 * * *"}, bucket="bucket")
    three = now_ms() // 86_400_000 * 86_400_000 + 3 * 3_600_000
    assert Schedule(database).register(three + RECONCILIATIONS.max_delay_ms + 1) == 0
    assert Schedule(database).register(three - 1) == 0
    assert Schedule(database).register(three + RECONCILIATIONS.max_delay_ms) == 1


def test_only_buckets_with_names_that_a_storage_allows_are_scheduled(database: Database) -> None:
    every = add_target(database, "all", type_name="redis", values=EACH_MINUTE)
    for name in BUCKETS:
        Log(database).append([parse(b'{"Records":[%s]}' % event(bucket=name).record.encode(), {}, now_ms=1).events])
    usable = ["abc", "a-b.c", "Legacy_Bucket", "_x1", "192.0.2.1", "x" * 63]
    Log(database).append([[event(bucket=name) for name in usable]])
    assert Schedule(database).register(now_ms()) == len(usable) + len(SCHEDULED)
    assert {bucket for _, bucket, _ in waiting(database)} == {*usable, *SCHEDULED}
    assert Schedule(database).unscheduled_buckets() == {every: len(BUCKETS) - len(SCHEDULED)}


@databases.TWO
def test_a_flood_of_names_is_scheduled_up_to_a_limit_and_pushes_out_nobody(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, schedule_module, "RECONCILIATIONS", max_buckets=5)
    every = add_target(database, "all", type_name="redis", values=EACH_MINUTE)
    Log(database).append([[event(bucket="zzz-first")]])
    with database.writing() as connection:
        connection.execute(tables.buckets.update().values(created_at=1))
    Log(database).append([[event(bucket=f"flood-{number}") for number in range(200)]])
    one = add_target(database, "one", type_name="redis", values=EACH_MINUTE, bucket="zzz-late")
    assert Schedule(database).register(now_ms()) == 6
    flood = {("redis:all", f"flood-{number}", True) for number in (0, 1, 10)}
    mine = {("redis:all", "zzz-first", True), ("redis:all", "zzz-late", True), ("redis:one", "zzz-late", True)}
    assert waiting(database) == mine | flood
    assert Schedule(database).unscheduled_buckets() == {every: 197}
    registry(database).add_rule(Rule(bucket="no bucket"[:2], events=("*",), target=one))
    assert Schedule(database).unscheduled_buckets() == {every: 198, one: 1}
