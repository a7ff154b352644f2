"""Time series: one sample for each step, whoever takes it, in a bounded table, whatever the clock does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa

from app.config.arn import SourceId, TargetId
from app.outbox import series, tables
from app.outbox.column_values import NEVER
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.series import (
    Resolution,
    Sample,
    histogram,
    incoming_rates,
    merged,
    percentile,
    read_merged,
    read_series,
    report_times,
    take_sample,
)
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.query_cost import query_cost
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected

pytestmark = databases.ONE

BEGIN = 1_795_000_200_000  # ms; the beginning of five minutes
YEAR = 365 * 86_400_000


class Clock:
    """The database's clock as the test sets it."""

    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self, _connection: sa.Connection) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(series, "database_now", made)
    return made


def samples(database: Database, target: TargetId, resolution: Resolution = series.FINE) -> list[Sample]:
    row_id = registry(database).target(target).row_id
    return read_series(database, [row_id], resolution, since=-NEVER, before=NEVER, limit=10_000)


def rows(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(tables.series)).scalar_one())


@databases.TWO
def test_a_sample_has_the_counters_and_a_step_has_one(database: Database, clock: Clock) -> None:
    target, idle = add_target(database, "audit"), add_target(database, "idle", bucket="none")

    def script(given: object) -> Outcome:
        key = getattr(given, "key", "")
        return {"bad": Rejected("no"), "slow": Failed("later")}.get(key, DELIVERED)

    Log(database).append([[event("a"), event("b"), event("bad"), event("slow"), event("slow")]])
    with database.reading() as connection:
        received = connection.execute(sa.select(sa.func.min(tables.events.c.received_at))).scalar_one()
    clock.now = series.FINE.begin(received) + 60_000
    assert take_sample(database)
    clock.now += 9_999
    assert not take_sample(database)
    Courier(database, target, ScriptedTarget(script)).run(turns=0)
    clock.now += 1
    assert take_sample(database)
    first, second = samples(database, target)
    assert (first.recorded, first.delivered, first.failed, first.backlog) == (5, 0, 0, 5)
    assert (second.recorded, second.delivered, second.failed, second.dead_lettered) == (5, 2, 2, 1)
    assert second.backlog == 2, "the failed event, and the one behind it"
    assert second.at == first.at + 10_000
    assert first.oldest_age == first.at - received
    assert [(one.recorded, one.backlog, one.oldest_age) for one in samples(database, idle)] == [(0, 0, 0)] * 2


@databases.THREE
def test_what_comes_in_has_a_rate_by_requests_and_for_each_source(database: Database, clock: Clock) -> None:
    add_target(database)
    source = registry(database).sources
    source.put(SourceId("kafka", "q"), {"brokers": "kafka", "topic": "events"})
    ids = [series.REQUESTS, pulled := series.of_source(source.source(SourceId("kafka", "q")).row_id)]

    def rates() -> dict[int, float]:
        with database.reading() as connection:
            return incoming_rates(connection, ids, clock.now)

    posted = [event(f"k{number}")._replace(origin="request x minio") for number in range(90)]
    for part in (posted[:10], posted[10:30], posted[30:]):
        Log(database).append([part])
        with database.writing() as connection:
            connection.execute(tables.sources.update().values(recorded=tables.sources.c.recorded + 300))
        assert take_sample(database)
        clock.now += 10_000
    assert rates() == {series.REQUESTS: 4.0, pulled: 30.0}, "of the last 20 seconds"
    for _ in range(3):
        assert take_sample(database)
        clock.now += 10_000
    assert rates() == {series.REQUESTS: 0.0, pulled: 0.0}
    clock.now += 60_000
    assert rates() == {}, "nobody knows what is now"
    take_sample(database)
    assert rates() == {}, "one sample is no rate"
    begin = series.FINE.begin(clock.now)
    newest = series.read_series(database, ids, series.FINE, since=begin, before=begin + 1, limit=9)
    assert {one.target_id for one in newest} == set(ids)
    with database.reading() as connection:
        assert not {one.target_id for one in series.newest_samples(connection, clock.now)} & set(ids), "only targets"


