"""Lease partitions: let one worker at a time claim those that have due work, renew and release the leases.

A partition of a target is free or claimed (a worker has a lease, guarded by a fencing token). A wake-up names a target
and grants no right: the worker that gets it claims what is due by then, if anything is. So a wake-up that is lost, late
or duplicated is harmless.

    free ──claim──> claimed ──release, or the lease ran out──> free
"""

import logging
import os
import re
import secrets
import socket
from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import orjson
import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.column_values import REVOKED, WHOLE_LOG
from app.outbox.delivery.due_work import DueTarget, PartitionOf, due_of_target, is_free, read_refusals, with_parked
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.many_rows import own_cursors, repeated_after_deadlock
from app.outbox.log.arrivals import unread_after
from app.outbox.policies import DUE_WORK, LEASES

log = logging.getLogger("bucketwire.outbox")

_MAX_SEARCHES = 64  # for each kind of work, in the statement that reads what was claimed
_MAX_HOST_CHARACTERS = 39  # with the longest process id and the random part, the column has 64


def new_token() -> str:
    """Return a fencing token that no other lease has. It begins with `HOST:PID:` of this process, for people."""
    return f"{_holder()}{secrets.token_hex(8)}"


def _holder() -> str:
    host = re.sub(r"[^A-Za-z0-9.-]", "", socket.gethostname())[:_MAX_HOST_CHARACTERS]
    return f"{host}:{os.getpid()}:"


class LeaseLost(Exception):
    """Another worker may have these partitions now; nothing of this settlement was written."""


@dataclass(slots=True)
class ReplayPartition:
    """A replay's position in a partition, and its selection."""

    replay_id: int
    partition: int
    position: int
    until: int
    since: int
    before: int
    bucket: str
    prefix: str
    names: tuple[str, ...]
    window: int = 0  # the seq up to which the next events are searched


@dataclass(slots=True)
class Lease:
    """A worker's time-limited right to some partitions of one target; `positions` advance as it settles."""

    target_id: int
    token: str
    positions: dict[int, int]
    epoch: str = ""  # of the log, in which the positions are
    replays: list[ReplayPartition] = field(default_factory=list)
    probing: bool = False  # the circuit breaker is open, and this lease probes the target
    mirror: bool = False  # the holder folds the events of versioned keys
    leaves_work: bool = False  # other workers could begin with other partitions of the target now
    abandoned: Set[int] = frozenset()  # partitions whose last holder let its lease expire
    careful: bool = False  # several holders in a row did: one of the events may kill the worker that sends it
    # What the claim has seen, so that the first turn need not query it again.
    has_parked: bool = True  # whether the partitions may have parked events
    has_redeliveries: bool = True  # whether redeliveries may be requested for them


@dataclass(frozen=True, slots=True)
class _Claimed:
    """The positions of claimed partitions, the log's state, and which kinds of work the partitions have."""

    positions: Mapping[int, int]
    lost_leases: int
    log: log_head.LogState
    has_replays: bool
    has_parked: bool
    has_redeliveries: bool


def _read_claimed(
    connection: sa.Connection, target_id: int, partitions: Collection[int], token: str
) -> _Claimed | None:
    """Return what those of a target's partitions have whose lease has this token; None if it has none of them.

    One statement, which reads a few index rows for each. Of many partitions it says without looking that they have
    everything.
    """
    partition = connection.dialect.identifier_preparer.quote("partition")

    def has(table: str, condition: str = "") -> str:
        if len(partitions) > _MAX_SEARCHES:
            return "1 = 1"
        # Literals, because with a joined cursor MySQL reads every row of the partition, also with EXISTS or LIMIT.
        searches = (
            f"(SELECT 1 FROM {table} WHERE target_id = {target_id:d} AND {partition} = {place:d}{condition} LIMIT 1)"  # noqa: S608 - numbers
            for place in partitions
        )
        return " OR ".join(f"{search} IS NOT NULL" for search in searches)

    mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"
    replays = has("cursors", f" AND replay_id > {WHOLE_LOG:d}")
    rows = connection.exec_driver_sql(
        f"SELECT mine.{partition}, mine.position, mine.lost_leases, {log_head.state_columns(connection.dialect.name)},"  # noqa: S608
        f" {replays}, {has('parked')}, {has('redeliveries')} FROM cursors AS mine, log_head"
        f" WHERE mine.target_id = {target_id:d} AND mine.replay_id = {WHOLE_LOG:d} AND mine.lease_token = {mark}",
        (token,),
    ).all()
    if not rows:
        return None
    _, _, _, last_seq, epoch, is_current, *has_kinds = rows[0]
    state = log_head.LogState(last_seq, epoch, bool(is_current))
    return _Claimed({row[0]: row[1] for row in rows}, max(row[2] for row in rows), state, *map(bool, has_kinds))


