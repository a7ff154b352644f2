"""A target whose answers a test decides: what is at test here is the outbox and its partitions, on real databases."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from uuid import uuid4

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.counters import audit
from app.outbox.delivery.leases import Leases
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import settled
from tests.support.builders import registry
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Outcome, Rejected
from workers.delivery.partition_worker import LeaseSummary, PartitionWorker
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.targets.base import NO_LEASE, LeaseCheck
from workers.telemetry.attempt_recorder import AttemptRecorder

Script = Callable[[Event], Outcome]


@dataclass
class ScriptedTarget:
    """Keeps the contract of `workers.targets.base`; `got` is what arrived, in order."""

    script: Script = lambda event: DELIVERED
    got: list[Event] = field(default_factory=list)
    lease: LeaseCheck = NO_LEASE  # of the last call

    def open(self) -> None:
        """Nothing to connect to."""

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:
        """Answer by the script, stopping each object at its first event that does not get through."""
        self.lease = lease
        stopped: set[str] = set()
        outcomes: list[Outcome] = []
        for event in events:
            if event.path in stopped:
                outcomes.append(NOT_ATTEMPTED)
                continue
            lease.check()
            outcome = self.script(event)
            if outcome == DELIVERED:
                self.got.append(event)
            elif not isinstance(outcome, Rejected):
                stopped.add(event.path)
            outcomes.append(outcome)
        return outcomes

    def close(self) -> None:
        """Nothing to close."""

    def keys(self) -> list[str]:
        """The keys of what arrived."""
        return [event.key for event in self.got]


@dataclass
class Courier:
    """A worker in miniature: claims every partition of one target and works it off with a scripted target."""

    database: Database
    target: TargetId
    scripted: ScriptedTarget = field(default_factory=ScriptedTarget)
    policy: Policy = Policy.LOG
    schedule: RetrySchedule = field(default_factory=lambda: RetrySchedule(base=0, cap=0))
    lease_ms: int = 10_000
    batch: int = 10
    recorder: AttemptRecorder | None = None
    rate: int = 0
    clock: Callable[[], int] = now_ms

    def __post_init__(self) -> None:
        self.leases = Leases(self.database, self.lease_ms)
        self.store = SettlementStore(self.database, self.lease_ms)

    def partitions(self, now: int | None = None) -> PartitionWorker | None:
        """A claim of whatever is free, ready to work."""
        row_id = registry(self.database).target(self.target).row_id
        moment = now_ms() if now is None else now
        lease = self.leases.claim(row_id, range(64), uuid4().hex, moment)
        if lease is None:
            return None
        target = PooledTarget(
            str(self.target), self.scripted, self.policy, self.schedule, 1000, BatchSizer(self.batch, self.batch),
            rate=self.rate,
        )  # fmt: skip
        observers = [] if self.recorder is None else [self.recorder]
        return PartitionWorker(self.store, target, lease, self.clock, observers=observers)

    def run(self, *, turns: int = 100, now: int | None = None) -> LeaseSummary:
        """Work off everything that is due, and give the partitions back."""
        partitions = self.partitions(now)
        assert partitions is not None
        left = iter(range(turns))
        tally = partitions.work_off(lambda: next(left, None) is None)
        self.leases.release(partitions._lease)
        return tally


def assert_counters_balance(database: Database) -> None:
    """The counters agree with what is counted in the log, and the room of each target's queue with its events."""
    audited = audit(database)
    assert [(str(entry.counters.target), entry.difference) for entry in audited if entry.difference] == []
    counters = {entry.counters.target: entry.counters for entry in audited}
    p, t = tables.parked.c, tables.targets.c
    again = sa.select(sa.func.count()).select_from(tables.parked).where(p.target_id == t.id, p.replayed)
    query = sa.select(t.id, t.type, t.name, t.recorded, again.scalar_subquery().label("again"))
    with database.reading() as connection:
        for row in connection.execute(query).all():
            entry = counters[TargetId(row.type, row.name)]
            taking_room = entry.pending + entry.parked - row.again
            assert row.recorded - settled(connection, row.id) == taking_room, str(entry.target)


def assert_in_order(recorded: Iterable[Event], got: Iterable[Event], never: Iterable[Event] = ()) -> None:
    """Each object's events arrived in the order recorded, and all of them but those of `never`.

    Whatever arrives follows directly on one that arrived before it, or repeats an earlier one: nothing is skipped.
    """
    gone = {event.id for event in never}
    lines: dict[str, list[str]] = defaultdict(list)
    for event in recorded:
        if event.id not in gone:
            lines[event.path].append(event.id)
    reached: dict[str, int] = defaultdict(int)
    for event in got:
        place = lines[event.path].index(event.id)
        assert place <= reached[event.path], f"{event.path} skipped an event"
        reached[event.path] = max(reached[event.path], place + 1)
    assert {path: len(line) for path, line in lines.items() if line} == dict(reached)


def sometimes(rng: Random, **chances: tuple[float, Outcome]) -> Script:
    """A script that gives each outcome with its chance and delivers otherwise."""

    def script(event: Event) -> Outcome:
        drawn = rng.random()
        for chance, outcome in chances.values():
            if drawn < chance:
                return outcome
            drawn -= chance
        return DELIVERED

    return script
