"""The operations that the explorer runs against each other, the outbox they meet, and what must hold afterwards."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.settings import Settings
from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.counters import audit
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters, Retries
from app.outbox.column_values import NEVER, WHOLE_LOG
from app.outbox.declared import StoredTarget, UnknownTarget
from app.outbox.delivery import redelivery
from app.outbox.delivery.availability import record_opening
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.future_times import bring_back_future_times
from app.outbox.delivery.leases import Lease, LeaseLost
from app.outbox.delivery.settlement_store import Settlement, SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log, key_hash
from app.outbox.log.retention import purge
from app.outbox.log_head import LogState
from app.resources.undelivered import DeadLetterFilter, RetryFilter
from app.rules.model import Rule
from tests.support.builders import add_target, event, registry
from tests.support.interleaving import Side
from tests.support.scripted_target import Courier, ScriptedTarget
from workers.delivery.namespace_policy import Policy, SkipReason
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import BatchRecord, Delivery, settle
from workers.runtime import Runtime

_LEASE = 600_000  # ms: no lease runs out while an operation is stopped
_LATER = 3_600_000


@dataclass(frozen=True)
class Prepared:
    """A settlement that the stopped worker is about to write, and the events that it has sent."""

    settlement: Settlement
    sent: frozenset[str]


@dataclass
class World:
    """One outbox, put back before each run, and what the operations did that no table shows.

    Target `x` gets everything. Of object `k` there are a delivered event, a parked one that is due, a dead letter after
    it, and a pending one; of object `j`, in another partition, a dead letter, a delivered and a pending event. A worker
    that was stopped for longer than its lease still has its token in both partitions' cursors.
    """

    database: Database
    target: TargetId
    row_id: int
    lease: Lease
    parked: "Prepared"
    pending: "Prepared"
    log: Log  # which has appended to this outbox last
    rows: Mapping[str, Sequence[Mapping[str, Any]]]
    base: frozenset[tuple[int, str]]
    delivered: set[tuple[int, str]] = field(default_factory=set)  # row id of the opened target, and event id
    claimed: list[tuple[int, ...]] = field(default_factory=list)
    letters: frozenset[tuple[int, int, int]] = frozenset()  # dead letters that there are at the beginning
    written: set[str] = field(default_factory=lambda: set(tables.metadata.tables))  # tables that are not what they were
    retained: list[frozenset[str]] = field(default_factory=list)  # ids that a replay found in the log when it began

    def reset(self) -> None:
        """Make the outbox what it was."""
        self.delivered = set(self.base)
        self.claimed.clear()
        self.retained.clear()
        table_names = [
            table
            for table in tables.metadata.sorted_tables
            if self.written & {table.name, *(key.column.table.name for key in table.foreign_keys)}
        ]
        self.written.clear()
        with self.database.writing() as connection:
            for table in reversed(table_names):
                connection.execute(table.delete())
            for table in table_names:
                if self.rows[table.name]:
                    connection.execute(table.insert(), self.rows[table.name])


def build(database: Database) -> World:
    """The outbox that every run begins with, on a fresh database of two partitions."""
    target = add_target(database)
    stored = registry(database).target(target)
    row_id = stored.row_id
    record_opening(database, row_id, stored.revision, now_ms())  # else each delivery would have a statement more
    refused: dict[str, Outcome] = {}
    courier = Courier(database, target, ScriptedTarget(lambda one: refused.get(one.id, DELIVERED)), lease_ms=_LEASE)
    log = Log(database)
    k, j = _apart()
    first, second, third = event(k), event(k), event(k)
    dead = event(j)
    log.append([[first, second, third, dead, event(j)]])
    refused |= {third.id: Rejected("no"), dead.id: Rejected("no")}
    courier.run()
    refused[second.id] = Failed("perhaps later")
    Replays(database).begin(target, Selection(prefix=k))
    courier.run(turns=0)
    log.append([[event(k), event(j)]])
    lease = courier.leases.claim(row_id, range(2), "stopped", now_ms())
    assert lease is not None
    with database.writing() as connection:
        connection.execute(
            tables.cursors.update().where(tables.cursors.c.lease_token == "stopped").values(leased_until=1)
        )
    with courier.store.reading(lease) as reader:
        batch = reader.load(10)
        heads = reader.waiting(batch.events)
        pending = _prepared(
            [
                Delivery(one, SkipReason.BEHIND_PARKED)
                if one.object in heads
                else Delivery(one, one.event, outcome=DELIVERED)
                for one in batch.events
            ],
            courier,
            lease,
            batch.scanned,
        )
        tried = reader.load_parked(reader.due_objects(now_ms(), 10), 10)
        parked = _prepared([Delivery(one.logged, one.logged.event, one, DELIVERED) for one in tried], courier, lease)
    with database.reading() as connection:
        rows = {
            table.name: [dict(row) for row in connection.execute(sa.select(table)).mappings()]
            for table in tables.metadata.sorted_tables
        }
    base = frozenset((row_id, one.id) for one in courier.scripted.got)
    assert [len(rows[name]) for name in ("parked", "dead_letters")] == [1, 2]
    letters = frozenset((row["target_id"], row["partition"], row["seq"]) for row in rows["dead_letters"])
    return World(database, target, row_id, lease, parked, pending, log, rows, base, letters=letters)


def _prepared(
    deliveries: Sequence[Delivery], courier: Courier, lease: Lease, read_to: Mapping[int, int] | None = None
) -> Prepared:
    batch = BatchRecord(lease.target_id, deliveries, 0.0, lease.positions, read_to or {})
    sent = frozenset(one.logged.event.id for one in deliveries if one.outcome == DELIVERED)
    return Prepared(settle(batch, courier.schedule, now_ms(), Random(0)), sent)


def _apart() -> tuple[str, str]:
    """Two keys of different partitions."""
    keys = [f"key-{number}" for number in range(20)]
    return keys[0], next(key for key in keys if key_hash("images", key) % 2 != key_hash("images", keys[0]) % 2)


class Worker:
    """What one of the two sides works with: a worker's context, whose target takes everything."""

    def __init__(self, name: str, url: str, folder: Path) -> None:
        environ = {
            "BUCKETWIRE_DATABASE_URL": url,
            "BUCKETWIRE_DATA_DIR": str(folder),
            "BUCKETWIRE_LEASE_TTL": f"{_LEASE // 1000}s",
        }
        self.context = Runtime(Settings.from_environ(environ))
        self.store = SettlementStore(self.context.database, _LEASE)
        self.side = Side(name, self.context.database)
        self.world: World
        self.context.pool.target = self._pooled  # type: ignore[method-assign]

    def _pooled(self, stored: StoredTarget) -> PooledTarget:
        def take(one: Event) -> Outcome:
            self.world.delivered.add((stored.row_id, one.id))
            return DELIVERED

        return PooledTarget(
            str(stored.target), ScriptedTarget(take), Policy.LOG, RetrySchedule(), 1000, BatchSizer(10, 10)
        )

    def forget(self) -> None:
        """Know nothing of the log, as a process that has just begun: a reset outbox is an older state of itself.

        Of several partitions choose the same as in the run before, or its orders could not be told from others.
        """
        self.context.leases._state = LogState(0, "", is_current=True)
        self.context.leases._rng.seed(1)

    def close(self) -> None:
        """Close its connections."""
        self.context.close()


