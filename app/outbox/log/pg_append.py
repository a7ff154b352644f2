"""Append on PostgreSQL in one round trip, where an append is as nearly all are: see `append_at_once`."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from sqlalchemy.dialects import postgresql

from app.outbox import tables
from app.outbox.engine.copy_insert import copy, copy_line
from app.outbox.engine.database import Database
from app.outbox.engine.pg_direct import Prepared

# The migration creates it. It locks the log's head and returns the first of the reserved sequence numbers. It returns
# NULL, and counts nothing, if the rules have changed, an event is recorded already, or a queue has not enough room.
# Each of its statements sees what was committed before the lock was granted.
BEGIN_APPEND = """
CREATE FUNCTION begin_append(
    known_version bigint, wanted bigint, ids bpchar[], target_ids integer[], counts bigint[], ceilings bigint[]
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    first_seq bigint;
BEGIN
    UPDATE log_head SET last_seq = last_seq + wanted WHERE id = 1 AND version = known_version
        RETURNING last_seq - wanted + 1 INTO first_seq;
    IF first_seq IS NULL OR EXISTS (SELECT FROM events WHERE id = ANY (ids)) THEN
        RETURN NULL;
    END IF;
    IF ceilings IS NOT NULL AND EXISTS (
        SELECT FROM unnest(target_ids, counts, ceilings) AS added (id, number, ceiling)
        JOIN targets ON targets.id = added.id WHERE targets.recorded + added.number > added.ceiling
    ) THEN
        RETURN NULL;
    END IF;
    UPDATE targets SET recorded = targets.recorded + added.number
        FROM unnest(target_ids, counts) AS added (id, number) WHERE targets.id = added.id;
    RETURN first_seq;
END
$$
"""

MOST_VALUES = 48  # rows; more are faster by COPY, in spite of its three round trips
_MOST_PREPARED = 4  # rows; for more, planning is a small part of the time
_NAMES = [column.name for column in tables.events.columns]
_SEQ, _ID = _NAMES.index("seq"), _NAMES.index("id")  # only the partition precedes seq
_ARGUMENTS = ("bigint", "bigint", "bpchar[]", "integer[]", "bigint[]", "bigint[]")  # of begin_append
_BEGIN = f"SELECT begin_append({', '.join(['%s'] * len(_ARGUMENTS))})"
_TYPES = [column.type.compile(postgresql.dialect()) for column in tables.events.columns]  # type: ignore[no-untyped-call]  # SQLAlchemy's


def append_at_once(
    database: Database,
    rows: Sequence[Sequence[Any]],
    *,
    version: int,
    recorded: Mapping[int, int],
    ceilings: Mapping[int, int],
    patience: float | None = None,
) -> bool:
    """Insert the rows of the log, whose `seq` counts from 0, add `recorded` to the targets' counters, and commit.

    Returns False, and has recorded nothing, if `version` is not that of the log's head, if one of the ids is in the log
    already, if the number recorded for a target would exceed the target's value in `ceilings`, or if the head is locked
    for long. The log's head is locked as for any other append, and so are the targets. `patience` (seconds) is that of
    `DirectConnection.execute`, and affects only up to `MOST_VALUES` rows.
    """
    arguments = (
        version,
        len(rows),
        _array([row[_ID] for row in rows]),
        _array(recorded),
        _array(recorded.values()),
        _array(ceilings.get(target, "NULL") for target in recorded) if ceilings else None,
    )
    if len(rows) <= MOST_VALUES:
        statement, prepared = _statement(len(rows))
        values = [*arguments, *chain.from_iterable(rows)]
        return bool(database.direct.execute(statement, values, prepared=prepared, patience=patience))
    lines = [copy_line(row[_SEQ + 1 :]) for row in rows]  # before the head is locked
    with database.writing() as connection:
        first = connection.exec_driver_sql(_BEGIN, arguments).scalar_one()
        if first is None:
            return False
        numbered = [f"{row[0]}\t{first + row[_SEQ]}\t{line}" for row, line in zip(rows, lines, strict=True)]
        copy(connection, tables.events, numbered)
    return True


def _array(values: Any) -> str:
    """Format an array of numbers, or of ids, which are hexadecimal: a list would be parsed value by value."""
    return f"{{{','.join(map(str, values))}}}"


@lru_cache(maxsize=MOST_VALUES)
def _statement(rows: int) -> tuple[str, Prepared | None]:
    """Return the statement that inserts so many rows, and its prepared form if planning takes much of its time."""
    types = [*_ARGUMENTS, *_TYPES * rows]
    parameters = ["%s"] * len(types)
    statement = _insert(rows, parameters)
    if rows > _MOST_PREPARED:
        return statement, None
    numbered = _insert(rows, [f"${number}" for number in range(1, len(types) + 1)])
    name = f"append_{rows}"
    prepare = f"PREPARE {name} ({', '.join(types)}) AS {numbered}"
    return statement, Prepared(prepare, f"EXECUTE {name} ({', '.join(parameters)})")


def _insert(rows: int, parameters: Sequence[str]) -> str:
    names = ", ".join(f'"{name}"' for name in _NAMES)
    selected = ", ".join('head.first_seq + added."seq"' if name == "seq" else f'added."{name}"' for name in _NAMES)
    call, width = len(_ARGUMENTS), len(_NAMES)
    values = [", ".join(parameters[call + row * width : call + (row + 1) * width]) for row in range(rows)]
    return (
        f"INSERT INTO events ({names}) SELECT {selected}"  # noqa: S608 - columns' names
        f" FROM begin_append({', '.join(parameters[:call])}) AS head (first_seq),"
        f" (VALUES {', '.join(f'({value})' for value in values)}) AS added ({names}) WHERE head.first_seq IS NOT NULL"
    )