class Leases:
    """Claim, renew and release partitions. Times are milliseconds.

    A lease expires `lease_ms` (the setting `lease_ttl`) after its renewal.
    """

    def __init__(self, database: Database, lease_ms: int) -> None:
        self._database = database
        self._lease_ms = lease_ms
        self._rng = Random()  # noqa: S311 - which partition is first, not a secret
        self._state = log_head.LogState(0, "", is_current=True)  # of the log, as it was read last

    def claim_due(self, row_id: int, token: str, now: int, *, with_free: bool = False) -> Lease | None:
        """Lease some of a target's partitions that have due work; return None if none has, or if it is unavailable.

        `row_id` identifies the target that the worker has read: one created since with the same name has another id.
        A busy or abandoned partition is leased alone, the others together; while the circuit breaker is open, one
        partition for all workers. What is left is for another worker: `Lease.leaves_work`. `with_free` also leases the
        target's free partitions without due work, but no abandoned ones, if no other is leased alone.
        """
        with self._database.reading() as connection:
            due = due_of_target(connection, row_id, now)
        lease = None if due is None else self._claim_of(due, token, now, with_free=with_free)
        if due is not None and lease is not None:
            lease.abandoned = due.abandoned & lease.positions.keys()
        return lease

    def _claim_of(self, due: DueTarget, token: str, now: int, *, with_free: bool) -> Lease | None:
        if due.probe_at is not None:
            return self._claim_probe(due, token, now)
        groups = due.groups()
        if with_free and not due.alone:
            others = [place for place in due.free if place not in groups[0] and place not in due.abandoned]
            groups = [[*groups[0], *others][: DUE_WORK.max_quiet_partitions]]
        self._rng.shuffle(groups)
        for partitions in groups[: LEASES.max_tries]:
            if (lease := self.claim(due.row_id, partitions, token, now)) is not None:
                lease.leaves_work = len(groups) > 1 and not due.limited
                return lease
        return None

    def _claim_probe(self, due: DueTarget, token: str, now: int) -> Lease | None:
        """Lease one partition that probes whether the target is available again, unless another worker does so.

        One without refusals since the target's last delivery and with other than parked events is preferred. The choice
        among several is random: an event that the target refuses because of its content must not be the only one that
        is ever tried.
        """
        if not self._begin_probe(due, now):
            return None
        with self._database.reading() as connection:
            refused = read_refusals(connection, due.row_id, now).partitions
        fresh = [partition for partition in due.partitions if partition.partition not in refused]
        chosen = self._rng.choice([partition for partition in fresh if partition.has_events] or fresh or due.partitions)
        lease = self.claim(due.row_id, [chosen.partition], token, now)
        if lease is not None:
            lease.probing = True
        return lease

    @repeated_after_deadlock
    def _begin_probe(self, due: DueTarget, now: int) -> bool:
        """Return false if another worker has begun to probe the target."""
        t = tables.targets.c
        mine = (t.id == due.row_id, t.breaker != "closed", t.resume_at == due.probe_at)
        begins = tables.targets.update().where(*mine).values(resume_at=now + LEASES.probe_begins_ms)
        with self._database.committing() as connection:
            return bool(connection.execute(begins).rowcount)

    @repeated_after_deadlock
    def claim(self, row_id: int, partitions: Collection[int], token: str, now: int) -> Lease | None:
        """Lease those of a target's partitions that no worker has; return None if there are none."""
        c = tables.cursors.c
        lost = sa.case((c.lease_token.in_(["", REVOKED]), 0), else_=c.lost_leases + 1)
        with self._database.committing() as connection:
            claimed = connection.execute(
                tables.cursors.update()
                .where(own_cursors(row_id, partitions), is_free(tables.cursors, now))
                # In this order: MySQL computes each value with those before it.
                .ordered_values((c.lost_leases, lost), (c.lease_token, token), (c.leased_until, now + self._lease_ms))
            )
        if not claimed.rowcount:
            return None
        try:
            return self._claimed(row_id, partitions, token)
        except DatabaseUnavailable:  # otherwise nobody could claim them until the lease has expired
            with suppress(*DatabaseUnavailable):
                self._release(row_id, token)
            raise

    def _claimed(self, row_id: int, partitions: Collection[int], token: str) -> Lease | None:
        with self._database.reading() as connection:
            claimed = _read_claimed(connection, row_id, partitions, token)
            if claimed is None:
                return None
            # Where a rate limit allows fewer events than a turn reads, the first partitions get the tokens.
            positions = list(claimed.positions.items())
            self._rng.shuffle(positions)
            lease = Lease(row_id, token, dict(positions), epoch=claimed.log.epoch)
            lease.careful = claimed.lost_leases >= LEASES.max_lost
            lease.has_parked, lease.has_redeliveries = claimed.has_parked, claimed.has_redeliveries
            if claimed.has_replays:
                replays = replay_partitions(connection, row_id)
                lease.replays += [replay for replay in replays if replay.partition in lease.positions]
        return self._claimed(row_id, partitions, token) if self._begins_epoch(claimed.log) else lease

    @repeated_after_deadlock
    def _begins_epoch(self, state: log_head.LogState) -> bool:
        """Begin a new epoch of the log if the outbox is, or may be, an older state of itself; return whether it is."""
        if not state.is_current:
            reason = "PostgreSQL has begun a new timeline, by a failover or a restore"
        elif state.epoch == self._state.epoch and state.last_seq < self._state.last_seq:
            reason = f"the event log ends at {state.last_seq}, but event {self._state.last_seq} had been recorded"
        else:
            self._state = state
            return False
        with self._database.writing() as connection:
            begun = log_head.begin_epoch(connection, reason, instead_of=state.epoch)
        if begun:
            log.error(
                "the outbox database may be an older state of itself: %s; events recorded before, up to the failover or"
                " restore, may be lost: see docs/how-to/backup-and-restore.md",
                reason,
            )
        self._state = log_head.LogState(0, "", is_current=True)
        return True

    @repeated_after_deadlock
    def renew(self, lease: Lease, now: int) -> bool:
        """Extend the lease to `lease_ms` from now; return False if it is lost, even for only one of its partitions."""
        with self._database.committing() as connection:
            renewed = connection.execute(
                tables.cursors.update()
                .where(own_cursors(lease.target_id), tables.cursors.c.lease_token == lease.token)
                .values(leased_until=at_least(tables.cursors.c.leased_until, now + self._lease_ms))
            )
        return bool(renewed.rowcount == len(lease.positions))

    def release(self, lease: Lease) -> None:
        """Release every partition of the lease."""
        self._release(lease.target_id, lease.token)

    @repeated_after_deadlock
    def _release(self, target_id: int, token: str) -> None:
        with self._database.committing() as connection:
            connection.execute(
                tables.cursors.update()
                .where(own_cursors(target_id), tables.cursors.c.lease_token == token)
                .values(lease_token="", leased_until=0)
            )

    @repeated_after_deadlock
    def disown(self) -> None:
        """Take the leases of this process as an operator would: no event is to blame for its end, which is near."""
        mine = tables.cursors.c.lease_token.startswith(_holder(), autoescape=True)
        with self._database.committing() as connection:
            connection.execute(tables.cursors.update().where(mine).values(lease_token=REVOKED))

    def has_work(self, lease: Lease) -> bool:
        """Return whether a released lease's partitions have work, due now or later, that the drain has to know of.

        The drain does not see the work of a leased partition: an event may have been recorded after the holder had
        looked for the last time.
        """
        if any(replay.position < replay.until for replay in lease.replays):
            return True
        with self._database.reading() as connection:
            return has_work(connection, lease.target_id, lease.positions)

    def check_epoch(self) -> None:
        """Begin a new epoch of the log if the outbox is an older state of itself, also where nobody claims anything."""
        with self._database.reading() as connection:
            state = log_head.read_state(connection)
        self._begins_epoch(state)