Operation = Callable[[Worker, World], None]


def append(worker: Worker, world: World) -> None:
    """A frontend's request with one event of each object."""
    k, j = _apart()
    log = Log(worker.context.database)
    # As after its first append: what a log remembers, whatever the runs before have changed.
    kept = {name: kept for name, kept in vars(world.log).items() if name not in ("_database", "_clock")}
    vars(log).update(copy.deepcopy(kept), _clock=world.log._clock)
    log.append([[event(k), event(j)]])


def drain(worker: Worker, world: World) -> None:
    """A drain."""
    DueWork(worker.context.database).find(now_ms())
    worker.context.leases.check_epoch()


def claim(worker: Worker, world: World) -> None:
    """A worker that takes what is due of the stopped one's partitions, and begins."""
    lease = worker.context.leases.claim_due(world.row_id, uuid4().hex, now_ms())
    if lease is not None:
        world.claimed.append(tuple(lease.positions))


def renew(worker: Worker, world: World) -> None:
    """The stopped worker's renewal, late."""
    worker.context.leases.renew(copy.deepcopy(world.lease), now_ms())


def release(worker: Worker, world: World) -> None:
    """The stopped worker gives back what it held."""
    worker.context.leases.release(copy.deepcopy(world.lease))


def settle_parked_event(worker: Worker, world: World) -> None:
    """The stopped worker settles the parked event, which was delivered."""
    _settle(worker, world, world.parked)


