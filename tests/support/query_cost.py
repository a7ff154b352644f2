"""Count the rows that a database looks at, so that a test shows that work does not grow with a table.

Times would depend on the load of the machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy import event as sa_event

from app.outbox.engine.database import Database

_STEPS = 20  # of SQLite's virtual machine for a row, about


@dataclass
class QueryCost:
    """What the statements within the block looked at; on SQLite estimated by the steps of its virtual machine."""

    rows: int = 0


@contextmanager
def query_cost(database: Database) -> Iterator[QueryCost]:
    """Count what the SELECTs of a database look at within the block (with PostgreSQL they run twice)."""
    cost = QueryCost()
    if database.dialect == "sqlite":
        counting: Any = _sqlite
    elif database.dialect == "postgresql":
        counting = _postgresql
    else:
        counting = _mysql
    with counting(database, cost):
        yield cost


@contextmanager
def _sqlite(database: Database, cost: QueryCost) -> Iterator[None]:
    connections = []

    def count() -> int:
        cost.rows += 1
        return 0

    def begin(connection: Any, *_: Any) -> None:
        connections.append(connection)
        connection.set_progress_handler(count, _STEPS)

    database.engine.dispose()
    sa_event.listen(database.engine, "checkout", begin)
    yield
    sa_event.remove(database.engine, "checkout", begin)
    for connection in connections:
        connection.set_progress_handler(None, 0)


@contextmanager
def _postgresql(database: Database, cost: QueryCost) -> Iterator[None]:
    def explain(_: sa.Connection, cursor: Any, statement: str, parameters: Any, *__: Any) -> None:
        if statement.lstrip().upper().startswith("SELECT"):
            with cursor.connection.cursor() as plain:  # the own one may be of the server, which selects only
                plain.execute("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + statement, parameters or None)
                [[plan]] = plain.fetchall()
            cost.rows += _rows((orjson.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])

    engines = (database.engine, database._reader)
    for engine in engines:
        sa_event.listen(engine, "before_cursor_execute", explain)
    yield
    for engine in engines:
        sa_event.remove(engine, "before_cursor_execute", explain)


def _rows(plan: dict[str, Any]) -> int:
    """The rows that a plan's scans looked at."""
    below = sum(_rows(part) for part in plan.get("Plans", ()))
    if "Scan" not in plan["Node Type"]:
        return below
    seen = plan["Actual Rows"] + sum(value for name, value in plan.items() if name.startswith("Rows Removed by"))
    return below + int(seen * plan["Actual Loops"])


@contextmanager
def _mysql(database: Database, cost: QueryCost) -> Iterator[None]:
    before = _handler_reads(database)
    yield
    cost.rows += _handler_reads(database) - before


def _handler_reads(database: Database) -> int:
    """Rows read through an index or in order, by anybody on this server."""
    with database.reading() as connection:
        rows = connection.exec_driver_sql(
            "SHOW GLOBAL STATUS WHERE Variable_name IN"
            " ('Handler_read_next', 'Handler_read_prev', 'Handler_read_key', 'Handler_read_rnd_next')"
        )
        return sum(int(row[1]) for row in rows)
