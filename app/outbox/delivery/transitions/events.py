"""Move events that wait, have died or were settled: by request, not by a worker's settlement.

Each function is for one target and, but for `try_all_now`, in the caller's transaction. It locks first what
`app.outbox.engine.locks` says, so that it sees what a concurrent settlement wrote, or is seen by it. A transaction has
the events of one target only: an append locks the rows of many targets, in an order that is the database's, so one that
held one of them and waited for a second would be a deadlock; on MySQL also one that parks events, because the foreign
key locks the target's row.
"""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Any

import orjson
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import NEVER, clean_reason
from app.outbox.delivery.leases import Lease, fence
from app.outbox.delivery.logged_events import LoggedEvent, LogPosition, neither_parked_nor_dead
from app.outbox.delivery.transitions import cursors
from app.outbox.delivery.transitions.heads import restore_heads
from app.outbox.engine.database import Database, now_ms
from app.outbox.engine.locks import lock_cursors, lock_tail, own_cursors, repeated_after_deadlock
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import FUTURE_TIMES

_C, _P, _D = tables.cursors.c, tables.parked.c, tables.dead_letters.c
_MAX_DUE = 500  # retried events that one transaction makes due
_KEPT = ("target_id", "partition", "seq", "attempts", "first_tried", "last_tried", "history")  # of a dead letter


def make_due(connection: sa.Connection, target_id: int, positions: Collection[LogPosition]) -> int:
    """Have those of the events that are still retried tried at once; return their number. Attempts stay counted."""
    rows = _lock_heads(connection, target_id, positions)
    for partition, seqs in _by_partition(rows):
        mine = (_P.target_id == target_id, _P.partition == partition, _P.seq.in_(seqs))
        connection.execute(tables.parked.update().where(*mine).values(not_before=0))
    return len(rows)


def try_all_now(database: Database, target_id: int) -> None:
    """Have the retried events of a target (by row id) tried at once, some in each transaction; attempts stay counted.

    They waited for a target that was resumed or changed meanwhile. Those of the next 15 minutes, the longest wait that
    a remote may ask for: a longer one is a back-off that the target's settings ask for.
    """
    before = now_ms() + FUTURE_TIMES.max_retry_after_ms
    later = (_P.target_id == target_id, _P.not_before > 0, _P.not_before <= before)
    with database.reading() as connection:
        partitions = connection.execute(sa.select(_P.partition).where(*later).distinct()).scalars().all()
    for partition in sorted(partitions):
        while _try_some_now(database, target_id, partition, before) == _MAX_DUE:
            pass


@repeated_after_deadlock
def _try_some_now(database: Database, target_id: int, partition: int, before: int) -> int:
    """Make due some events of a partition that are retried before a time (ms); return their number."""
    mine = (_P.target_id == target_id, _P.partition == partition)
    later = (_P.not_before > 0, _P.not_before <= before)
    with database.writing() as connection:
        lock_cursors(connection, target_id, [partition])
        query = sa.select(_P.seq).where(*mine, *later).order_by(_P.not_before).limit(_MAX_DUE)
        seqs = connection.execute(query).scalars().all()
        for some in chunks(seqs):
            connection.execute(tables.parked.update().where(*mine, _P.seq.in_(some)).values(not_before=0))
    return len(seqs)


def bring_forward(connection: sa.Connection, which: sa.ColumnElement[bool], due: int) -> int:
    """Have parked events tried at `due` (ms); return their number. The caller has locked their cursors."""
    return connection.execute(tables.parked.update().where(which).values(not_before=due)).rowcount


def give_up(connection: sa.Connection, target_id: int, positions: Collection[LogPosition]) -> int:
    """Make dead letters of those of the events that are still retried; return their number.

    The next event of the same object is due at once. A worker that has one of the partitions may be sending such an
    event, so its lease is revoked.
    """
    rows = _lock_heads(connection, target_id, positions)
    for partition, seqs in _by_partition(rows):
        freed = sum(not row.replayed for row in rows if row.partition == partition)
        connection.execute(
            tables.cursors.update()
            .where(own_cursors(target_id, [partition]))
            .values(dead=_C.dead + len(seqs), freed=_C.freed + freed)
        )
        mine = (_P.target_id == target_id, _P.partition == partition, _P.seq.in_(seqs))
        connection.execute(tables.parked.delete().where(*mine))
    if rows:
        cursors.revoke(connection, target_id, {row.partition for row in rows})
        connection.execute(tables.dead_letters.insert(), [_given_up(row) for row in rows])
        restore_heads(connection, target_id, {(row.partition, row.key_hash) for row in rows})
    return len(rows)


def replay(connection: sa.Connection, target_id: int, letter_ids: Sequence[int]) -> int:
    """Park those of the dead letters that still exist, due at once and in order per object; return their number.

    They keep their history, but their attempts and their time (`max_age`) are counted from 0 again.
    """
    lock_cursors(connection, target_id)
    e = tables.events.c
    letters = sa.join(tables.dead_letters, tables.events, sa.and_(e.partition == _D.partition, e.seq == _D.seq))
    query = sa.select(_D.id, _D.partition, e.key_hash).select_from(letters).where(_D.id.in_(letter_ids))
    rows = connection.execute(query.with_for_update(of=tables.dead_letters)).all()
    if rows:
        these = _D.id.in_([row.id for row in rows])
        kept = {column.name: column for column in (_D.target_id, _D.partition, _D.seq, _D.last_tried, _D.history)}
        columns = kept | {"key_hash": e.key_hash, "replayed": sa.true()}
        columns |= {name: sa.literal(0).label(name) for name in ("not_before", "attempts", "first_tried")}
        parked = sa.select(*columns.values()).select_from(letters).where(these)
        connection.execute(tables.parked.insert().from_select([*columns], parked))
        connection.execute(tables.dead_letters.delete().where(these))
        restore_heads(connection, target_id, {(row.partition, row.key_hash) for row in rows})
    return len(rows)