def has_work(connection: sa.Connection, target_id: int, positions: Mapping[int, int]) -> bool:
    """Return whether partitions have events of a target after these positions (by partition), or parked ones."""
    partitions = (PartitionOf(target_id, partition) for partition in positions)
    return bool(unread_after(connection, target_id, positions)) or any(
        True for _ in with_parked(connection, partitions)
    )


def fence(connection: sa.Connection, lease: Lease, partition: int) -> None:
    """Lock the cursor of a lease's partition until the transaction ends. Raises `LeaseLost` if another one has it."""
    c = tables.cursors.c
    mine = (own_cursors(lease.target_id, [partition]), c.lease_token == lease.token)
    if connection.execute(sa.select(c.partition).where(*mine).with_for_update()).first() is None:
        raise LeaseLost(f"partition {partition} of target {lease.target_id}")


def claimed_partitions(connection: sa.Connection, target_ids: Collection[int], now: int) -> set[tuple[int, int]]:
    """Return the partitions of some targets that workers have at `now`, as (target's row id, partition)."""
    c = tables.cursors.c
    taken = sa.select(c.target_id, c.partition).where(
        c.target_id.in_(target_ids), c.replay_id == WHOLE_LOG, sa.not_(is_free(tables.cursors, now))
    )
    return {(row.target_id, row.partition) for row in connection.execute(taken)}


