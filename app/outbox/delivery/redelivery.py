"""Deliver objects' newest state again after an older one may have been written to a target late.

A worker that was suspended for longer than its lease may write an old event after another worker has written a newer
one. When it detects that its lease is lost, it requests the redelivery of the objects of its current batch. A target
may also carry out a request without an answer after newer ones; the redelivery is due when it can no longer arrive. So
may that of a worker that was killed: whoever claims its partitions requests that redelivery.
The next holder of the partition's lease carries due redeliveries out before its first batch, when nothing is in flight:
it parks the newest event of each object that is still valid, due at once, and counts it as recorded once more. There is
none if the object has no event that was settled after the one in question.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.delivery import transitions
from app.outbox.delivery.due_work import ObjectHash
from app.outbox.delivery.leases import Lease
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import PartitionReader, Redelivery
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks, lock_cursors, repeated_after_deadlock
from app.outbox.policies import REDELIVERY

log = logging.getLogger("bucketwire.outbox")

# Chooses, from one object's events in log order, the one whose delivery makes the target correct; None for none.
Choose = Callable[[Sequence[LoggedEvent]], LoggedEvent | None]


@repeated_after_deadlock
def request(
    database: Database, target_id: int, written: Mapping[ObjectHash, int], due: int = 0, *, epoch: str | None = None
) -> None:
    """Request the redelivery of a target's objects from `due` (ms since 1970) on. Idempotent.

    `written` has for each object the seq of the oldest event that may have been written too late, in the log of this
    `epoch` (None: the present one). If the outbox has become an older state of itself since, also if nobody has noticed
    yet, that seq may be another event's, so an object's newest event goes out again whichever it is. Of several
    requests for an object the oldest event applies, and the object goes out at the first of their times and at the
    last. Raises `DatabaseUnavailable`; then some requests may have been committed, and repeating the call is safe.
    """
    for some in chunks(sorted(written)):
        with database.writing() as connection:
            # So that neither another request nor the holder of a lease, who carries requests out, changes these ones.
            if lock_cursors(connection, target_id, {partition for partition, _ in some}):  # none: it was removed
                state, last = log_head.read_state(connection), max(written[key] for key in some)
                valid = epoch is None or state.still_has(epoch, last)
                _request(connection, target_id, {key: written[key] if valid else 0 for key in some}, due)


def park_redeliveries(database: Database, reader: PartitionReader, lease: Lease, choose: Choose, now: int) -> None:
    """Park the requested events of a lease's partitions that are due.

    Call it while no event of the lease is in flight. Raises `LeaseLost`.
    """
    if not lease.has_redeliveries:
        return
    for partition, requested in groupby(reader.redeliveries(now), key=lambda request: request.partition):
        for some in chunks(list(requested), REDELIVERY.batch_objects):
            # Choose before locking: no other worker may settle an event of this partition, and other changes of the
            # chosen event are checked again under the lock.
            chosen = [_newest(reader, asked, lease.positions[partition], choose) for asked in some]
            events = [logged for logged in chosen if logged is not None]
            lease.has_parked |= _park(database, lease, partition, some, events, now)
            _warn(database, lease.target_id, [asked for asked, logged in zip(some, chosen, strict=True) if not logged])


@repeated_after_deadlock
def _park(
    database: Database,
    lease: Lease,
    partition: int,
    requested: Sequence[Redelivery],
    events: Sequence[LoggedEvent],
    now: int,
) -> bool:
    """Park these events of requests, and end what is due of the requests; return whether any event was parked."""
    with database.writing() as connection:
        parked = transitions.redeliver(connection, lease, partition, events)
        _finish(connection, lease.target_id, requested, now)
    return bool(parked)


def _request(connection: sa.Connection, target_id: int, written: Mapping[ObjectHash, int], due: int) -> None:
    r = tables.redeliveries.c
    rows = {key: {"since": seq, "due": due, "until": due} for key, seq in written.items()}
    partitions, hashes = ({key[place] for key in written} for place in (0, 1))
    these = (r.target_id == target_id, r.partition.in_(sorted(partitions)), r.key_hash.in_(sorted(hashes)))
    for row in connection.execute(sa.select(tables.redeliveries).where(*these)):
        new = rows[row.partition, row.key_hash]  # the hash decides the partition
        new |= {"since": min(row.since, new["since"]), "due": min(row.due, due), "until": max(row.until, due)}
    connection.execute(tables.redeliveries.delete().where(*these))
    keys = ({"target_id": target_id, "partition": partition, "key_hash": key_hash} for partition, key_hash in rows)
    connection.execute(tables.redeliveries.insert(), [key | row for key, row in zip(keys, rows.values(), strict=True)])


def _finish(connection: sa.Connection, target_id: int, requests: Sequence[Redelivery], now: int) -> None:
    """Delete carried out requests, or make them due at their last time; one that was extended since stays as it is."""
    r = tables.redeliveries.c
    here = (
        r.target_id == sa.bindparam("of_target"),
        r.partition == sa.bindparam("of_partition"),
        r.key_hash == sa.bindparam("of_object"),
        r.since == sa.bindparam("of_seq"),
    )
    objects = [
        {"of_target": target_id, "of_partition": one.partition, "of_object": one.key_hash, "of_seq": one.since}
        for one in requests
    ]
    connection.execute(tables.redeliveries.delete().where(*here, r.until <= now), objects)
    connection.execute(tables.redeliveries.update().where(*here, r.due <= now).values(due=r.until), objects)


def _warn(database: Database, target_id: int, requests: Sequence[Redelivery]) -> None:
    """Warn of requests without an event to deliver whose events were purged from the log."""
    e = tables.events.c
    if not requests:
        return
    with database.reading() as connection:
        for one in requests:
            query = sa.select(e.seq).where(e.partition == one.partition, e.seq == one.since)
            if connection.execute(query).first() is None:
                log.warning(
                    "target %d may hold an old state of an object (hash %d, partition %d): an event may have been "
                    "written late, and the log has neither it nor what came after it any more. Reconcile the target if "
                    "it is a namespace",
                    target_id, one.key_hash, one.partition,
                )  # fmt: skip


def _newest(reader: PartitionReader, requested: Redelivery, position: int, choose: Choose) -> LoggedEvent | None:
    """Return the newest settled event of an object that `choose` accepts, searching from the newest backwards."""
    before = position + 1
    while page := reader.settled(requested, before, REDELIVERY.page_events):
        chosen = choose(page)
        if chosen is not None:
            return chosen
        before = page[0].seq
    return None
