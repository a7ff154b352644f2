"""What is looked at does not grow with other targets' events, parked events, dead letters or finished replays."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.admin.counters import read_counters
from app.outbox.admin.replays import Replays, Selection
from app.outbox.column_values import NEVER
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Lease, Leases
from app.outbox.delivery.partition_reader import PartitionReader
from app.outbox.engine.database import Database, now_ms
from app.outbox.log import arrivals
from app.outbox.log.append import Log
from app.outbox.log.arrivals import Arrival
from app.outbox.reconcile.log_queries import log_mark
from tests.support import databases
from tests.support.builders import PUT, add_target, event, registry
from tests.support.query_cost import query_cost
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import DELIVERED, Failed

pytestmark = databases.TWO

HOUR = 3_600_000
PARTITIONS = 4
_FEW, _MANY = 250, 2_500  # many: more than two windows of the log
_WINDOW = 500


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that a test can be far behind of in little time."""
    monkeypatch.setattr(arrivals, "WINDOW_SEQS", _WINDOW)


def _row_id(database: Database, target: TargetId) -> int:
    return registry(database).target(target).row_id


def _head(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(tables.log_head.c.last_seq)).scalar_one())


def _log_events(database: Database, target: TargetId, count: int) -> range:
    """Events that a target has been through with already, put into the log at once; returns their seqs."""
    row_id, first = _row_id(database, target), _head(database) + 1
    seqs = range(first, first + count)
    rows: list[dict[str, Any]] = [
        {
            "partition": seq % PARTITIONS, "seq": seq, "id": f"{seq:032d}", "key_hash": seq, "received_at": seq,
            "name": PUT, "bucket": "images", "key": f"k{seq}", "version": "", "sequencer": "A", "time": 0,
            "targets": f",{row_id},", "record": "{}", "trace": "",
        }
        for seq in seqs
    ]  # fmt: skip
    c = tables.cursors.c
    with database.writing() as connection:
        for start in range(0, count, 5_000):
            connection.execute(tables.events.insert(), rows[start : start + 5_000])
        connection.execute(tables.log_head.update().values(last_seq=seqs[-1], arrivals_seq=seqs[-1]))
        last = {seq % PARTITIONS: seq for seq in seqs}
        arrivals.record(connection, [Arrival(row_id, partition, seqs[0], seq) for partition, seq in last.items()])
        connection.execute(tables.cursors.update().where(c.target_id == row_id).values(position=seqs[-1]))
        if database.dialect == "postgresql":
            connection.exec_driver_sql("ANALYZE events")
    return seqs


def _analyze(connection: sa.Connection, table: str) -> None:
    """Have the statistics of a table read now, as the server does by itself some seconds later."""
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql(
            f"ANALYZE {table}" if connection.dialect.name == "postgresql" else f"ANALYZE TABLE {table}"
        )


def _positions(database: Database, target: TargetId) -> list[int]:
    c = tables.cursors.c
    query = sa.select(c.position).where(c.target_id == _row_id(database, target)).order_by(c.partition)
    with database.reading() as connection:
        return list(connection.execute(query).scalars())


def claimed_by(database: Database, target: TargetId) -> Lease:
    lease = Leases(database, 10_000).claim(_row_id(database, target), range(PARTITIONS), "token", now_ms())
    assert lease is not None
    return lease