@databases.ALL
def test_of_two_that_sample_at_once_one_stores_its_samples(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = [add_target(database, f"t{number}") for number in range(10)]  # so many are copied on PostgreSQL
    monkeypatch.setattr(series, "_is_taken", lambda *_: False)  # both have looked before either has stored
    with ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            stored = [pool.submit(take_sample, database) for _ in range(2)]
            assert sorted(one.result() for one in stored) == [False, True]
            clock.now += 10_000
    assert [len(samples(database, target)) for target in targets] == [5] * 10
    assert [len(samples(database, target, series.COARSE)) for target in targets] == [1] * 10


@databases.TWO
def test_of_idle_targets_the_five_minutes_are_written_once(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, idle = add_target(database, "busy"), add_target(database, "idle", bucket="none")
    written: list[tuple[Resolution, list[int]]] = []
    insert = series._insert

    def note(connection: sa.Connection, resolution: Resolution, at: int, some: list[Sample]) -> None:
        written.append((resolution, [one.target_id for one in some]))
        insert(connection, resolution, at, some)

    monkeypatch.setattr(series, "_insert", note)
    for number in range(3):
        Log(database).append([[event(f"k{number}")]])
        assert take_sample(database)
        clock.now += 10_000
    ids = [registry(database).target(target).row_id for target in (busy, idle)]
    assert [some for resolution, some in written if resolution == series.COARSE] == [ids, ids[:1], ids[:1]]
    assert [(one.recorded, one.backlog) for one in samples(database, busy, series.COARSE)] == [(3, 3)]
    assert [(one.recorded, one.backlog) for one in samples(database, idle, series.COARSE)] == [(0, 0)]


def test_five_minutes_have_the_last_totals_and_the_greatest_backlog(database: Database, clock: Clock) -> None:
    target = add_target(database, "audit")
    courier = Courier(database, target)
    for _ in range(3):
        Log(database).append([[event(f"k{clock.now}-{number}") for number in range(4)]])
        assert take_sample(database)
        courier.run()
        clock.now += 10_000
    clock.now = BEGIN + 300_000
    assert take_sample(database)
    first, second = samples(database, target, series.COARSE)
    assert (first.at, first.recorded, first.delivered, first.backlog) == (BEGIN, 12, 8, 4)
    assert (second.at, second.recorded, second.delivered, second.backlog) == (BEGIN + 300_000, 12, 12, 0)


@databases.THREE
def test_samples_are_merged_by_the_database_as_here(database: Database, clock: Clock) -> None:
    target = add_target(database, "audit")
    courier = Courier(database, target)
    row_id = registry(database).target(target).row_id
    for number in range(14):
        Log(database).append([[event(f"k{clock.now}-{number}") for number in range(4)]])
        with database.writing() as connection:
            report_times(connection, {row_id: histogram([clock.now - 5 * number], clock.now)})
        assert take_sample(database)
        if number % 3:
            courier.run()
        clock.now += 10_000
    single = samples(database, target)
    for width in (10, 30, 50, 86_400):
        groups: dict[int, list[Sample]] = {}
        for one in single:
            groups.setdefault(one.at // (width * 1000), []).append(one)
        wanted = []
        for group in groups.values():
            whole = group[0]
            for one in group[1:]:
                whole = merged(whole, one, one.at)
            wanted.append(replace(whole, at=group[-1].at))
        found = read_merged(database, row_id, series.FINE, width=width, since=-NEVER, before=NEVER, limit=100)
        assert found == wanted
    some = read_merged(database, row_id, series.FINE, width=30, since=single[3].at, before=single[9].at, limit=1)
    assert len(some) == 1
    assert some[0].at < single[9].at


@databases.TWO
def test_the_table_is_bounded_and_a_removed_target_leaves_it(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "FINE", Resolution(10, 6))
    monkeypatch.setattr(series, "COARSE", Resolution(50, 3))
    target, gone = add_target(database, "audit"), add_target(database, "gone")
    for number in range(22):  # more than four steps of the coarse one
        if number == 20:
            registry(database).remove(gone, force=True)
        assert take_sample(database)
        assert rows(database) <= 2 * (6 + 3)
        clock.now += 10_000
    assert [one.at for one in samples(database, target)] == [clock.now - 10_000 * back for back in range(6, 0, -1)]
    assert [one.at - BEGIN for one in samples(database, target, series.COARSE)] == [100_000, 150_000, 200_000]
    clock.now += 150_000
    for _ in range(17):
        take_sample(database)
        clock.now += 10_000
    assert rows(database) == 6 + 3


@pytest.mark.parametrize("jump", [YEAR, -YEAR, 3_600_000, -3_600_000, 7, -7])
def test_a_clock_that_jumps_costs_the_samples_of_its_wrong_time_only(
    database: Database, clock: Clock, jump: int
) -> None:
    target = add_target(database, "audit")
    for _ in range(5):
        take_sample(database)
        clock.now += 10_000
    before = samples(database, target)
    clock.now += jump
    take_sample(database)
    clock.now -= jump
    take_sample(database)
    times = [one.at for one in samples(database, target)]
    assert len(set(times) & {one.at for one in before}) >= 4
    assert clock.now in times
    assert len(times) <= 7


@databases.TWO
def test_a_sample_does_not_grow_with_what_is_parked_and_dead(database: Database, clock: Clock) -> None:
    target, costs = add_target(database, "audit"), []
    row_id = registry(database).target(target).row_id
    for count in (100, 3_000):
        with database.writing() as connection:
            seqs = range(count, 2 * count)
            parked = {"target_id": row_id, "key_hash": 7, "not_before": NEVER}
            connection.execute(tables.parked.insert(), [parked | {"partition": n % 4, "seq": n} for n in seqs])
            dead = {"target_id": row_id, "event_id": "", "reason": "", "attempts": 1, "history": "[]"}
            dead |= {"first_tried": 1, "last_tried": 1}
            connection.execute(
                tables.dead_letters.insert(), [dead | {"partition": n % 4, "seq": 10_000_000 + n} for n in seqs]
            )
            connection.execute(tables.targets.update().values(recorded=tables.targets.c.recorded + count))
            if database.dialect == "postgresql":
                connection.exec_driver_sql("ANALYZE parked")
        with query_cost(database) as cost:
            assert take_sample(database)
        costs.append(cost.rows)
        clock.now += 10_000
    assert costs[1] <= 2 * costs[0] + 100


@databases.TWO
def test_a_step_has_the_delivery_times_since_the_one_before_and_five_minutes_have_their_sum(
    database: Database, clock: Clock
) -> None:
    target, gone = add_target(database, "audit"), add_target(database, "gone")
    row_id, other = (registry(database).target(each).row_id for each in (target, gone))
    registry(database).remove(gone, force=True)
    for times in ((10, 20), (), (4_000,)):
        for each in times:  # each by another worker
            with database.writing() as connection:
                report_times(connection, {row_id: histogram([0] * 3, each), other: histogram([0], 1)})
        assert take_sample(database)
        clock.now += 10_000
    found = [[percentile(one.times, share) for share in (0.5, 0.99)] for one in samples(database, target)]
    assert found == [[10, 20], [None, None], [4096, 4096]]
    [five] = samples(database, target, series.COARSE)
    assert (five.times.total(), percentile(five.times, 0.5), percentile(five.times, 0.99)) == (9, 20, 4096)
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.delivery_times.c.id)).all() == []


@databases.TWO
def test_delivery_times_are_counted_once_whoever_takes_the_sample(
    database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database, "audit")
    row_id = registry(database).target(target).row_id
    monkeypatch.setattr(series, "_is_taken", lambda *_: False)
    with ThreadPoolExecutor(3) as pool:
        for _ in range(5):
            with database.writing() as connection:
                report_times(connection, {row_id: histogram([0] * 7, 5)})
            stored = [pool.submit(take_sample, database) for _ in range(2)]
            with database.writing() as connection:
                report_times(connection, {row_id: histogram([0] * 2, 5)})
            [one.result() for one in stored]
            clock.now += 10_000
    assert take_sample(database)
    assert sum(one.times.total() for one in samples(database, target)) == 5 * 9