def settle_pending_events(worker: Worker, world: World) -> None:
    """The stopped worker settles the next events of both partitions; one goes behind a parked one."""
    _settle(worker, world, world.pending)


def _settle(worker: Worker, world: World, prepared: Prepared) -> None:
    world.delivered |= {(world.row_id, event_id) for event_id in prepared.sent}
    worker.store.settle(copy.deepcopy(world.lease), copy.deepcopy(prepared.settlement), now_ms())


def deliver(worker: Worker, world: World) -> None:
    """A task: look the target up, claim, work off everything that is due, release."""
    worker.context.deliverer.deliver(world.target)


def begin_replay(worker: Worker, world: World) -> None:
    """An operator begins a replay of everything."""
    begun = Replays(worker.context.database).begin(world.target, Selection())
    c, e = tables.cursors.c, tables.events.c
    query = sa.select(e.id).where(
        sa.exists().where(
            c.replay_id == begun.replay_id, c.partition == e.partition, c.position < e.seq, e.seq <= c.until
        )
    )
    with world.database.reading() as connection:  # not of this side, so nothing happens in between
        world.retained.append(frozenset(connection.execute(query).scalars()))


def replay_dead_letters(worker: Worker, world: World) -> None:
    """An operator replays every dead letter."""
    DeadLetters(worker.context.database).replay(DeadLetterFilter())


def purge_dead_letters(worker: Worker, world: World) -> None:
    """An operator throws every dead letter away."""
    DeadLetters(worker.context.database).purge(DeadLetterFilter())


def give_up(worker: Worker, world: World) -> None:
    """An operator gives every retried event up."""
    Retries(worker.context.database).give_up(RetryFilter())


def purge_log(worker: Worker, world: World) -> None:
    """The retention removes what is done with, whatever its age."""
    purge(worker.context.database, now_ms() + _LATER)


def pause(worker: Worker, world: World) -> None:
    """An operator pauses the target."""
    registry(worker.context.database).pause(world.target, "for a test")


def resume(worker: Worker, world: World) -> None:
    """An operator resumes the target, which has a retried event tried at once."""
    registry(worker.context.database).resume(world.target)


def recreate(worker: Worker, world: World) -> None:
    """An operator removes the target with all it has and makes one of the same name."""
    found = registry(worker.context.database)
    found.remove(world.target, force=True)
    add_target(worker.context.database)


def recreate_and_append(worker: Worker, world: World) -> None:
    """As `recreate`; then an event is recorded for the new target."""
    recreate(worker, world)
    append(worker, world)


def change_rules(worker: Worker, world: World) -> None:
    """An operator replaces the rules of a bucket."""
    rule = Rule(bucket="images", events=("s3:ObjectCreated:*",), prefix="", suffix="", target=world.target, rule_id="r")
    registry(worker.context.database).replace_rules("images", [rule])


def request_redelivery(worker: Worker, world: World) -> None:
    """A worker has lost its lease, and a request of it may arrive late."""
    objects = {(row["partition"], row["key_hash"]): row["seq"] for row in world.rows["events"]}
    redelivery.request(worker.context.database, world.row_id, objects)
    redelivery.request(worker.context.database, world.row_id, objects, now_ms() + _LATER)


def bring_back_times(worker: Worker, world: World) -> None:
    """The drain repairs times, after the clock was ahead when they were stored."""
    bring_back_future_times(worker.context.database, _LEASE, now_ms() - 10 * _LATER)


