"""Read, lock and change the head of the event log: one row, which every change of the log, targets and rules locks.

The row has the log's last seq, its number of partitions, a version that every change of targets or rules replaces, and
the log's epoch. Who changes the row holds its lock until the transaction ends; it is the first lock of a transaction
(`engine.locks`).

A failover to a replica that lags behind, or a restore, makes the outbox an older state of itself. Its next events get
seqs that others had before. So what remembers seqs (a lease) also remembers the epoch, and what remembers targets and
rules the version; both are random, because a counter would repeat values, too.
"""

import secrets
from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from app.outbox import audit, tables


class LogHead(NamedTuple):
    """The row: seqs up to `last_seq` are assigned, `partitions` never changes, `version` is that of the routing.

    Up to `arrivals_seq` it is known which targets have events where (`app.outbox.log.arrivals`).
    """

    last_seq: int
    partitions: int
    version: int
    arrivals_seq: int


class LogState(NamedTuple):
    """The log's end and epoch; the latter `is_current` unless the server that began it has been replaced since.

    What was read at seqs of one epoch says nothing of those seqs in another one.
    """

    last_seq: int
    epoch: str
    is_current: bool

    def still_has(self, epoch: str, seq: int) -> bool:
        """Return whether the log is in the same epoch and has this seq, as the SQL condition `still_has` says it."""
        return self.is_current and self.epoch == epoch and self.last_seq >= seq


_H = tables.log_head.c
_COLUMNS = (_H.last_seq, _H.partitions, _H.version, _H.arrivals_seq)
# Built once: building a statement takes about as long as running it in the database.
_READ = sa.select(*_COLUMNS)
_LOCK = tables.log_head.update().values(last_seq=_H.last_seq)
_RESERVE = tables.log_head.update().ordered_values(
    # In this order, because MySQL runs the assignments one by one.
    (
        _H.arrivals_seq,
        sa.case((_H.arrivals_seq == _H.last_seq, _H.last_seq + sa.bindparam("count")), else_=_H.arrivals_seq),
    ),
    (_H.last_seq, _H.last_seq + sa.bindparam("count")),
    (_H.posted, _H.posted + sa.bindparam("posted", type_=sa.BigInteger)),
)
_COUNT_POSTED = tables.log_head.update().values(posted=_H.posted + sa.bindparam("posted", type_=sa.BigInteger))
_CHANGE_ROUTING = tables.log_head.update().values(version=sa.bindparam("new_version", type_=sa.BigInteger))
_RETURNING = {update: update.returning(*_COLUMNS) for update in (_LOCK, _RESERVE, _CHANGE_ROUTING)}


def create(connection: sa.Connection, partitions: int) -> None:
    """Begin an empty log with this number of partitions, unless there is one already."""
    if connection.execute(_READ).first() is None:
        row = {"id": 1, "last_seq": 0, "partitions": partitions, "version": _new_version(), "epoch": _new_epoch()}
        connection.execute(tables.log_head.insert().values(row | {"timeline": _timeline(connection)}))


def read(connection: sa.Connection) -> LogHead:
    """Return the head without locking it. Events up to its `last_seq` are committed, or never will be."""
    return LogHead(*connection.execute(_READ).one())


def lock(connection: sa.Connection) -> LogHead:
    """Lock the head until the transaction ends, so that nobody else records events or changes targets or rules."""
    return _update(connection, _LOCK, {})


def reserve(connection: sa.Connection, count: int, *, posted: int = 0) -> LogHead:
    """Lock the head and reserve `count` seqs, which are the last ones up to the returned `last_seq`.

    The caller records the arrivals of its events, which are complete afterwards if they were before. `posted` of the
    events are counted as recorded by requests; `count_posted` corrects that.
    """
    return _update(connection, _RESERVE, {"count": count, "posted": posted})


def complete_arrivals(connection: sa.Connection, until: int) -> None:
    """Note that the arrivals are complete up to a seq. The head has to be locked."""
    connection.execute(tables.log_head.update().values(arrivals_seq=until))


def count_posted(connection: sa.Connection, more: int) -> None:
    """Count so many more events, or fewer if negative, as recorded by requests. The head has to be locked."""
    connection.execute(_COUNT_POSTED, {"posted": more})


def read_posted(connection: sa.Connection) -> int:
    """Return how many events requests have recorded since the count began; what sources have pulled is not in it."""
    return int(connection.execute(sa.select(_H.posted)).scalar_one())


def change_routing(connection: sa.Connection) -> LogHead:
    """Lock the head and replace its version, so that the next writer of the log reads targets and rules again.

    An append after the commit uses the changed targets and rules, one before it the unchanged.
    """
    return _update(connection, _CHANGE_ROUTING, {"new_version": _new_version()})


def begin_epoch(connection: sa.Connection, reason: str, *, instead_of: str | None = None) -> bool:
    """Lock the head and begin a new epoch: no lease of the old one settles any more, and every cache is read again.

    With `instead_of`, only if that is still the epoch; returns whether it has begun. The reason is for the audit log.
    """
    update = tables.log_head.update().values(epoch=_new_epoch(), timeline=_timeline(connection), version=_new_version())
    if instead_of is not None:
        update = update.where(_H.epoch == instead_of)
    begun = bool(connection.execute(update).rowcount)
    if begun:
        last_seq = read(connection).last_seq
        audit.record(connection, "log.new_epoch", "log:events", {"reason": reason, "last_seq": last_seq})
    return begun


def is_current(dialect: str) -> str:
    """Return the SQL condition, for a row of `log_head`, that its epoch has begun on the server's present timeline.

    On PostgreSQL a promoted replica and a server restored to a point in time are on another one than before. The
    migration creates the function; where the server keeps its timeline secret, as some hosted ones do, it returns "".
    """
    return "timeline = log_timeline()" if dialect == "postgresql" else "1 = 1"


def read_state(connection: sa.Connection) -> LogState:
    """Return the log's end and epoch, without a lock."""
    row = connection.exec_driver_sql(f"SELECT {state_columns(connection.dialect.name)} FROM log_head").one()  # noqa: S608
    return LogState(row[0], row[1], bool(row[2]))


def state_columns(dialect: str) -> str:
    """Return the columns of `log_head` that a `LogState` is made of, as SQL."""
    return f"last_seq, epoch, {is_current(dialect)}"


def still_has(dialect: str, epoch: str, seq: int) -> str:
    """Return the SQL condition that the log is in the same epoch and has this seq; `epoch` is a placeholder.

    Who moves a cursor needs it: an older state of the log may have other events at the seqs that were read.
    """
    current = is_current(dialect)
    return f"EXISTS (SELECT 1 FROM log_head WHERE epoch = {epoch} AND last_seq >= {seq:d} AND {current})"  # noqa: S608


def _timeline(connection: sa.Connection) -> sa.ColumnElement[str]:
    return sa.func.log_timeline() if connection.dialect.name == "postgresql" else sa.literal("")


def _new_epoch() -> str:
    return secrets.token_hex(16)


def _new_version() -> int:
    return secrets.randbits(62)


def _update(connection: sa.Connection, update: sa.Update, values: Mapping[str, int]) -> LogHead:
    if connection.dialect.update_returning:
        return LogHead(*connection.execute(_RETURNING[update], values).one())
    connection.execute(update, values)
    return read(connection)
