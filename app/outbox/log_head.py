"""Read, lock and change the head of the event log: one row, which every change of the log, targets and rules locks.

The row has the log's last seq, its number of partitions, and a version that every change of targets or rules raises.
Who changes the row holds its lock until the transaction ends; it is the first lock of a transaction (`engine.locks`).
"""

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import tables


class LogHead(NamedTuple):
    """The row: seqs up to `last_seq` are assigned, `partitions` never changes, `version` is that of the routing."""

    last_seq: int
    partitions: int
    version: int


_H = tables.log_head.c
_COLUMNS = (_H.last_seq, _H.partitions, _H.version)
# Built once: building a statement takes about as long as running it in the database.
_READ = sa.select(*_COLUMNS)
_LOCK = tables.log_head.update().values(last_seq=_H.last_seq)
_RESERVE = tables.log_head.update().values(last_seq=_H.last_seq + sa.bindparam("count"))
_CHANGE_ROUTING = tables.log_head.update().values(version=_H.version + 1)
_RETURNING = {update: update.returning(*_COLUMNS) for update in (_LOCK, _RESERVE, _CHANGE_ROUTING)}


def create(connection: sa.Connection, partitions: int) -> None:
    """Begin an empty log with this number of partitions, unless there is one already."""
    if connection.execute(_READ).first() is None:
        connection.execute(tables.log_head.insert().values(id=1, last_seq=0, partitions=partitions, version=1))


def read(connection: sa.Connection) -> LogHead:
    """Return the head without locking it. Events up to its `last_seq` are committed, or never will be."""
    return LogHead(*connection.execute(_READ).one())


def lock(connection: sa.Connection) -> LogHead:
    """Lock the head until the transaction ends, so that nobody else records events or changes targets or rules."""
    return _update(connection, _LOCK, {})


def reserve(connection: sa.Connection, count: int) -> LogHead:
    """Lock the head and reserve `count` seqs, which are the last ones up to the returned `last_seq`."""
    return _update(connection, _RESERVE, {"count": count})


def change_routing(connection: sa.Connection) -> LogHead:
    """Lock the head and raise its version, so that the next writer of the log reads targets and rules again.

    An append after the commit uses the changed targets and rules, one before it the unchanged.
    """
    return _update(connection, _CHANGE_ROUTING, {})


def _update(connection: sa.Connection, update: sa.Update, values: Mapping[str, int]) -> LogHead:
    if connection.dialect.update_returning:
        return LogHead(*connection.execute(_RETURNING[update], values).one())
    connection.execute(update, values)
    return read(connection)
