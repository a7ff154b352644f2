"""Which part of the log has events for a target: exact, whichever code has recorded them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import log_head, tables
from app.outbox.column_values import NEVER
from app.outbox.delivery.due_work import DueWork
from app.outbox.engine.database import Database, now_ms
from app.outbox.log import arrivals
from app.outbox.log.append import Log
from app.outbox.log.reading import is_for
from app.outbox.log.retention import purge
from app.outbox.policies import ARRIVALS
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, assert_counters_balance
from tests.support.tuning import tune

FAR = ARRIVALS.min_gap_seqs + 50


@contextmanager
def as_older_code(database: Database) -> Iterator[None]:
    """Leave what is recorded in the block as code does that knows no arrivals."""
    t = tables.targets.c
    with database.reading() as connection:
        known = [dict(row._mapping) for row in connection.execute(sa.select(tables.arrivals))]
        seqs = {row.id: row.last_seq for row in connection.execute(sa.select(t.id, t.last_seq))}
        complete_to = log_head.read(connection).arrivals_seq
    yield
    with database.writing() as connection:
        connection.execute(tables.arrivals.delete())
        if known:
            connection.execute(tables.arrivals.insert(), known)
        for row_id, seq in seqs.items():
            connection.execute(tables.targets.update().where(t.id == row_id).values(last_seq=seq))
        log_head.complete_arrivals(connection, complete_to)


def record(database: Database, bucket: str, count: int = 1) -> None:
    Log(database).append([[event(f"k{number}", bucket=bucket) for number in range(count)]])


def mixed_requests(random: Random) -> list[list[Event]]:
    """Requests that share a commit, each with events of several buckets."""
    sizes = [random.randrange(1, 6) for _ in range(random.randrange(1, 4))]
    return [[event(f"k{number}", bucket=random.choice("abcd")) for number in range(size)] for size in sizes]


def assert_all_found(database: Database) -> None:
    """Each window has all events after its cursor, and there is none without an event, unless some are not known."""
    c, e = tables.cursors.c, tables.events.c
    with database.snapshot() as connection:
        head = log_head.read(connection)
        windows = {(window.target_id, window.partition): window for window in arrivals.unread_of_targets(connection)}
        for target_id, partition, position in connection.execute(sa.select(c.target_id, c.partition, c.position)):
            ahead = sa.select(sa.func.min(e.seq), sa.func.max(e.seq)).where(e.partition == partition, e.seq > position)
            first, last = connection.execute(ahead.where(is_for(target_id))).one()
            window = windows.get((target_id, partition))
            one = arrivals.unread_after(connection, target_id, {partition: position})
            assert one == ({} if window is None else {partition: window})
            if first is not None:
                assert window is not None, (target_id, partition, position)
                assert position <= window.after < first
                assert window.until >= last
            elif head.arrivals_seq == head.last_seq:
                assert window is None


@pytest.mark.parametrize("seed", range(6))
def test_every_event_is_in_the_window_of_its_target_whichever_code_has_recorded_it(
    database: Database, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    tune(monkeypatch, arrivals, "ARRIVALS", min_gap_seqs=3, batch_seqs=4)
    random, log = Random(seed), Log(database)
    couriers = [Courier(database, add_target(database, name, bucket=name), batch=3) for name in ("a", "b", "c")]
    work = DueWork(database)
    for _ in range(25):
        match random.randrange(8):
            case 0:
                with as_older_code(database):
                    record(database, random.choice("abcd"), random.randrange(1, 30))
            case 1:
                work.find(now_ms())
                with database.reading() as connection:
                    head = log_head.read(connection)
                assert head.arrivals_seq == head.last_seq
            case 2:
                random.choice(couriers).run(turns=random.randrange(3))
            case 3 | 4:
                log.append(mixed_requests(random))
            case _:
                record(database, random.choice("aabcd"), random.randrange(1, 9))
        assert_all_found(database)
    for courier in couriers:
        courier.run()
        assert len(courier.scripted.got) == len(set(courier.scripted.got))
    assert_counters_balance(database)
    assert work.find(now_ms()) == []


def test_a_long_part_of_the_log_without_events_of_the_target_is_not_read(database: Database) -> None:
    quiet, _ = add_target(database, "quiet", bucket="rare"), add_target(database, "busy", bucket="busy")
    record(database, "rare", 8)
    Courier(database, quiet).run()
    record(database, "busy", FAR)
    record(database, "rare", 8)
    assert_all_found(database)
    with database.reading() as connection:
        windows = [
            window for window in arrivals.unread_of_targets(connection) if window.target_id == _id(database, quiet)
        ]
    assert windows
    assert min(window.after for window in windows) == 8 + FAR


def test_a_gap_of_which_events_may_be_unknown_is_read(database: Database) -> None:
    """The first event that new code records for the target comes after many, some of which old code has recorded."""
    quiet = add_target(database, "quiet", bucket="rare")
    with as_older_code(database):
        record(database, "rare", 8)
        record(database, "busy", FAR)
    record(database, "rare", 8)
    assert_all_found(database)
    courier = Courier(database, quiet)
    courier.run()
    assert len(courier.scripted.got) == 16


def test_events_of_older_code_are_delivered_before_and_after_they_are_known(database: Database) -> None:
    target = add_target(database)
    courier, work = Courier(database, target), DueWork(database)
    assert work.find(now_ms()) == []
    with as_older_code(database):
        record(database, "images", 5)
    assert courier.run().counts == {"delivered": 5}, "a worker that older code has woken"
    assert work.find(now_ms()) == []
    with as_older_code(database):
        record(database, "images", 5)
    assert [due.target for due in work.find(now_ms())] == [target]
    assert courier.run().counts == {"delivered": 5}
    assert work.find(now_ms()) == []


def test_of_very_many_events_of_older_code_the_newest_are_read_and_the_others_looked_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, arrivals, "ARRIVALS", batch_seqs=8, max_read_seqs=20)
    far, near, none = (add_target(database, name, bucket=name) for name in ("far", "near", "none"))
    with as_older_code(database):
        record(database, "far", 5)
        record(database, "else", 100)
        record(database, "near", 5)
    found = {due.target for due in DueWork(database).find(now_ms())}
    assert {far, near} <= found
    couriers = [Courier(database, target) for target in (far, near, none)]
    for courier in couriers:
        courier.run()
    assert [len(courier.scripted.got) for courier in couriers] == [5, 5, 0]
    assert DueWork(database).find(now_ms()) == []


def test_the_purge_removes_nothing_that_may_be_unknown(database: Database) -> None:
    target = add_target(database)
    record(database, "images", 5)
    courier = Courier(database, target)
    courier.run()
    with as_older_code(database):
        record(database, "images", 5)
    assert purge(database, NEVER) == 5
    assert courier.run().counts == {"delivered": 5}
    DueWork(database).find(now_ms())
    assert purge(database, NEVER) == 5


def test_the_purge_removes_nothing_that_may_be_unknown_before_what_another_target_waits_for(
    database: Database,
) -> None:
    target = add_target(database, "first", bucket="images")
    with as_older_code(database):
        record(database, "images", 5)
    add_target(database, "second", bucket="other")
    record(database, "other", 5)
    assert purge(database, NEVER) == 0
    assert Courier(database, target).run().counts == {"delivered": 5}


def test_a_target_that_waits_for_no_event_keeps_none_in_the_log(database: Database) -> None:
    add_target(database, "idle", bucket="none")
    busy = Courier(database, add_target(database, "busy", bucket="images"))
    record(database, "images", 5)
    busy.run()
    assert purge(database, NEVER) == 5


def test_what_is_discarded_is_no_arrival(database: Database) -> None:
    full = add_target(database, queue_limit=1)
    record(database, "images", 1)
    Courier(database, full).run()
    record(database, "images", 9)
    assert_all_found(database)


def test_a_removed_target_leaves_no_arrivals(database: Database) -> None:
    target = add_target(database)
    record(database, "images", 5)
    registry(database).remove(target, force=True)
    with database.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.arrivals)).scalar_one() == 0


def _id(database: Database, target: TargetId) -> int:
    return registry(database).target(target).row_id
