"""Events about the service: each recorded once, whoever notices it, and never about themselves without end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest
import sqlalchemy as sa
from sqlalchemy import event as sa_event

from app.config.arn import TargetId
from app.events import own_events
from app.events.model import Event
from app.events.own_events import SERVICE_BUCKET
from app.outbox import notices, series, tables
from app.outbox.buckets import count_buckets, every_bucket, is_bucket
from app.outbox.delivery.availability import close_breaker, open_breaker
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.notices import NoticeRecorder
from app.outbox.reconcile import runs as reconcile_runs
from app.outbox.reconcile.runs import Reconciliations
from app.outbox.sources.rows import SourceLeases
from app.rules.model import BadRules, Rule
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.pulled_events import Sources
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from tests.support.tuning import tune
from workers.delivery.outcomes import DELIVERED, Rejected

pytestmark = databases.ONE

INTERVAL = 600_000


class Watch:
    """Samples and looks, at a time that the test sets."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.database = database
        self.now = series.FINE.begin(now_ms()) + 10 * series.FINE.step * 1000
        for module in (series, notices):
            monkeypatch.setattr(module, "database_now", lambda _: self.now)
        self.recorder = self.make()

    def make(self) -> NoticeRecorder:
        return NoticeRecorder(self.database, interval=INTERVAL, backlog=5)

    def look(self, after: int = 10_000, *, paused: bool = False) -> int:
        """Look after so many ms, in which samples were taken as ever, unless nothing ran meanwhile."""
        for step in (after,) if paused else (after - 10_000, 10_000):
            self.now += step
            series.take_sample(self.database)
        return self.recorder.record()

    def recorded(self) -> list[dict[str, Any]]:
        """The records of the events about the service, in the order of the log."""
        e = tables.events.c
        query = sa.select(e.record).where(e.bucket == SERVICE_BUCKET).order_by(e.seq)
        with self.database.reading() as connection:
            return [orjson.loads(record) for record in connection.execute(query).scalars()]

    def told(self) -> list[tuple[str, str]]:
        return [(record["eventName"], record["s3"]["object"]["key"]) for record in self.recorded()]


