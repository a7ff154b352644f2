"""A real PostgreSQL standby that lags behind takes over from its primary, which is lost."""

from __future__ import annotations

from contextlib import closing, suppress

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from app.outbox.log.append import Log
from tests import services
from tests.services import until
from tests.services.sql import Postgres
from tests.support.builders import add_target, event, migrated
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import DELIVERED, Outcome

pytestmark = pytest.mark.promise


def answers(database: Database) -> bool:
    with suppress(*DatabaseUnavailable), database.reading() as connection:
        return bool(connection.execute(sa.select(tables.log_head.c.epoch)).scalar_one())
    return False


def runs(courier: Courier) -> bool:
    """Work off everything after the last lease; False if a connection was one to the lost server."""
    with suppress(*DatabaseUnavailable):
        courier.run(now=now_ms() + 2 * courier.lease_ms)
        return True
    return False


def test_what_is_recorded_after_a_failover_is_delivered_although_a_batch_was_in_flight(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The new primary has the batch's lease and cursor, and records other events at the positions of the lost ones."""
    since = [event("a") for _ in range(15)]
    with services.postgres() as primary, closing(migrated(primary.create_database("outbox"), 1)) as database:
        url = primary.url("outbox")

        def fail_over(_: Event) -> Outcome:
            courier.scripted.script = lambda _: DELIVERED
            primary.kill()
            standby.port = primary.port
            standby.start()
            standby.promote()
            until(lambda: answers(database))
            with closing(Database(url)) as of_another_process:
                Log(of_another_process).append([since])
            return DELIVERED

        courier = Courier(database, add_target(database), ScriptedTarget(fail_over), batch=15)
        holder = courier.partitions()
        assert holder is not None
        with Postgres(primary=primary).start() as standby:
            until(standby.caught_up)
            standby.stop()
            Log(database).append([[event("a") for _ in range(15)]])
            with pytest.raises(LeaseLost):
                holder.work_off(lambda: True)
            courier.scripted.got.clear()
            until(lambda: runs(courier))
            assert [one.id for one in courier.scripted.got] == [one.id for one in since]
            assert "PostgreSQL has begun a new timeline, by a failover or a restore" in caplog.text
            assert_counters_balance(database)