@databases.THREE
def test_a_look_for_work_does_not_grow_with_the_events_of_other_targets(database: Database) -> None:
    """A few events wait for one target, then come those of another; a third has none."""
    quiet, other = add_target(database, "quiet", bucket="rare"), add_target(database, "other", bucket="busy")
    add_target(database, "idle", bucket="none")
    work, log, costs = DueWork(database), Log(database), list[int]()
    log.append([[event(f"k{number}", bucket="rare") for number in range(16)]])
    for count in (_FEW, _MANY):
        log.append([[event(f"k{number}", bucket="busy") for number in range(count)]])
        courier = Courier(database, other, batch=_MANY)
        courier.run()
        found = work.find(now_ms())
        with query_cost(database) as cost:
            assert [due.target for due in work.find(now_ms())] == [quiet] == [due.target for due in found]
        costs.append(cost.rows)
        with query_cost(database) as cost, courier.store.reading(claimed_by(database, quiet)) as reader:
            assert reader.has_new_events()
        costs.append(cost.rows)
        with database.writing() as connection:
            connection.execute(tables.cursors.update().values(lease_token="", leased_until=0))
    assert costs[2:] == pytest.approx(costs[:2], abs=20)


@databases.THREE
def test_what_was_delivered_and_is_retained_costs_a_look_nothing(database: Database) -> None:
    """Not on MySQL either, which would read a partition from its beginning for a seq that is no constant."""
    target = add_target(database)
    Log(database).append([[event("first")]])
    costs = list[int]()
    for count in (_FEW, _MANY):
        _log_events(database, target, count)
        Log(database).append([[event(f"k{number}-{count}") for number in range(8)]])
        with query_cost(database) as cost:
            assert DueWork(database).find(now_ms())
        costs.append(cost.rows)
        with query_cost(database) as cost, database.reading() as connection:
            assert read_counters(connection)[0].oldest
        costs.append(cost.rows)
        with database.writing() as connection:
            connection.execute(tables.cursors.update().values(lease_token="", leased_until=0))
    assert costs[2] <= 2 * costs[0] + 500
    assert costs[3] <= 2 * costs[1] + 500


def test_a_look_at_all_targets_takes_few_statements(database: Database) -> None:
    """Not some for each target and partition: a page of the console looks at all of them."""
    counts = []
    for numbers in (range(2), range(2, 12)):
        targets = [add_target(database, f"t{number}") for number in numbers]
        Log(database).append([[event(f"k{number}") for number in range(40)]])
        for target in targets[::2]:
            Courier(database, target, ScriptedTarget(lambda _: Failed("500", retry_after=600))).run()
        statements: list[str] = []
        with counted(database, statements), database.snapshot() as connection:
            found = read_counters(connection)
        assert all(one.oldest for one in found), [(one.target, one.oldest) for one in found]
        counts.append(len(statements))
    assert counts[1] <= 2 * counts[0]


