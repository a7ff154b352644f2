"""Append on PostgreSQL in one round trip, where an append is as nearly all are: see `append_at_once`."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from app.outbox import tables
from app.outbox.engine.copy_insert import copy, copy_line
from app.outbox.engine.database import Database

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

_MOST_VALUES = 48  # rows; more are faster by COPY, in spite of its three round trips
_NAMES = [column.name for column in tables.events.columns]
_SEQ, _ID = _NAMES.index("seq"), _NAMES.index("id")  # only the partition precedes seq
_CALL = "begin_append(%s, %s, %s, %s, %s, %s)"


def append_at_once(
    database: Database,
    rows: Sequence[Sequence[Any]],
    *,
    version: int,
    recorded: Mapping[int, int],
    ceilings: Mapping[int, int],
) -> bool:
    """Insert the rows of the log, whose `seq` counts from 0, add `recorded` to the targets' counters, and commit.

    Returns False, and has recorded nothing, if `version` is not that of the log's head, if one of the ids is in the log
    already, or if the number recorded for a target would exceed the target's value in `ceilings`. The log's head is
    locked as for any other append, and so are the targets.
    """
    arguments = (
        version,
        len(rows),
        _array([row[_ID] for row in rows]),
        _array(recorded),
        _array(recorded.values()),
        _array(ceilings.get(target, "NULL") for target in recorded) if ceilings else None,
    )
    if len(rows) <= _MOST_VALUES:
        return bool(database.execute_and_commit(_statement(len(rows)), [*arguments, *chain.from_iterable(rows)]))
    lines = [copy_line(row[_SEQ + 1 :]) for row in rows]  # before the head is locked
    with database.writing() as connection:
        first = connection.exec_driver_sql(f"SELECT {_CALL}", arguments).scalar_one()
        if first is None:
            return False
        numbered = [f"{row[0]}\t{first + row[_SEQ]}\t{line}" for row, line in zip(rows, lines, strict=True)]
        copy(connection, tables.events, numbered)
    return True


def _array(values: Any) -> str:
    """Format an array of numbers, or of ids, which are hexadecimal: a list would be parsed value by value."""
    return f"{{{','.join(map(str, values))}}}"


@lru_cache(maxsize=_MOST_VALUES)
def _statement(rows: int) -> str:
    names = ", ".join(f'"{name}"' for name in _NAMES)
    selected = ", ".join('head.first_seq + added."seq"' if name == "seq" else f'added."{name}"' for name in _NAMES)
    values = ", ".join([f"({', '.join(['%s'] * len(_NAMES))})"] * rows)
    return (
        f"INSERT INTO events ({names}) SELECT {selected} FROM {_CALL} AS head (first_seq),"  # noqa: S608 - columns' names
        f" (VALUES {values}) AS added ({names}) WHERE head.first_seq IS NOT NULL"
    )
