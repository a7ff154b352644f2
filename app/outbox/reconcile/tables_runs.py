"""Record the runs of `bucketwire tables` beside those of reconciliations, so that a failed one is seen.

They have no target and no bucket. The tables' own state decides which of two runs at once goes on, so nothing here
keeps a run from beginning.
"""

from uuid import uuid4

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.reconcile.runs import CLEAN, FAILED, PROCESS_DIED, RUNNING, TABLES, TABLES_TARGET, Reconciliations

_R = tables.reconciliations.c


@repeated_after_deadlock
def begin_tables(database: Database, *, lease: int) -> str:
    """Record that an update of the tables begins, and return the run's name; it is dead `lease` ms after its renewal.

    What has not recorded its end counts as dead.
    """
    with database.writing() as connection:
        now = database_now(connection)
        running = tables.reconciliations.update().where(_R.job == TABLES, _R.state == RUNNING)
        connection.execute(running.values(state=FAILED, finished_at=now, problem=PROCESS_DIED))
        return _insert(connection, RUNNING, now, alive_until=now + lease)


def end_tables(database: Database, run: str, *, problem: str = "") -> None:
    """Record the end of an update, with its problem if it failed; of the earlier ones the last of each state stays."""
    runs = Reconciliations(database)
    runs.end(run, FAILED if problem else CLEAN, {}, problem=problem)
    with database.reading() as connection:
        now = database_now(connection)
    runs.delete_old(TABLES_TARGET, "", now, job=TABLES)


@repeated_after_deadlock
def fail_tables(database: Database, problem: str, since: int) -> None:
    """Record that an update that was started at `since` (ms) has failed, unless it has recorded its own end."""
    with database.writing() as connection:
        now = database_now(connection)
        failed = {"state": FAILED, "finished_at": now, "problem": problem[:2000]}
        own = connection.execute(sa.select(_R.state).where(_R.job == TABLES, _R.started_at >= since)).scalars().all()
        if not own:
            run = _insert(connection, RUNNING, now, alive_until=now)
            connection.execute(tables.reconciliations.update().where(_R.run == run).values(**failed))
        elif RUNNING in own:
            running = tables.reconciliations.update().where(_R.job == TABLES, _R.state == RUNNING)
            connection.execute(running.values(**failed))


def _insert(connection: sa.Connection, state: str, now: int, *, alive_until: int) -> str:
    run = uuid4().hex
    connection.execute(
        tables.reconciliations.insert().values(
            run=run, job=TABLES, type=TABLES_TARGET.type, name=TABLES_TARGET.name, bucket="", state=state,
            started_at=now, alive_until=alive_until, finished_at=0, report="", problem="",
        )
    )  # fmt: skip
    return run
