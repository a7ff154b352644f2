"""The outboxes that tests take over from each other are as a migration leaves them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests import services
from tests.conftest import OUTBOXES
from tests.support.builders import add_target, event, migrated
from tests.support.outboxes import NAME, Outboxes, in_file
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.outcomes import Rejected

State = dict[str, list[tuple[object, ...]]]
SERVERS = {"postgresql": "postgres_server", "mysql": "mysql_server", "mariadb": "mariadb_server"}


def _given(table: sa.Table) -> list[sa.Column[Any]]:
    """The columns of which the values are not random, or those of the server."""
    return [column for column in table.c if column.name not in ("version", "epoch", "timeline")]


def use(url: str, events: int) -> State:
    """Write to every table that numbers its rows; what was there before, and the numbers that were given.

    Those of MySQL and MariaDB go on from the last use.
    """
    with closing(migrated(url, partitions=3)) as database:
        with database.reading() as connection:
            found: State = {
                table.name: [tuple(row) for row in connection.execute(sa.select(*_given(table)))]
                for table in tables.metadata.sorted_tables
            }
        target = add_target(database)
        Log(database).append([[event(str(number)) for number in range(events)]])
        Courier(database, target, ScriptedTarget(lambda one: Rejected("no"))).run()
        Replays(database).begin(target, Selection())
        if database.dialect == "mysql":
            return found
        with database.reading() as connection:
            for table in (tables.targets, tables.rules, tables.dead_letters, tables.replays):
                least = sa.select(sa.func.min(table.c.id))
                found[f"first of {table.name}"] = [tuple(connection.execute(least).one())]
        return found


@pytest.mark.nightly(
    "SQLite and PostgreSQL; each test on the others finds its outbox as the one before left it",
    when=lambda kind: kind in {"mysql", "mariadb"},
)
@pytest.mark.parametrize("kind", OUTBOXES)
def test_an_outbox_that_was_used_is_as_a_new_one(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    made = Outboxes()

    def again() -> str:
        if kind == "sqlite":
            return in_file(tmp_path / f"{uuid4().hex}.db")
        return made.on(request.getfixturevalue(SERVERS[kind]))

    first = use(again(), 3)
    rows = {name: found for name, found in first.items() if found and not name.startswith("first")}
    assert rows == {"log_tail": [(1,)], "log_head": [(1, 0, 3, 0, 0)]}
    assert {found[0] for name, found in first.items() if name.startswith("first")} <= {(1,)}

    assert use(again(), 600) == first
    url = again()
    assert use(url, 3) == first

    with closing(Database(url)) as database, database.engine.connect() as left:
        left.execute(tables.log_tail.update().values(id=1))  # a lock that its holder never lets go
        assert use(again(), 3) == first
        left.invalidate()
    assert made.migrations == (0 if kind == "sqlite" else 1)

    with closing(Database(url)) as database, database.writing() as connection:
        connection.exec_driver_sql("DROP TABLE rules")
    assert use(again(), 3) == first


def test_an_outbox_whose_settings_were_changed_is_made_anew(postgres_server: services.Postgres) -> None:
    made = Outboxes()
    with closing(Database(made.on(postgres_server))) as database, database.writing() as connection:
        connection.exec_driver_sql(f"ALTER DATABASE {NAME} SET default_transaction_read_only = on")
    assert use(made.on(postgres_server), 3)
    assert made.migrations == 2