def leased_partitions(connection: sa.Connection, now: int) -> dict[int, int]:
    """Return how many partitions of each target (by row id) workers have leased at `now`."""
    c = tables.cursors.c
    leased = sa.select(c.target_id, sa.func.count()).where(
        c.replay_id == WHOLE_LOG, sa.not_(is_free(tables.cursors, now))
    )
    return {int(row[0]): int(row[1]) for row in connection.execute(leased.group_by(c.target_id))}


def lease_holders(connection: sa.Connection, now: int) -> dict[str, dict[int, int]]:
    """Return for each process that has leases at `now`, `HOST:PID`, how many partitions of which target (row id)."""
    c = tables.cursors.c
    leased = sa.select(c.lease_token, c.target_id, sa.func.count()).where(
        c.replay_id == WHOLE_LOG, sa.not_(is_free(tables.cursors, now)), c.lease_token != REVOKED
    )
    holders: dict[str, dict[int, int]] = {}
    for token, target_id, count in connection.execute(leased.group_by(c.lease_token, c.target_id)):
        held = holders.setdefault(str(token).rpartition(":")[0], {})
        held[target_id] = held.get(target_id, 0) + count
    return holders


def at_least(column: sa.ColumnElement[int], value: sa.ColumnElement[int] | int) -> sa.ColumnElement[int]:
    """Return the greater of a column and a value: a value read before waiting for a lock must not decrease it."""
    return sa.case((column < value, value), else_=column)


def replay_partitions(connection: sa.Connection, target_id: int) -> Iterator[ReplayPartition]:
    """Yield the unfinished partitions of a target's replays, older replays first."""
    c, r = tables.cursors.c, tables.replays.c
    query = (
        sa.select(c.replay_id, c.partition, c.position, c.until, r.since, r.before, r.bucket, r.prefix, r.events)
        .join_from(tables.cursors, tables.replays, c.replay_id == r.id)
        .where(c.target_id == target_id, c.replay_id > WHOLE_LOG, c.position < c.until)
        .order_by(c.replay_id)
    )
    for row in connection.execute(query):
        yield ReplayPartition(*row[:8], tuple(orjson.loads(row.events)))
