"""Change the delivery state of events.

This module and `settlement_store` alone write `cursors`, `parked` and `dead_letters`.

Each arrow of the state diagram (docs/explanation/architecture.md, "An event at a target") is one function or, where a
worker's batch has several of them, one member of its `Settlement`:

| arrow | from | where |
|---|---|---|
| record | pending | `begin_target` for a new target; an append adds to `targets.recorded` (`app.outbox.log`) |
| deliver, supersede, park, retry, bury | pending or parked | members of `Settlement`; `SettlementStore.settle` |
| replay | settled | `begin_replay`, `end_replay` |
| replay | dead | `replay` |
| redeliver | settled | `redeliver` |
| retry now | parked | `make_due`; all of a target that is resumed or changed, `try_all_now` |
| give up | parked | `give_up` |
| purge | dead | `purge`; with its target also parked, `purge_any` |
| revoke | leased, revoked | `revoke_leases` |
| remove | all | `remove_target` |

They keep the counters balanced (`app.outbox.admin.counters`): what one takes from a state it adds to another in the
same transaction. `recorded` counts an event again for each time that a replay or a redelivery makes it pending or
parked once more; such an event is *replayed*, and so is a replayed dead letter. An event holds a place in its target's
queue (`queue_limit`) until it is settled, and then frees it (`cursors.freed`); a replayed event holds none.

`app.outbox.delivery.leases` alone writes the columns of `cursors` that are a lease; a mirror's knowledge of versioned
keys has a column there too, `folded` (`app.outbox.object_versions`).

Each function is for one target and, but for `try_all_now`, in the caller's transaction. It locks first what
`app.outbox.engine.many_rows` says, so that it sees what a concurrent settlement wrote, or is seen by it. A transaction
has the events of one target only: an append locks the rows of many targets, in an order that is the database's, so one
that held one of them and waited for a second would be a deadlock; on MySQL also one that parks events, because the
foreign key locks the target's row.

The oldest of an object's parked events, the *head*, has a due time; each later one has `NEVER` and waits behind it. A
transaction that parks events, removes them or changes their times calls `restore_heads` for their objects before it
ends, while it holds the lock of their partitions' cursors. `HeadRepair` is a safety net.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.column_values import NEVER, REVOKED, WHOLE_LOG, clean_reason
from app.outbox.delivery.due_work import ObjectHash
from app.outbox.delivery.leases import Lease, fence
from app.outbox.delivery.logged_events import LoggedEvent, LogPosition, neither_parked_nor_dead
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, lock_cursors, lock_tail, own_cursors, repeated_after_deadlock
from app.outbox.log_head import LogHead
from app.outbox.policies import FUTURE_TIMES

_C = tables.cursors.c
_P = tables.parked.c
_D = tables.dead_letters.c
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
    with database.reading() as connection:
        before = database_now(connection) + FUTURE_TIMES.max_retry_after_ms
        later = (_P.target_id == target_id, _P.not_before > 0, _P.not_before <= before)
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
        revoke_leases(connection, target_id, {row.partition for row in rows})
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


_OTHER = tables.parked.alias("other")
_OBJECT = sa.and_(
    _P.target_id == sa.bindparam("target"),
    _P.partition == sa.bindparam("partition"),
    _P.key_hash == sa.bindparam("hash"),
)
# Built once. Each finds its rows by an index, independent of the number of events that wait behind a head.
_DUE = sa.select(
    _P.key_hash,
    _P.seq,
    _P.not_before,
    sa.exists()
    .where(_OTHER.c.target_id == _P.target_id, _OTHER.c.partition == _P.partition)
    .where(_OTHER.c.key_hash == _P.key_hash, _OTHER.c.seq < _P.seq)
    .label("follows"),
).where(
    _P.target_id == sa.bindparam("target"),
    _P.partition == sa.bindparam("partition"),
    _P.key_hash.in_(sa.bindparam("hashes", expanding=True)),
    _P.not_before < NEVER,
)
_OLDEST = sa.select(sa.func.min(_P.seq)).where(_OBJECT)
_SET_DUE = (
    tables.parked.update()
    .where(_P.target_id == sa.bindparam("target"), _P.partition == sa.bindparam("of_partition"))
    .where(_P.seq == sa.bindparam("number"))
    .values(not_before=sa.bindparam("due"))
)


def restore_heads(connection: sa.Connection, target_id: int, objects: Iterable[ObjectHash]) -> int:
    """Make the oldest parked event of each object its head, and return how many objects needed a change.

    A head that has a due time keeps it. An older event that was parked in front of the head takes over the head's
    time, so that it does not bypass the back-off; the former head keeps its attempts. Where no event of the object
    has a time, its oldest is due at once. Objects without parked events are left alone.

    The connection is in a transaction that holds the lock of the objects' cursors.
    """
    by_partition: dict[int, list[int]] = defaultdict(list)
    for partition, key_hash in sorted(set(objects)):
        by_partition[partition].append(key_hash)
    changed = 0
    for partition, hashes in by_partition.items():
        for some in chunks(hashes):
            due: dict[int, list[Any]] = defaultdict(list)
            for row in connection.execute(_DUE, {"target": target_id, "partition": partition, "hashes": some}):
                due[row.key_hash].append(row)
            for key_hash in some:
                rows = due[key_hash]
                if len(rows) != 1 or rows[0].follows:
                    changed += _restore(connection, target_id, (partition, key_hash), rows)
    return changed


def _restore(connection: sa.Connection, target_id: int, key: ObjectHash, due: Sequence[Any]) -> bool:
    partition, key_hash = key
    oldest = connection.execute(_OLDEST, {"target": target_id, "partition": partition, "hash": key_hash}).scalar_one()
    if oldest is None:
        return False
    own = next((row.not_before for row in due if row.seq == oldest), None)
    times = {row.seq: NEVER for row in due}
    times[oldest] = min((row.not_before for row in due), default=0) if own is None else own
    connection.execute(
        _SET_DUE,
        [{"target": target_id, "of_partition": partition, "number": seq, "due": time} for seq, time in times.items()],
    )
    return True


class HeadRepair:
    """Find objects whose parked events have no head or several, and repair them: a safety net.

    It should never find any. Those that it finds were left by a defect or by another version of the program.
    """

    def __init__(self, database: Database, *, chunk: int = 500, chunks_each_run: int = 50) -> None:
        self._database = database
        self._chunk = chunk
        self._chunks = chunks_each_run
        self._search: Iterator[tuple[Any, set[ObjectHash]]] | None = None

    def run(self) -> Counter[TargetId]:
        """Check the next part of the parked events, and return how many objects were repaired, by target.

        A run reads at most `chunk * chunks_each_run` rows, so with very many parked events a round takes several runs.
        Safe to run concurrently. Raises `DatabaseUnavailable`; the next run then begins a new round.
        """
        repaired: Counter[TargetId] = Counter()
        if self._search is None:
            self._search = self._broken()
        for _ in range(self._chunks):
            partition, objects = next(self._search, (None, set()))
            if partition is None:
                self._search = None
                break
            if objects and (count := self._repair(partition, objects)):
                repaired[TargetId(partition.type, partition.name)] += count
        return repaired

    def _broken(self) -> Iterator[tuple[Any, set[ObjectHash]]]:
        """Yield each partition that has parked events, chunk by chunk, with the objects that break the invariant."""
        c, t = tables.cursors.c, tables.targets.c
        parked = sa.exists().where(_P.target_id == c.target_id, _P.partition == c.partition).correlate(tables.cursors)
        with self._database.reading() as connection:
            partitions = connection.execute(
                sa.select(t.id, t.type, t.name, c.partition)
                .join_from(tables.cursors, tables.targets, c.target_id == t.id)
                .where(c.replay_id == WHOLE_LOG, parked)
                .order_by(t.id, c.partition)
            ).all()
        for partition in partitions:
            query = (
                sa.select(_P.key_hash, _P.not_before)
                .where(_P.target_id == partition.id, _P.partition == partition.partition)
                .order_by(_P.key_hash, _P.seq)
                .limit(self._chunk)
            )
            after: sa.ColumnElement[bool] = sa.true()
            while True:
                with self._database.reading() as connection:
                    rows = connection.execute(query.where(after)).all()
                yield partition, {(partition.partition, key_hash) for key_hash in _without_one_head(rows)}
                if len(rows) < self._chunk:
                    break
                last = rows[-1].key_hash
                # An object with more events than a chunk must not stop the search; its head was already checked.
                after = _P.key_hash > last if rows[0].key_hash == last else _P.key_hash >= last

    def _repair(self, partition: Any, objects: set[ObjectHash]) -> int:
        with self._database.writing() as connection:
            lock_cursors(connection, partition.id, [partition.partition])  # as a settlement does
            return restore_heads(connection, partition.id, objects)


def _without_one_head(rows: Iterable[Any]) -> Iterator[int]:
    """Yield the key hashes of objects that break the invariant; `rows` are sorted by key hash and seq."""
    for key_hash, group in groupby(rows, key=lambda row: row.key_hash):
        head, *others = (row.not_before for row in group)
        if head == NEVER or any(not_before != NEVER for not_before in others):
            yield key_hash


def begin_target(connection: sa.Connection, target_id: int, head: LogHead) -> None:
    """Have every event that is recorded for a new target from now on delivered. The caller has locked the head."""
    position = {"target_id": target_id, "position": head.last_seq}
    connection.execute(
        tables.cursors.insert(), [position | {"partition": partition} for partition in range(head.partitions)]
    )


def begin_replay(
    connection: sa.Connection, target_id: int, replay_id: int, ranges: Mapping[int, tuple[int, int]]
) -> None:
    """Have the events of a part of the log delivered again: in each partition those after the first seq to the last.

    They count as recorded once more when the replay reaches them. The caller has locked the log's tail and the target's
    cursors.
    """
    rows = [
        {"target_id": target_id, "partition": partition, "replay_id": replay_id}
        | {"position": after, "begins_after": after, "until": until}
        for partition, (after, until) in ranges.items()
    ]
    if rows:
        connection.execute(tables.cursors.insert(), rows)


def end_replay(connection: sa.Connection, target_id: int, replay_id: int, partition: int) -> None:
    """Remove a replay's cursor at any position, and add its counts to the log's own cursor and to the replay.

    The caller has locked the log's own cursor.
    """
    r = tables.replays.c
    mine = (_C.target_id == target_id, _C.partition == partition, _C.replay_id == replay_id)
    row = connection.execute(sa.select(_C.replayed, (_C.position - _C.begins_after).label("passed")).where(*mine)).one()
    connection.execute(tables.cursors.delete().where(*mine))
    connection.execute(
        tables.cursors.update().where(own_cursors(target_id, [partition])).values(replayed=_C.replayed + row.replayed)
    )
    connection.execute(
        tables.replays.update()
        .where(r.id == replay_id)
        .values(replayed=r.replayed + row.replayed, passed=r.passed + row.passed)
    )


def revoke_leases(connection: sa.Connection, target_id: int, partitions: Collection[int] | None = None) -> None:
    """Take the leases of workers that do not know of a change to these partitions (None: to all of the target).

    Such a worker settles nothing more, and nobody claims its partitions until its lease expires.
    """
    leased = _C.lease_token != ""
    connection.execute(
        tables.cursors.update().where(own_cursors(target_id, partitions), leased).values(lease_token=REVOKED)
    )


def remove_target(connection: sa.Connection, target_id: int) -> None:
    """Remove a target's cursors, arrivals, parked events and dead letters. The caller has locked the cursors."""
    # Cursors first: a settling worker holds their lock and may be about to park events.
    for table in (tables.cursors, tables.arrivals, tables.parked, tables.dead_letters):
        connection.execute(table.delete().where(table.c.target_id == target_id))
