"""Lease partitions: offer those with due work, let one worker at a time claim them, renew and release the leases.

A partition of a target is free, offered (the drain has sent a wake-up for it) or claimed (a worker has a lease, guarded
by a fencing token). A wake-up grants no right: the first worker to claim the partition gets the lease. So a wake-up
that is lost, late or duplicated is harmless.

    free ──offer──> offered ──claim──> claimed ──release──> free
      ^                │                  │
      └── lease ran out ┴──────────────────┘
"""

import logging
import os
import re
import secrets
import socket
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from random import Random

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import log_head, tables
from app.outbox.delivery.due_work import OFFERED, DuePartition, due_partitions
from app.outbox.delivery.idle_cursors import IdleCursors
from app.outbox.delivery.isolation import TargetIsolation
from app.outbox.delivery.log_ahead import has_work, read_work_kinds
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.markers import NEVER, WHOLE_LOG

log = logging.getLogger("bucketwire.outbox")

_MOST_FREE = 64  # partitions that a claim may take beyond those of its wake-up; more cost more to search than they save
_LIMITED_APART = 100  # ms between two wake-ups for a target whose rate limit is in use
_POSTPONED = 1_000  # ms until partitions are offered again whose wake-up was postponed
_LONGEST_HOST = 39  # characters; with the longest process id and the random part, the column has 64


def new_token() -> str:
    """Return a fencing token that no other lease has. It begins with `HOST:PID:` of this process, for people."""
    host = re.sub(r"[^A-Za-z0-9.-]", "", socket.gethostname())[:_LONGEST_HOST]
    return f"{host}:{os.getpid()}:{secrets.token_hex(8)}"


class LeaseLost(Exception):
    """Another worker may have these partitions now; nothing of this settlement was written."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Partitions of one target that have due work: the content of a wake-up for the target's queue."""

    target: TargetId
    partitions: tuple[int, ...]


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
    has_free: bool = False  # most of its partitions were claimed without a wake-up, so few of them have events
    # What the claim has seen, so that the first turn need not query it again.
    head: int | None = None  # the log's head; None if it has to be read
    has_parked: bool = True  # whether the partitions may have parked events
    has_redeliveries: bool = True  # whether redeliveries may be requested for them