@pytest.fixture
def watch(database: Database, monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(database, monkeypatch)


def row_id(database: Database, target: TargetId) -> int:
    return registry(database).target(target).row_id


def rejected_by(target: TargetId, database: Database, *events: Event) -> None:
    if events:
        Log(database).append([list(events)])
    Courier(database, target, ScriptedTarget(lambda _: Rejected("no"))).run()


def test_a_target_that_is_unavailable_and_available_again_is_reported_to_rules_for_it_alone(
    watch: Watch, database: Database
) -> None:
    everything, target = add_target(database, "all"), add_target(database, "audit", bucket="images")
    ops = add_target(database, "ops", bucket=SERVICE_BUCKET, events=["bucketwire:*"])
    assert (watch.look(), watch.look()) == (0, 0)
    open_breaker(database, row_id(database, target), "refused: 503", watch.now + 1000, probing=False)
    assert (watch.look(), watch.look()) == (1, 0)
    close_breaker(database, row_id(database, target))
    assert (watch.look(), watch.look()) == (1, 0)
    key = "webhook%3Aaudit"
    assert watch.told() == [(own_events.UNAVAILABLE, key), (own_events.AVAILABLE, key)]
    first = watch.recorded()[0]["responseElements"]
    assert first == {"x-bucketwire-reason": "refused: 503", "x-bucketwire-target": "webhook:audit"}
    got = ScriptedTarget(lambda _: DELIVERED)
    Courier(database, ops, got).run()
    assert [one.name for one in got.got] == [own_events.UNAVAILABLE, own_events.AVAILABLE]
    assert Courier(database, everything).run().counts == {}
    assert_counters_balance(database)


def test_a_target_that_begins_to_fail_and_delivers_again_is_reported(watch: Watch, database: Database) -> None:
    target = add_target(database, "audit", bucket="images")
    watch.look()
    rejected_by(target, database, *[event(f"a{number}") for number in range(5)])
    watch.look()
    assert watch.told() == [(own_events.DEAD, "webhook%3Aaudit"), (own_events.FAILING, "webhook%3Aaudit")]
    facts = {"x-bucketwire-attempts": "5", "x-bucketwire-reason": "", "x-bucketwire-target": "webhook:audit"}
    assert watch.recorded()[1]["responseElements"] == facts
    Log(database).append([[event("b")]])
    Courier(database, target).run()
    assert (watch.look(), watch.look()) == (1, 0)
    assert watch.told()[2:] == [(own_events.RECOVERED, "webhook%3Aaudit")]


@databases.TWO
def test_its_bucket_is_none_of_the_buckets(watch: Watch, database: Database) -> None:
    target = add_target(database, "audit", bucket=SERVICE_BUCKET)
    open_breaker(database, row_id(database, target), "down", watch.now + 1000, probing=False)
    assert watch.look() == 1
    assert (every_bucket(database), count_buckets(database), is_bucket(database, SERVICE_BUCKET)) == ([], 0, False)
    with pytest.raises(BadRules, match="bucketwire:service"):
        registry(database).add_rule(Rule(bucket="*", events=("bucketwire:EventsDead",), target=target))


@databases.ALL
def test_two_that_notice_the_same_record_it_once(watch: Watch, database: Database) -> None:
    targets = [add_target(database, f"t{number}", bucket="none") for number in range(3)]
    watch.look()
    recorders = [watch.make() for _ in range(2)]
    for number, target in enumerate(targets, 1):
        open_breaker(database, row_id(database, target), "down", watch.now + 1000, probing=False)
        with ThreadPoolExecutor(2) as threads:
            assert sum(threads.map(NoticeRecorder.record, recorders)) == 1
        assert len(watch.told()) == number


def test_one_that_is_stopped_after_it_has_looked_records_nothing_that_is_out_of_date(
    watch: Watch, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database, "audit", bucket="none")
    watch.look()
    open_breaker(database, row_id(database, target), "down", watch.now + 1000, probing=False)
    append, other = Log.append, watch.make()

    def after_a_while(self: Log, *arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(Log, "append", append)
        watch.now += 60_000
        assert other.record() == 1
        close_breaker(database, row_id(database, target))
        watch.now += 60_000
        assert other.record() == 1
        return append(self, *arguments, **options)

    monkeypatch.setattr(Log, "append", after_a_while)
    assert watch.recorder.record() == 0
    assert [name for name, _ in watch.told()] == [own_events.UNAVAILABLE, own_events.AVAILABLE]


def test_many_dead_events_make_one_report_in_an_interval(watch: Watch, database: Database) -> None:
    target = add_target(database, "audit", bucket="images")
    rejected_by(target, database, event("before"))
    assert watch.look() == 0, "what happened before is not news"
    rejected_by(target, database, *(event(f"k{number}") for number in range(40)))
    assert watch.look() == 2
    rejected_by(target, database, event("more"), event("most"))
    assert (watch.look(), watch.look()) == (0, 0)
    assert watch.look(INTERVAL) == 1
    dead = [record for record in watch.recorded() if record["eventName"] == own_events.DEAD]
    assert [record["responseElements"]["x-bucketwire-count"] for record in dead] == ["40", "2"]
    assert watch.look(INTERVAL) == 0


def test_a_report_that_dies_itself_makes_no_reports_without_end(watch: Watch, database: Database) -> None:
    target = add_target(database, "audit", bucket="images")
    registry(database).add_rule(Rule(bucket=SERVICE_BUCKET, events=("*",), target=target))
    watch.look()
    rejected_by(target, database, event("a"))
    assert watch.look() == 1
    for _ in range(6):
        rejected_by(target, database)
        watch.look(2 * INTERVAL)
    assert len(watch.told()) == 1
    rejected_by(target, database, event("b"))
    assert watch.look(2 * INTERVAL) == 1


def test_an_unavailable_target_gets_the_report_about_itself_in_order(watch: Watch, database: Database) -> None:
    target = add_target(database, "audit", bucket=SERVICE_BUCKET)
    watch.look()
    open_breaker(database, row_id(database, target), "down", 0, probing=False)
    for _ in range(5):
        watch.look(INTERVAL)
    close_breaker(database, row_id(database, target))
    watch.look()
    got = ScriptedTarget(lambda _: DELIVERED)
    Courier(database, target, got).run()
    assert [one.name for one in got.got] == [own_events.UNAVAILABLE, own_events.AVAILABLE]


def test_a_backlog_above_its_bound_is_reported_and_its_end(watch: Watch, database: Database) -> None:
    target = add_target(database, "audit", bucket="images")
    watch.look()
    Log(database).append([[event(f"k{number}") for number in range(5)]])
    assert watch.look() == 0
    Log(database).append([[event("one more")]])
    assert watch.look() == 1
    Courier(database, target).run()
    assert watch.look() == 1
    assert [name for name, _ in watch.told()] == [own_events.BACKLOG_HIGH, own_events.BACKLOG_NORMAL]
    assert watch.recorded()[0]["responseElements"]["x-bucketwire-backlog"] == "6"


@databases.THREE
def test_drift_is_reported_with_its_counts_whichever_run_ends_last(watch: Watch, database: Database) -> None:
    target = add_target(database, "rows", bucket="images")
    watch.look()
    runs = Reconciliations(database)
    slow, quick = runs.begin(target, "a", lease=60_000), runs.begin(target, "b", lease=60_000)
    runs.end(quick, "clean", {})
    assert watch.look() == 0
    runs.end(slow, "drift", {"missing": 3, "orphaned": 1})
    assert (watch.look(), watch.look()) == (1, 0)
    [record] = watch.recorded()
    facts = record["responseElements"]
    assert (record["eventName"], facts["x-bucketwire-bucket"], facts["x-bucketwire-missing"]) == (
        own_events.DRIFT, "a", "3",
    )  # fmt: skip


def test_a_pause_of_the_drain_is_reported_by_the_one_that_goes_on(watch: Watch, database: Database) -> None:
    add_target(database, "audit", bucket="images")
    for _ in range(3):
        assert watch.look() == 0
    Log(database).append([[event("a")._replace(origin="request  minio")]])  # the first request of all comes meanwhile
    assert watch.look(300_000, paused=True) == 1
    assert (watch.look(), watch.look()) == (0, 0)
    assert watch.told() == [(own_events.RESUMED, "drain")]
    assert watch.recorded()[0]["responseElements"] == {"x-bucketwire-seconds": "290"}


@databases.TWO
def test_a_removed_target_leaves_nothing_to_be_mistaken_for_its_successors(watch: Watch, database: Database) -> None:
    target = add_target(database, "audit", bucket="images")
    watch.look()
    rejected_by(target, database, event("a"))
    watch.look()
    registry(database).remove(target, force=True)
    with database.reading() as connection:
        rows = connection.execute(sa.select(tables.notices.c.target_id)).scalars().all()
    assert [row for row in rows if row] == []
    watch.look()


def test_a_source_that_nobody_pulls_and_its_end_are_reported(watch: Watch, database: Database) -> None:
    sources = Sources(database)
    source = sources.put("kafka", {"brokers": "b", "topic": "t"}, "minio")
    with database.writing() as connection:
        connection.execute(tables.sources.update().values(created_at=watch.now))
    assert watch.look() == 0, "it is new"
    assert (watch.look(60_000), watch.look()) == (1, 0)
    leases = SourceLeases(database, 60_000)
    lease = leases.claim(sources.stored(source), watch.now)
    assert lease is not None
    leases.report(lease, watch.now, 0)
    assert (watch.look(), watch.look()) == (1, 0)
    key = "source%3Akafka%3Aminio"
    assert watch.told() == [(own_events.SOURCE_UNAVAILABLE, key), (own_events.SOURCE_AVAILABLE, key)]
    facts = watch.recorded()[0]["responseElements"]
    assert facts["x-bucketwire-source"] == "kafka:minio"
    assert "no worker pulls it" in facts["x-bucketwire-reason"]
    assert "x-bucketwire-target" not in facts


def test_a_source_that_is_paused_or_has_lost_messages_is_reported_and_forgotten_when_it_is_removed(
    watch: Watch, database: Database
) -> None:
    target, sources = add_target(database, "audit"), Sources(database)
    source = sources.put("kafka", {"brokers": "b", "topic": "t"}, "minio")
    stored = sources.stored(source)
    leases = SourceLeases(database, 10**9)
    lease = leases.claim(stored, watch.now)
    assert lease is not None
    watch.look()
    leases.begin(lease, watch.now, {"0": "7"}, "2 messages were removed")
    leases.pause(lease, "full")
    assert (watch.look(), watch.look()) == (2, 0)
    facts = {record["eventName"]: record["responseElements"] for record in watch.recorded()}
    assert facts == {
        own_events.SOURCE_UNAVAILABLE: {"x-bucketwire-reason": "full", "x-bucketwire-source": "kafka:minio"},
        own_events.MESSAGES_LOST: {
            "x-bucketwire-notice": "2 messages were removed", "x-bucketwire-source": "kafka:minio",
        },
    }  # fmt: skip
    registry(database).remove(target, force=True)
    assert watch.look() == 0, "a target of the same number is another one"
    sources.registry.remove(source)
    n = tables.notices.c
    with database.reading() as connection:
        assert connection.execute(sa.select(n.kind).where(n.target_id < 0)).all() == []


def test_a_full_queue_and_a_disabled_target_are_no_obstacle(watch: Watch, database: Database) -> None:
    full = add_target(database, "full", bucket="*", queue_limit=1, queue_full="reject")
    registry(database).add_rule(Rule(bucket=SERVICE_BUCKET, events=("*",), target=full))
    Log(database).append([[event("fills it")]])
    watch.look()
    down, off = add_target(database, "down", bucket="none"), add_target(database, "off", bucket="none")
    for target in (down, off):
        open_breaker(database, row_id(database, target), "down", watch.now, probing=False)
    registry(database).put(off, {"endpoint": "http://127.0.0.1:9/", "enable": "off"})
    with database.writing() as connection:
        connection.execute(
            tables.targets.update().where(tables.targets.c.id == row_id(database, off)).values(breaker="open")
        )
    assert watch.look() == 1
    assert watch.told() == [(own_events.UNAVAILABLE, "webhook%3Adown")]


@databases.TWO
def test_many_targets_that_fail_at_once_hold_up_intake_for_a_few_statements(
    watch: Watch, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [add_target(database, f"t{number}", bucket="none") for number in range(24)]
    watch.look()
    with database.writing() as connection:
        connection.execute(tables.targets.update().values(breaker="open", reason="down"))
    tune(monkeypatch, notices, "NOTICES", batch_events=10)
    transactions = [0]

    def count(*_: Any) -> None:
        transactions[-1] += 1

    sa_event.listen(database.engine, "before_cursor_execute", count)
    sa_event.listen(database.engine, "commit", lambda _: transactions.append(0))
    assert watch.recorder.record() == len(targets)
    assert max(transactions[1:]) <= 10, "each while the log's head is locked"
    assert transactions[0] <= 25, "the look, which locks nothing, and the first batch"
    assert len([count for count in transactions if count > 2]) >= 3
    assert len(set(watch.told())) == len(targets)
    assert watch.look() == 0


@databases.THREE
def test_the_deaths_of_a_target_from_before_are_no_news_when_it_is_enabled(watch: Watch, database: Database) -> None:
    add_target(database, "other", bucket="none")
    target = add_target(database, "off", bucket="images")
    rejected_by(target, database, event("before"))
    registry(database).put(target, {"endpoint": "http://127.0.0.1:9/", "enable": "off"})
    watch.look()
    registry(database).put(target, {"endpoint": "http://127.0.0.1:9/", "enable": "on"})
    assert watch.look() == 0
    rejected_by(target, database, event("after"))
    assert watch.look() == 1
    assert watch.recorded()[0]["responseElements"]["x-bucketwire-count"] == "1"


def test_drift_that_one_report_has_no_room_for_is_counted_in_the_next(
    watch: Watch, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database, "rows", bucket="images")
    runs = Reconciliations(database)
    monkeypatch.setattr(reconcile_runs, "database_now", lambda _: watch.now)

    def ended_with_drift(bucket: str) -> None:
        watch.now += 1
        runs.end(runs.begin(target, bucket, lease=60_000), "drift", {"missing": 1})

    ended_with_drift("before")
    watch.look()
    ended_with_drift("a")
    assert watch.look() == 1
    for bucket in ("b", "c"):
        ended_with_drift(bucket)
    assert watch.look() == 0
    assert watch.look(INTERVAL) == 1
    reports = [record["responseElements"] for record in watch.recorded()]
    assert [(one["x-bucketwire-bucket"], one["x-bucketwire-runs"]) for one in reports] == [("a", "1"), ("c", "2")]
