"""Deliver the newest state of some objects again, after a worker may have written to a target without its lease.

A worker that was stopped for longer than its lease may write an old event after another worker has written a newer one.
When it learns that the lease is lost it requests the redelivery of the objects that it had in hand. Whoever has the
lease of their partition next carries the request out before its first batch, when nothing is in flight: the newest
event of each object that still counts is parked, due at once, and counted as recorded once more.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.delivery.leases import Lease, LeaseLost
from app.outbox.delivery.logged_events import LoggedEvent, neither_parked_nor_dead
from app.outbox.delivery.parked import ObjectHash, restore_heads
from app.outbox.delivery.partition_reader import PartitionReader, Redelivery
from app.outbox.engine.database import Database
from app.outbox.engine.locks import lock_tail
from app.outbox.log.append import chunks
from app.outbox.markers import NEVER, WHOLE_LOG

log = logging.getLogger("bucketwire.outbox")

# Chooses, of events of one object in the order of the log, the one that leaves the target right; None for none of them.
Choose = Callable[[Sequence[LoggedEvent]], LoggedEvent | None]

_AT_ONCE = 100  # objects in one transaction, for which purges and replays wait
_PAGE = 200  # events of an object that are looked at together
_TRIES = 3


class _Changed(Exception):
    """A request has become another since it was read."""


def request(database: Database, target_id: int, written: Mapping[ObjectHash, int]) -> None:
    """Request that some objects of a target be brought up to date. Safe to repeat.

    `written` gives for each object the seq of the oldest event that may have been written too late. Raises
    `DatabaseUnavailable`, and then nothing was requested.
    """
    for some in chunks(sorted(written)):
        for attempt in range(1, _TRIES + 1):
            try:
                with database.writing() as connection:
                    _request(connection, target_id, {each: written[each] for each in some})
                break
            # Somebody else requested the same just now, or it was carried out, or the target was removed.
            except (sa.exc.IntegrityError, _Changed):
                if attempt == _TRIES:
                    raise


def carry_out(database: Database, reader: PartitionReader, lease: Lease, choose: Choose) -> int:
    """Park what was requested for the partitions of a lease; the number of events.

    To be called while nothing of the lease is in flight. Raises `LeaseLost`.
    """
    count = 0
    for partition, requested in groupby(reader.redeliveries(), key=lambda each: each.partition):
        rows = list(requested)
        for start in range(0, len(rows), _AT_ONCE):
            some = rows[start : start + _AT_ONCE]
            # Chosen before anything is locked: nobody else may settle an event of this partition, and what else may
            # have happened to the chosen one is looked at again.
            chosen = [_newest(reader, each, lease.positions[partition], choose) for each in some]
            with database.writing() as connection:
                _lock(connection, lease, partition)
                parked = _park(connection, lease.target_id, [logged for logged in chosen if logged is not None])
                _count_free(connection, lease.target_id, partition, parked)
                count += parked
                _remove(connection, lease.target_id, some)
            _warn(database, lease.target_id, [each for each, logged in zip(some, chosen, strict=True) if not logged])
    return count


def _request(connection: sa.Connection, target_id: int, written: Mapping[ObjectHash, int]) -> None:
    r, t = tables.redeliveries.c, tables.targets.c
    if connection.execute(sa.select(t.id).where(t.id == target_id)).first() is None:
        return
    hashes = sorted({key_hash for _, key_hash in written})
    known = {
        (row.partition, row.key_hash): row.since
        for row in connection.execute(
            sa.select(r.partition, r.key_hash, r.since).where(r.target_id == target_id, r.key_hash.in_(hashes))
        )
    }
    new = [
        {"target_id": target_id, "partition": partition, "key_hash": key_hash, "since": seq}
        for (partition, key_hash), seq in written.items()
        if (partition, key_hash) not in known
    ]
    if new:
        connection.execute(tables.redeliveries.insert(), new)
    for (partition, key_hash), seq in written.items():
        if known.get((partition, key_hash), seq) > seq:
            updated = connection.execute(
                tables.redeliveries.update()
                .where(r.target_id == target_id, r.partition == partition, r.key_hash == key_hash, r.since > seq)
                .values(since=seq)
            )
            if updated.rowcount != 1:
                raise _Changed


def _remove(connection: sa.Connection, target_id: int, requests: Sequence[Redelivery]) -> None:
    """Remove what was carried out; a request that asks for more by now stays, for the next holder of the lease."""
    r = tables.redeliveries.c
    connection.execute(
        tables.redeliveries.delete().where(
            r.target_id == sa.bindparam("of_target"),
            r.partition == sa.bindparam("of_partition"),
            r.key_hash == sa.bindparam("of_object"),
            r.since == sa.bindparam("of_seq"),
        ),
        [
            {"of_target": target_id, "of_partition": one.partition, "of_object": one.key_hash, "of_seq": one.since}
            for one in requests
        ],
    )


def _warn(database: Database, target_id: int, requests: Sequence[Redelivery]) -> None:
    """Warn of requests that found nothing, where the events that they asked for were removed from the log."""
    e = tables.events.c
    if not requests:
        return
    with database.reading() as connection:
        for one in requests:
            query = sa.select(e.seq).where(e.partition == one.partition, e.seq == one.since)
            if connection.execute(query).first() is None:
                log.warning(
                    "target %d may hold an old state of an object (hash %d, partition %d): a worker that had lost its "
                    "lease wrote event %d late, and retention has removed it and what came after it. Reconcile the "
                    "target if it is a namespace",
                    target_id, one.key_hash, one.partition, one.since,
                )  # fmt: skip


def _lock(connection: sa.Connection, lease: Lease, partition: int) -> None:
    """Keep the partition as it is until the commit, and its events in the log."""
    lock_tail(connection)  # a purge must not remove what is parked here
    c = tables.cursors.c
    held = connection.execute(
        tables.cursors.update()
        .where(c.target_id == lease.target_id, c.partition == partition, c.replay_id == WHOLE_LOG)
        .where(c.lease_token == lease.token)
        .values(lease_token=lease.token)
    )
    if held.rowcount != 1:
        raise LeaseLost(f"partition {partition} of target {lease.target_id}")


def _count_free(connection: sa.Connection, target_id: int, partition: int, events: int) -> None:
    """Note that so many of the events taken for the target take no room of its queue; the cursor is locked already."""
    c = tables.cursors.c
    mine = (c.target_id == target_id, c.partition == partition, c.replay_id == WHOLE_LOG)
    if events:
        connection.execute(tables.cursors.update().where(*mine).values(freed=c.freed + events))


def _newest(reader: PartitionReader, requested: Redelivery, position: int, choose: Choose) -> LoggedEvent | None:
    """The newest settled event of an object that `choose` takes, looked for from the newest on."""
    before = position + 1
    while page := reader.settled(requested, before, _PAGE):
        chosen = choose(page)
        if chosen is not None:
            return chosen
        before = page[0].seq
    return None


def _park(connection: sa.Connection, target_id: int, chosen: Sequence[LoggedEvent]) -> int:
    """Park what is still in the log and neither parked nor dead; the number of events."""
    t, e = tables.targets.c, tables.events.c
    parked = []
    for logged in chosen:
        place = (e.partition == logged.partition, e.seq == logged.seq, *neither_parked_nor_dead(target_id))
        if connection.execute(sa.select(e.seq).where(*place)).first() is not None:
            parked.append(logged)
    if not parked:
        return 0
    # Before the insert: its foreign key takes a shared lock of the target's row on MySQL, and to raise that beside an
    # append that waits for the row would be a deadlock.
    connection.execute(tables.targets.update().where(t.id == target_id).values(recorded=t.recorded + len(parked)))
    # NEVER, so that an event in front of the object's head takes over its back-off; else it becomes due at once.
    rows = [
        {
            "target_id": target_id, "partition": logged.partition, "seq": logged.seq, "key_hash": logged.key_hash,
            "not_before": NEVER, "replayed": True,
        }
        for logged in parked
    ]  # fmt: skip
    connection.execute(tables.parked.insert(), rows)
    restore_heads(connection, target_id, {logged.object for logged in parked})
    return len(parked)