OPERATIONS: Sequence[Operation] = (
    append, drain, claim, renew, release, request_redelivery, bring_back_times,
    settle_parked_event, settle_pending_events, deliver, begin_replay,
    replay_dead_letters, purge_dead_letters, give_up, purge_log, pause, resume, recreate, change_rules,
)  # fmt: skip

_OF_ONE_THREAD = {settle_parked_event, settle_pending_events, release}  # of the stopped worker, one after the other


def pairs() -> Iterator[tuple[Operation, Operation]]:
    """Every two operations that can run at once, also one with itself."""
    for place, first in enumerate(OPERATIONS):
        for second in OPERATIONS[place:]:
            if not {first, second} <= _OF_ONE_THREAD:
                yield first, second


def violations(world: World, workers: Sequence[Worker]) -> list[str]:
    """What of the outbox's promises does not hold after a run; nothing is at work any more."""
    found = [
        f"{worker.side.name} failed: {worker.side.failure!r}"
        for worker in workers
        if worker.side.failure is not None and not isinstance(worker.side.failure, LeaseLost | UnknownTarget)
    ]
    found += [f"{worker.side.name} was refused: {text}" for worker in workers for text in worker.side.refused]
    for entry in audit(world.database):
        figures = (entry.counters.pending, entry.counters.parked, entry.counters.dead, entry.counters.purged)
        if entry.difference or min(figures) < 0:
            found.append(f"the counters do not balance: {entry}")
    taken = [partition for partitions in world.claimed for partition in partitions]
    if len(taken) != len(set(taken)):
        found.append(f"partitions were claimed twice: {world.claimed}")
    with world.database.reading() as connection:
        table_names = {
            table.name: connection.execute(sa.select(table)).all()
            for table in (tables.events, tables.cursors, tables.parked, tables.dead_letters, tables.targets)
        }
    return found + list(_wrong(world, table_names))


def _wrong(world: World, table_names: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    logged = {(row.partition, row.seq): row for row in table_names["events"]}
    positions = {
        (row.target_id, row.partition): row.position for row in table_names["cursors"] if row.replay_id == WHOLE_LOG
    }
    parked = {(row.target_id, row.partition, row.seq) for row in table_names["parked"]}
    dead = {(row.target_id, row.partition, row.seq) for row in table_names["dead_letters"]}
    if both := parked & dead:
        yield f"parked and dead at once: {both}"
    for target_id, partition, seq in parked | dead:
        if (partition, seq) not in logged:
            yield f"the event of {(target_id, partition, seq)} is gone from the log"
        if seq > positions[target_id, partition]:
            yield f"{(target_id, partition, seq)} is ahead of its cursor"
    purged = world.letters if any(row.purged for row in table_names["targets"]) else frozenset()
    for (partition, seq), row in logged.items():
        for target_id in map(int, filter(None, row.targets.split(","))):
            place = (target_id, partition, seq)
            passed = seq <= positions.get((target_id, partition), 0)
            if passed and place not in parked | dead | purged and (target_id, row.id) not in world.delivered:
                yield f"{place} counts as settled and was never delivered"
    yield from _headless(table_names["parked"])
    yield from _missent(world, {row.id: row.targets for row in logged.values()})
    if any(row.id == world.row_id for row in table_names["targets"]):
        left = {row.id for row in logged.values()}
        for retained in world.retained:
            if gone := retained - left:
                yield f"a running replay lost events: {gone}"


def _headless(parked: Sequence[Any]) -> Iterator[str]:
    heads: dict[tuple[int, int, int], Any] = {}
    for row in sorted(parked, key=lambda row: row.seq):
        heads.setdefault((row.target_id, row.partition, row.key_hash), row)
    for place, row in heads.items():
        if row.not_before >= NEVER:
            yield f"no parked event of {place} is ever due"


def _missent(world: World, targets: Mapping[str, str]) -> Iterator[str]:
    for row_id, event_id in world.delivered:
        if f",{row_id}," not in targets.get(event_id, f",{row_id},"):
            yield f"an event for {targets[event_id]} was sent to target {row_id}"
