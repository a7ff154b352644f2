"""The outbox is an older state of itself than before, after a failover to a lagging replica or a restore."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.delivery.leases import LeaseLost
from app.outbox.delivery.replays import Replays, Selection
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from tests.support.builders import add_target, event
from tests.support.scripted_target import Courier, assert_counters_balance

pytestmark = pytest.mark.promise

_STATE = (tables.targets, tables.rules, tables.replays, tables.cursors, tables.events, tables.log_head)


@contextmanager
def older_state(database: Database) -> Iterator[None]:
    """Restore the outbox, at the end of the block, as it was at its beginning, as another server would have it."""
    with database.reading() as connection:
        rows = {table: [dict(row._mapping) for row in connection.execute(sa.select(table))] for table in _STATE}
    yield
    with database.writing() as connection:
        for table in reversed(_STATE):
            connection.execute(table.delete())
        for table in _STATE:
            if rows[table]:
                connection.execute(table.insert(), rows[table])


def turns(number: int) -> Callable[[], bool]:
    left = iter(range(number - 1))
    return lambda: next(left, None) is None


def test_a_cursor_that_stands_elsewhere_is_not_moved(database: Database) -> None:
    """The older state has the lease, but not what its holder has settled since, nor the events."""
    target = add_target(database)
    courier = Courier(database, target, batch=1)
    holder = courier.partitions()
    assert holder is not None
    with older_state(database):
        Log(database).append([[event("a"), event("a")]])
        holder.work_off(turns(1))
        assert len(courier.scripted.got) == 1
    since = [event("a"), event("a")]
    Log(database).append([since])
    with pytest.raises(LeaseLost):
        holder.work_off(turns(1))
    assert_all_arrive(courier, since)


def test_a_replay_that_stands_elsewhere_is_not_moved(database: Database) -> None:
    target = add_target(database)
    courier = Courier(database, target, batch=1)
    events = [event("a") for _ in range(4)]
    Log(database).append([events])
    courier.run()
    Replays(database).begin(target, Selection())
    holder = courier.partitions()
    assert holder is not None
    courier.scripted.got.clear()
    with older_state(database):
        holder.work_off(turns(1))
        assert len(courier.scripted.got) == 1
    with pytest.raises(LeaseLost):
        holder.work_off(turns(1))
    assert_all_arrive(courier, events)


def assert_all_arrive(courier: Courier, events: Sequence[Event]) -> None:
    """A worker that claims what is free later delivers every one of these events."""
    courier.scripted.got.clear()
    courier.run(now=now_ms() + 2 * courier.lease_ms)
    assert [one.id for one in courier.scripted.got] == [one.id for one in events]
    assert_counters_balance(courier.database)