def test_the_oldest_undelivered_event_of_each_target_is_the_first_parked_or_pending_one(database: Database) -> None:
    waiting, failing, both, served = (add_target(database, name) for name in ("waiting", "failing", "both", "served"))
    Log(database).append([[event(f"k{number}") for number in range(40)]])
    for target, failed in ((failing, {"k7", "k30"}), (both, {"k9"}), (served, set[str]())):
        refuse = {key: Failed("500", retry_after=600) for key in failed}
        Courier(database, target, ScriptedTarget(lambda one, refuse=refuse: refuse.get(one.key, DELIVERED))).run()  # type: ignore[misc]  # bound here
    with database.reading() as connection:
        assert {entry.target: entry.oldest for entry in read_counters(connection)}[served] == 0
    Log(database).append([[event(f"late{number}") for number in range(20)]])
    e = tables.events.c
    with database.writing() as connection:
        connection.execute(tables.events.update().values(received_at=e.seq * 10))
        seqs = {row.key: row.seq for row in connection.execute(sa.select(e.key, e.seq))}
        oldest = {entry.target: entry.oldest // 10 for entry in read_counters(connection)}
    late = min(seq for key, seq in seqs.items() if key.startswith("late"))
    assert oldest == {waiting: min(seqs.values()), failing: seqs["k7"], both: seqs["k9"], served: late}


@contextmanager
def counted(database: Database, statements: list[str]) -> Iterator[None]:
    """Collect the statements that are sent meanwhile."""

    def note(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        statements.append(statement)

    sa.event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", note)


def test_an_event_behind_many_of_other_targets_is_found_and_delivered_at_once(database: Database) -> None:
    quiet = add_target(database, "quiet", bucket="rare")
    add_target(database, "other", bucket="busy")
    courier, log = Courier(database, quiet, batch=200), Log(database)
    log.append([[event(f"k{number}", bucket="busy") for number in range(_MANY)]])
    log.append([[event(f"k{number}", bucket="rare") for number in range(40)]])
    with query_cost(database) as cost:
        assert quiet in {offer.target for offer in DueWork(database).find(now_ms())}
        assert courier.run(turns=1).counts == {"delivered": 40}
    assert cost.rows < _MANY
    with database.reading() as connection:
        assert next(entry.oldest for entry in read_counters(connection) if entry.target == quiet) == 0
    assert_counters_balance(database)


@databases.THREE
def test_a_worker_passes_over_the_events_of_other_targets_in_bounded_steps(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:

    monkeypatch.setattr(arrivals, "WINDOW_SEQS", 100)
    quiet, other = add_target(database, "quiet", bucket="rare"), add_target(database, "other", bucket="none")
    courier = Courier(database, quiet)
    Log(database).append([[event(f"a{number}", bucket="rare") for number in range(8)]])
    _log_events(database, other, 5_000)
    Log(database).append([[event(f"b{number}", bucket="rare") for number in range(8)]])
    with query_cost(database) as cost:
        tally = courier.run(turns=0)
    assert 0 < tally.counts["delivered"] <= 8
    assert max(_positions(database, quiet)) <= 8 + 100 * 10
    assert cost.rows < 100 * 10 * PARTITIONS * 4
    courier.run()
    assert len(courier.scripted.got) == 16
    assert_counters_balance(database)


@databases.THREE
def test_a_turn_does_not_grow_with_the_parked_objects_that_are_not_due(database: Database) -> None:
    target = add_target(database)
    courier, costs, row_id = Courier(database, target, batch=10), [], _row_id(database, target)
    for count in (_FEW, _MANY):
        seqs = _log_events(database, target, count)
        rows = [
            {
                "target_id": row_id, "partition": seq % PARTITIONS, "seq": seq, "key_hash": seq,
                "not_before": now_ms() + HOUR, "attempts": 1,
            }
            for seq in seqs
        ]  # fmt: skip
        with database.writing() as connection:
            connection.execute(tables.parked.insert(), rows)
            connection.execute(tables.targets.update().values(recorded=tables.targets.c.recorded + count))
            _analyze(connection, "parked")
        Log(database).append([[event(f"new{number}-{count}") for number in range(20)]])
        with query_cost(database) as cost:
            assert courier.run().counts == {"delivered": 20}
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0]
    with query_cost(database) as cost:
        DueWork(database).find(now_ms())
    assert cost.rows < 1_000
    assert_counters_balance(database)


@databases.THREE
def test_a_turn_does_not_grow_with_the_parked_objects_that_are_due(database: Database) -> None:
    """Replayed dead letters are all due at once: they are not sorted before each batch."""
    target, costs = add_target(database), []
    row_id = _row_id(database, target)
    for count in (_FEW, _MANY):
        rows = [
            {
                "target_id": row_id, "partition": seq % PARTITIONS, "seq": seq, "key_hash": seq, "not_before": 0,
                "attempts": 0,
            }
            for seq in _log_events(database, target, count)
        ]  # fmt: skip
        with database.writing() as connection:
            connection.execute(tables.parked.insert(), rows)
            if database.dialect == "postgresql":
                connection.exec_driver_sql("ANALYZE parked")
        lease = Lease(row_id, "", dict.fromkeys(range(PARTITIONS), 0))
        with query_cost(database) as cost, database.reading() as connection:
            assert len(PartitionReader(connection, lease).due_objects(now_ms(), 20)) == 20
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0]


@databases.THREE
def test_a_retry_does_not_grow_with_the_events_behind_it(database: Database) -> None:
    target, costs = add_target(database), []
    row_id = _row_id(database, target)
    for count in (_FEW, _MANY):
        seqs = [seq for seq in _log_events(database, target, count) if seq % PARTITIONS == 0]
        rows = [
            {
                "target_id": row_id, "partition": 0, "seq": seq, "key_hash": 7, "not_before": NEVER if place else 0,
                "attempts": 1,
            }
            for place, seq in enumerate(seqs)
        ]  # fmt: skip
        with database.writing() as connection:
            connection.execute(tables.parked.delete())
            connection.execute(tables.parked.insert(), rows)
            if database.dialect == "postgresql":
                connection.exec_driver_sql("ANALYZE parked")
        lease = Lease(row_id, "token", {0: seqs[-1]})
        with query_cost(database) as cost, database.reading() as connection:
            parked = PartitionReader(connection, lease).load_parked([(0, 7), (0, 8)], 20)
        assert [entry.logged.seq for entry in parked] == seqs[: len(parked)]
        assert 10 <= len(parked) <= 20
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0]