class Leases:
    """Offer, claim, renew and release partitions. Times are milliseconds; a lease expires `lease_ms` after renewal."""

    def __init__(self, database: Database, lease_ms: int) -> None:
        self._database = database
        self._lease_ms = lease_ms
        self._rng = Random()  # noqa: S311 - which partition is first, not a secret
        self._isolation = TargetIsolation(database)
        self._idle_cursors = IdleCursors(database)
        self._state = log_head.LogState(0, "", is_current=True)  # of the log, as it was read last
        self.next_at = NEVER  # when more work may be due than the last `offer` found, without a new event (ms)

    def offer(self, now: int, queued: Callable[[TargetId], int] = lambda _: 0) -> list[Offer]:
        """Mark every free partition with due work as offered, and return the offers. Safe to run concurrently.

        `queued` returns how many wake-ups wait in a target's queue. Offers that no worker has claimed within `lease_ms`
        are repeated, the oldest first, but only as many as wake-ups are missing in the queue: if all workers are busy,
        repeated wake-ups would delay those of other partitions.
        """
        offers: list[Offer] = []
        work = due_partitions(self._database, self._isolation, now)
        self.next_at = work.next_at
        for (target_id, target), rows in groupby(work.partitions, _target):
            due = list(rows)
            offered = partial(self._offered, target_id, target, due, now, queued)
            self._isolation.run([target_id], lambda _: offers.extend(offered()))  # noqa: B023
        return offers

    def _offered(
        self, target_id: int, target: TargetId, due: Sequence[DuePartition], now: int, queued: Callable[[TargetId], int]
    ) -> Iterator[Offer]:
        found = self._probed(target_id, due) if due[0].probing else due
        offered = {row.partition: row.offered for row in found if row.offered}
        groups = grouped([(row.partition, row.busy) for row in found])
        again = [partitions for partitions in groups if offered.keys() >= set(partitions)]
        again.sort(key=lambda partitions: min(offered[partition] for partition in partitions))
        missing = max(0, self._expected(target_id) - queued(target)) if again else 0
        lost, waiting = again[:missing], again[missing:]
        fresh = [partitions for partitions in groups if partitions not in again]
        if due[0].limited and len(fresh) > 1:  # the first to deliver takes the tokens, and the others got none
            fresh = [self._rng.choice(fresh)]
            self.next_at = min(self.next_at, now + _LIMITED_APART)
        # Distinct expiries let wake-ups be counted and ordered by age.
        for place, partitions in enumerate([*waiting, *lost, *fresh]):
            if self._mark(target_id, partitions, now, now + self._lease_ms + place) and partitions not in waiting:
                yield Offer(target, partitions)

    def _probed(self, target_id: int, due: Sequence[DuePartition]) -> Sequence[DuePartition]:
        """Return the one due partition that probes whether the target is available again.

        An already offered partition is preferred, then one without refusals since the target's last delivery and with
        other than parked events. The choice among several is random: an event that the target refuses because of its
        content must not be the only one that is ever tried.
        """
        c, p = tables.cursors.c, tables.parked.c
        delivered_at = sa.select(sa.func.max(c.delivered_at)).where(c.target_id == target_id).scalar_subquery()
        query = (
            sa.select(p.partition)
            .where(p.target_id == target_id, p.refused_at > sa.func.coalesce(delivered_at, 0))
            .distinct()
        )
        with self._database.reading() as connection:
            refused = set(connection.execute(query).scalars())
        offered = [row for row in due if row.offered]  # its wake-up may still wait: a second one would not help
        fresh = [row for row in due if row.partition not in refused]
        return [self._rng.choice(offered or [row for row in fresh if row.waiting] or fresh or due)]

    def _expected(self, target_id: int) -> int:
        """Return how many wake-ups should wait in the target's queue: the partitions of one share their expiry."""
        c = tables.cursors.c
        query = sa.select(sa.func.count(c.leased_until.distinct())).where(
            _log_cursors(target_id), c.lease_token == OFFERED
        )
        with self._database.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def _mark(self, target_id: int, partitions: tuple[int, ...], now: int, until: int) -> bool:
        c = tables.cursors.c
        with self._database.committing() as connection:
            marked = connection.execute(
                tables.cursors.update()
                .where(_log_cursors(target_id), c.partition.in_(partitions), c.leased_until < now)
                .values(lease_token=OFFERED, leased_until=until)
            )
        return bool(marked.rowcount)

    def claim(
        self,
        row_id: int,
        partitions: Sequence[int],
        token: str,
        now: int,
        *,
        running: bool = False,
        with_free: bool = False,
    ) -> Lease | None:
        """Lease those of `partitions` that no worker has; return None if there are none or the target is unavailable.

        `row_id` identifies the target that the worker has read: one created since with the same name has another id.
        `running` says that the worker has just read that the target is running, so that it is not queried again. Then,
        `with_free` also leases the target's other partitions that no worker has and that are not offered.
        """
        probing, chosen = (False, partitions) if running else self._claimable(row_id, partitions, now)
        if not chosen:
            return None
        c = tables.cursors.c
        free = sa.or_(c.lease_token.in_(["", OFFERED]), c.leased_until < now)
        which = sa.and_(c.partition.in_(chosen), free)
        if running and with_free:
            which = sa.or_(which, sa.and_(c.leased_until < now, c.partition < _MOST_FREE))
        with self._database.committing() as connection:
            claimed = connection.execute(
                tables.cursors.update()
                .where(_log_cursors(row_id), which)
                .values(lease_token=token, leased_until=now + self._lease_ms)
            )
        if not claimed.rowcount:
            return None
        try:
            lease = self._claimed(row_id, token, probing=probing)
        except DatabaseUnavailable:  # otherwise nobody could claim them until the lease has expired
            with suppress(*DatabaseUnavailable):
                self._release(row_id, token)
            raise
        if lease is not None:
            lease.has_free = running and with_free
        return lease

    def _claimable(self, row_id: int, partitions: Sequence[int], now: int) -> tuple[bool, Sequence[int]]:
        """Return whether the target has to be probed, and the partitions that may be claimed now."""
        c, t = tables.cursors.c, tables.targets.c
        target = sa.select(t.breaker, t.resume_at).where(t.id == row_id, t.enabled, sa.not_(t.paused), t.problem == "")
        leased = sa.select(c.partition).where(
            _log_cursors(row_id), c.leased_until >= now, c.lease_token.not_in(["", OFFERED])
        )
        with self._database.reading() as connection:
            row = connection.execute(target).one_or_none()
            if row is None:
                return False, ()
            if row.breaker == "closed":
                return False, partitions
            if row.resume_at <= now and not connection.execute(leased).first():
                return True, [self._rng.choice(partitions)]
        # Its wake-up is used up. If these partitions stayed offered, none could probe for `lease_ms`.
        offered = sa.and_(_log_cursors(row_id), c.partition.in_(partitions), c.lease_token == OFFERED)
        with self._database.committing() as connection:
            connection.execute(tables.cursors.update().where(offered).values(lease_token="", leased_until=0))
        return True, ()

    def _claimed(self, row_id: int, token: str, *, probing: bool) -> Lease | None:
        c = tables.cursors.c
        with self._database.reading() as connection:
            query = sa.select(c.partition, c.position).where(_log_cursors(row_id), c.lease_token == token)
            mine = [*connection.execute(query)]
            if not mine:
                return None
            # Where a rate limit allows fewer events than a turn reads, the first partitions get the tokens.
            self._rng.shuffle(mine)
            lease = Lease(row_id, token, {cursor.partition: cursor.position for cursor in mine}, probing=probing)
            kinds = read_work_kinds(connection, row_id, lease.positions)
            lease.epoch, lease.head = kinds.log.epoch, kinds.log.last_seq
            lease.has_parked, lease.has_redeliveries = kinds.has_parked, kinds.has_redeliveries
            if kinds.has_replays:
                replays = replay_partitions(connection, row_id)
                lease.replays += [replay for replay in replays if replay.partition in lease.positions]
        return self._claimed(row_id, token, probing=probing) if self._begins_epoch(kinds.log) else lease

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

    def renew(self, lease: Lease, now: int) -> bool:
        """Extend the lease to `lease_ms` from now; return False if it is lost, even for only one of its partitions."""
        with self._database.committing() as connection:
            renewed = connection.execute(
                tables.cursors.update()
                .where(_log_cursors(lease.target_id), tables.cursors.c.lease_token == lease.token)
                .values(leased_until=at_least(tables.cursors.c.leased_until, now + self._lease_ms))
            )
        return bool(renewed.rowcount == len(lease.positions))

    def release(self, lease: Lease) -> None:
        """Release every partition of the lease."""
        self._release(lease.target_id, lease.token)

    def _release(self, target_id: int, token: str) -> None:
        with self._database.committing() as connection:
            connection.execute(
                tables.cursors.update()
                .where(_log_cursors(target_id), tables.cursors.c.lease_token == token)
                .values(lease_token="", leased_until=0)
            )

    def postpone(self, row_id: int, partitions: Sequence[int], now: int) -> None:
        """Have those of `partitions` that no worker has offered again after a pause: their wake-up is used up."""
        c = tables.cursors.c
        free = sa.or_(c.lease_token.in_(["", OFFERED]), c.leased_until < now)
        with self._database.committing() as connection:
            connection.execute(
                tables.cursors.update()
                .where(_log_cursors(row_id), c.partition.in_(partitions), free)
                .values(lease_token=OFFERED, leased_until=now + _POSTPONED)
            )

    def end_pause(self, row_id: int, now: int) -> None:
        """Have the target's partitions that were postponed offered by the next drain, in the same order."""
        c = tables.cursors.c
        paused = sa.and_(c.lease_token == OFFERED, c.leased_until >= now, c.leased_until <= now + _POSTPONED)
        with self._database.committing() as connection:
            connection.execute(
                tables.cursors.update()
                .where(_log_cursors(row_id), paused)
                .values(leased_until=c.leased_until - _POSTPONED - 1)
            )

    def left(self, lease: Lease) -> bool:
        """Return whether a released lease's partitions have work, due now or later, that the drain has to know of.

        The drain does not see the work of a leased partition: an event may have been recorded after the holder had
        looked for the last time.
        """
        if any(replay.position < replay.until for replay in lease.replays):
            return True
        with self._database.reading() as connection:
            return has_work(connection, lease.target_id, lease.positions)

    def advance_idle(self, now: int) -> bool:
        """Move cursors that lag behind the log over other targets' events, up to the next event of their own target.

        Takes about half a second at most; the next call continues. Returns whether a cursor was moved: then `offer`
        may find more.
        """
        with self._database.reading() as connection:
            state = log_head.read_state(connection)
        self._begins_epoch(state)  # where nobody claims anything before a cursor is moved
        return self._idle_cursors.advance(state, now)