def purge(connection: sa.Connection, target_id: int, letter_ids: Sequence[int]) -> int:
    """Delete those of the dead letters that still exist; return their number."""
    return _delete_letters(connection, target_id, letter_ids)


def has_more(connection: sa.Connection, target_id: int, count: int) -> bool:
    """Return whether a target has more parked events and dead letters than that, together."""
    seqs = [
        sa.select(table.c.seq).where(table.c.target_id == target_id).limit(count + 1).subquery()
        for table in (tables.parked, tables.dead_letters)
    ]
    return sum(connection.execute(sa.select(sa.func.count()).select_from(some)).scalar_one() for some in seqs) > count


def purge_any(connection: sa.Connection, target_id: int, count: int) -> int:
    """Purge that many parked events and dead letters of a target, whichever; return the number, less at the end."""
    lock_cursors(connection, target_id)
    parked = connection.execute(
        sa.select(_P.partition, _P.seq, _P.key_hash, _P.replayed)
        .where(_P.target_id == target_id)
        .order_by(_P.partition, _P.seq)
        .limit(count)
    ).all()
    for partition, seqs in _by_partition(parked):
        freed = sum(not row.replayed for row in parked if row.partition == partition)
        update = tables.cursors.update().where(own_cursors(target_id, [partition]))
        connection.execute(update.values(freed=_C.freed + freed))
        mine = (_P.target_id == target_id, _P.partition == partition, _P.seq.in_(seqs))
        connection.execute(tables.parked.delete().where(*mine))
    if parked:
        restore_heads(connection, target_id, {(row.partition, row.key_hash) for row in parked})
    letters = sa.select(_D.id).where(_D.target_id == target_id).order_by(_D.partition, _D.seq)
    letter_ids = connection.execute(letters.limit(count - len(parked))).scalars().all()
    return _delete_letters(connection, target_id, letter_ids, already=len(parked))


def redeliver(connection: sa.Connection, lease: Lease, partition: int, settled: Sequence[LoggedEvent]) -> int:
    """Park settled events of a lease's partition once more, due at once; return their number. Raises `LeaseLost`.

    Those that have left the log meanwhile, or are parked or dead letters already, are left out.
    """
    lock_tail(connection)  # a purge must not remove the events parked here
    fence(connection, lease, partition)
    e, target_id = tables.events.c, lease.target_id
    events = [
        logged
        for logged in settled
        if connection.execute(
            sa.select(e.seq).where(e.partition == partition, e.seq == logged.seq, *neither_parked_nor_dead(target_id))
        ).first()
    ]
    if events:
        update = tables.cursors.update().where(own_cursors(target_id, [partition]))
        connection.execute(update.values(replayed=_C.replayed + len(events)))
        # NEVER, so that an event before the object's head takes over its back-off; without a head it is due at once.
        rows = [
            {"target_id": target_id, "partition": partition, "seq": logged.seq, "key_hash": logged.key_hash}
            | {"not_before": NEVER, "replayed": True}
            for logged in events
        ]
        connection.execute(tables.parked.insert(), rows)
        restore_heads(connection, target_id, {logged.object for logged in events})
    return len(events)


def _delete_letters(connection: sa.Connection, target_id: int, letter_ids: Sequence[int], already: int = 0) -> int:
    """Delete dead letters and count them as purged, with those `already` deleted; return the number of all."""
    t = tables.targets.c
    # Count what is deleted: a concurrent replay or purge may have removed some of them.
    purged = already + connection.execute(tables.dead_letters.delete().where(_D.id.in_(letter_ids))).rowcount
    connection.execute(tables.targets.update().where(t.id == target_id).values(purged=t.purged + purged))
    return purged


def _lock_heads(connection: sa.Connection, target_id: int, positions: Collection[LogPosition]) -> list[Any]:
    """Return those of the rows of `parked` that are still heads, and lock their cursors until the commit."""
    e = tables.events.c
    by_partition = {
        partition: [seq for _, seq in group] for partition, group in groupby(sorted(positions), key=lambda at: at[0])
    }
    lock_cursors(connection, target_id, by_partition)
    rows: list[Any] = []
    for partition, seqs in by_partition.items():
        query = (
            sa.select(tables.parked, e.id.label("event_id"))
            .join_from(tables.parked, tables.events, sa.and_(e.partition == _P.partition, e.seq == _P.seq))
            .where(_P.target_id == target_id, _P.partition == partition, _P.seq.in_(seqs), _P.not_before < NEVER)
        )
        rows += connection.execute(query.with_for_update(of=tables.parked)).all()
    return rows


def _by_partition(rows: Sequence[Any]) -> list[tuple[int, list[int]]]:
    groups = groupby(rows, key=lambda row: row.partition)  # `_lock_heads` returns them partition by partition
    return [(partition, [row.seq for row in group]) for partition, group in groups]


def _given_up(row: Any) -> dict[str, Any]:
    tried = orjson.loads(row.history)
    reason = f"given up: {tried[-1][1]}" if tried else "given up before an attempt was counted"
    kept = {name: getattr(row, name) for name in _KEPT}
    return kept | {"event_id": row.event_id, "reason": clean_reason(reason)}