@databases.THREE
def test_a_mark_of_the_log_does_not_grow_with_what_was_delivered(database: Database) -> None:
    target, costs = add_target(database), []
    for count in (_FEW, _MANY):
        _log_events(database, target, count)
        Log(database).append([[event(f"new{number}-{count}") for number in range(8)]])
        with query_cost(database) as cost:
            in_flight = list[str]()
            log_mark(database, target, "images", in_flight.extend)
        assert len(in_flight) >= 8
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0] + 100


@databases.THREE
def test_a_commit_at_a_full_target_does_not_grow_with_its_dead_letters(database: Database) -> None:
    target = add_target(database, queue_limit=100)
    log, costs, dead, row_id = Log(database), [], 0, _row_id(database, target)
    for count in (100, 1_000):
        rows = [
            {
                "target_id": row_id, "partition": 0, "seq": dead + number, "event_id": "",
                "reason": "no", "attempts": 1, "first_tried": 1, "last_tried": 1, "history": "[]",
            }
            for number in range(count)
        ]  # fmt: skip
        dead += count
        counts = {"dead": dead} | ({"freed": dead} if "freed" in tables.cursors.c else {})
        with database.writing() as connection:
            connection.execute(tables.dead_letters.insert(), rows)
            connection.execute(tables.cursors.update().where(tables.cursors.c.partition == 0).values(counts))
            connection.execute(tables.targets.update().values(recorded=dead + 100))
        log.append([[event("fills the caches")]])
        with query_cost(database) as cost:
            [receipt] = log.append([[event("one too many")]])
        assert receipt.discarded == {target: 1}  # type: ignore[union-attr]
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0]


def test_finished_replays_leave_their_counts_and_no_cursors(database: Database) -> None:
    courier = Courier(database, add_target(database))
    Log(database).append([[event(f"k{number}") for number in range(12)]])
    courier.run()
    with query_cost(database) as cost:
        DueWork(database).find(now_ms())
    for number in range(1, 6):
        begun = Replays(database).begin(courier.target, Selection())
        assert (begun.replayed, begun.finished) == (0, False)
        courier.run(now=now_ms() + 60_000 * number)
        replay = Replays(database).get(begun.replay_id)
        assert (replay.replayed, replay.progress, replay.finished) == (12, 1.0, True)
        assert replay.length == begun.length
        with database.reading() as connection:
            [entry] = read_counters(connection)
            rows = connection.execute(sa.select(sa.func.count()).select_from(tables.cursors)).scalar_one()
        assert (entry.recorded, entry.delivered, entry.pending) == (12 * (number + 1), 12 * (number + 1), 0)
        assert rows == PARTITIONS
        assert_counters_balance(database)
    with query_cost(database) as after:
        DueWork(database).find(now_ms())
    assert after.rows <= cost.rows + 8 * 5