def fence(connection: sa.Connection, lease: Lease, partition: int) -> None:
    """Lock the cursor of a lease's partition until the transaction ends. Raises `LeaseLost` if another one has it."""
    c = tables.cursors.c
    mine = (_log_cursors(lease.target_id), c.partition == partition, c.lease_token == lease.token)
    if connection.execute(sa.select(c.partition).where(*mine).with_for_update()).first() is None:
        raise LeaseLost(f"partition {partition} of target {lease.target_id}")


def taken_partitions(connection: sa.Connection, target_ids: Collection[int], now: int) -> set[tuple[int, int]]:
    """Return the partitions of some targets that are leased or offered at `now`, as (target's row id, partition)."""
    c = tables.cursors.c
    taken = sa.select(c.target_id, c.partition).where(
        c.target_id.in_(target_ids), c.replay_id == WHOLE_LOG, c.leased_until >= now
    )
    return {(row.target_id, row.partition) for row in connection.execute(taken)}


def leased_partitions(connection: sa.Connection, now: int) -> dict[int, int]:
    """Return how many partitions of each target (by row id) workers have leased at `now`."""
    c = tables.cursors.c
    leased = sa.select(c.target_id, sa.func.count()).where(
        c.replay_id == WHOLE_LOG, c.leased_until >= now, c.lease_token.not_in(["", OFFERED])
    )
    return {int(row[0]): int(row[1]) for row in connection.execute(leased.group_by(c.target_id))}


def grouped(partitions: Sequence[tuple[int, bool]]) -> list[tuple[int, ...]]:
    """Group partitions (number, busy) into wake-ups: busy ones alone, so that workers share them; others together."""
    quiet = tuple(partition for partition, busy in partitions if not busy)
    return [(partition,) for partition, busy in partitions if busy] + ([quiet] if quiet else [])


def _target(due: DuePartition) -> tuple[int, TargetId]:
    return due.target


def at_least(column: sa.ColumnElement[int], value: sa.ColumnElement[int] | int) -> sa.ColumnElement[int]:
    """Return the greater of a column and a value: a value read before waiting for a lock must not decrease it."""
    return sa.case((column < value, value), else_=column)


def _log_cursors(target_id: int) -> sa.ColumnElement[bool]:
    return sa.and_(tables.cursors.c.target_id == target_id, tables.cursors.c.replay_id == WHOLE_LOG)


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
