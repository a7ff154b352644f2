"""A worker that goes on after its lease was lost: it stops, and what it may have written too late is put right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import orjson
import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.settings import Settings
from app.events.model import Effect, Event
from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.column_values import NEVER
from app.outbox.delivery import redelivery
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Leases
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log, key_hash
from app.outbox.policies import REDELIVERY
from app.resources.undelivered import DeadLetterFilter
from tests.services import until
from tests.support import databases
from tests.support.builders import DELETE, add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers import deliverer
from workers.delivery.lease_term import LeaseGuard
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.runtime import Runtime
from workers.targets.base import NO_LEASE, LeaseCheck

pytestmark = [pytest.mark.promise, databases.TWO]

LATER = 60_000  # ms: by then every lease has run out
MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"
ACCESSED = "s3:ObjectAccessed:Get"
HEX = "18E9E833E5D3{:04X}"


@dataclass
class OneTarget:
    """In place of a worker's targets: one whose answers the test decides."""

    scripted: ScriptedTarget
    policy: Policy

    def target(self, _: object) -> PooledTarget:
        schedule = RetrySchedule(base=3_600_000, cap=3_600_000)
        return PooledTarget("arn:test", self.scripted, self.policy, schedule, 1000, BatchSizer(100, 100))

    def close(self) -> None:
        """Nothing to close."""


@dataclass
class Two:
    """A worker that is stopped in a call, and another that goes on; `arrived` is what both wrote, in order."""

    database: Database
    target: TargetId
    stopped: Runtime
    scripted: ScriptedTarget
    other: Courier

    @property
    def arrived(self) -> list[Event]:
        return self.scripted.got

    def meanwhile(self, what: Callable[[], None]) -> None:
        """Stop the worker in its next call, after it was allowed to write and before it does, while `what` happens."""

        def script(_: Event) -> Outcome:
            self.scripted.script = lambda _: DELIVERED
            what()
            return DELIVERED

        self.scripted.script = script

    def take_over(self) -> None:
        """Find the stopped worker's leases run out, and work off all that is due."""
        self.other.run(now=now_ms() + LATER)

    def work_off(self) -> str:
        """What the worker that was stopped does, from a wake-up to its end."""
        return self.stopped.deliverer.deliver(self.target)


@pytest.fixture(params=[Policy.LOG])
def two(request: pytest.FixtureRequest, database: Database, tmp_path: Path) -> Iterator[Two]:
    url = database.url.render_as_string(hide_password=False)
    settings = {"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": url, "BUCKETWIRE_LEASE_TTL": "1s"}
    made = Settings.from_environ(settings | {"BUCKETWIRE_LEASE_MAX_WORK": "900ms"})
    target, scripted = add_target(database), ScriptedTarget()
    context = Runtime(made, OneTarget(scripted, request.param))  # type: ignore[arg-type]
    other = Courier(database, target, ScriptedTarget(got=scripted.got), request.param, batch=100)
    yield Two(database, target, context, scripted, other)
    context.close()


mirrored = pytest.mark.parametrize("two", [Policy.MIRROR], indirect=True)


def record(two: Two, *events: Event) -> None:
    Log(two.database).append([events])


def rows_after(got: Sequence[Event]) -> dict[str, str]:
    """What a namespace holds after these writes: path to the version or else the sequencer of its document."""
    rows: dict[str, str] = {}
    for one in got:
        thing = orjson.loads(one.record)["s3"]["object"]
        if one.effect is Effect.UPSERT:
            rows[one.path] = thing.get("versionId") or thing["sequencer"]
        elif one.effect is Effect.REMOVE or rows.get(one.path) == one.version:
            rows.pop(one.path, None)
    return rows


def counted(database: Database, table: sa.Table) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def assert_settled(two: Two) -> None:
    assert_counters_balance(two.database)
    assert counted(two.database, tables.parked) == counted(two.database, tables.redeliveries) == 0


def test_after_a_late_write_a_log_sees_the_newest_event_last(two: Two) -> None:
    first, second, elsewhere = event("k"), event("k"), event("other")
    record(two, first)

    def newer() -> None:
        record(two, second, elsewhere)
        two.take_over()

    two.meanwhile(newer)
    assert two.work_off() == "lease lost"
    assert [one.id for one in two.arrived if one.key == "k"] == [first.id, second.id, first.id]
    [due] = DueWork(two.database).find(now_ms() + LATER)  # or nobody would come and put it right
    assert due.target == two.target
    two.take_over()
    assert [one.id for one in two.arrived if one.key == "k"] == [first.id, second.id, first.id, second.id]
    assert [one.id for one in two.arrived if one.key == "other"] == [elsewhere.id]
    assert_settled(two)


def test_a_late_write_of_the_newest_event_asks_for_nothing(two: Two) -> None:
    only = event("k")
    record(two, only)
    two.meanwhile(two.take_over)
    assert two.work_off() == "lease lost"
    two.take_over()
    assert [one.id for one in two.arrived] == [only.id, only.id]
    assert_settled(two)


@mirrored
@pytest.mark.parametrize(
    ("life", "held"),
    [
        ([event("k", sequencer=HEX.format(2))], HEX.format(2)),
        pytest.param([event("k", name=DELETE, sequencer=HEX.format(2))], None, marks=databases.ONE),
        pytest.param(
            [event("k", sequencer=HEX.format(2)), event("k", name=ACCESSED, sequencer=HEX.format(2))],
            HEX.format(2),
            marks=databases.ONE,
        ),
        pytest.param([event("k", version="v2", sequencer=HEX.format(2))], "v2", marks=databases.ONE),
        pytest.param([event("k", version="m", name=MARKER, sequencer=HEX.format(2))], None, marks=databases.THREE),
        pytest.param(
            [event("k", version="v2", sequencer=HEX.format(3)), event("k", version="v1b", sequencer="18")],
            "v2",
            marks=databases.ONE,
        ),
        (
            [event("k", version="v2", sequencer=HEX.format(2)), event("k", version="v2", name=DELETE, sequencer="19")],
            "v1",
        ),
    ],
    ids=["put", "delete", "put and get", "version", "marker", "late version", "version gone"],
)
def test_after_a_late_write_a_mirror_holds_what_the_bucket_holds(two: Two, life: list[Event], held: str | None) -> None:
    version = "v1" if life[0].version else ""
    record(two, event("k", version=version, sequencer=HEX.format(1)))

    def newer() -> None:
        record(two, *life)
        two.take_over()

    two.meanwhile(newer)
    assert two.work_off() == "lease lost"
    two.take_over()
    assert rows_after(two.arrived) == ({"images/k": held} if held else {})
    assert_settled(two)


def test_a_worker_whose_lease_was_taken_sends_nothing_more_of_its_batch(two: Two) -> None:
    record(two, event("a"), event("b"), event("c"))

    def taken() -> None:
        two.take_over()
        two.arrived.clear()
        # The renewer finds out within a third of a lease.
        guard = two.scripted.lease
        until(lambda: not guard.holds, 10, what="the lease found lost")  # type: ignore[attr-defined]

    two.meanwhile(taken)
    assert two.work_off() == "lease lost"
    assert len(two.arrived) == 1, "the one that was on its way"
    two.take_over()
    assert_settled(two)


def test_a_lease_that_ran_out_but_was_not_taken_goes_on(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    record(two, event("a"), event("b"))
    monkeypatch.setattr(
        "workers.delivery.lease_term.LeaseGuard._keep", lambda _: None
    )  # as if the whole process stood still

    def stands_still() -> None:
        guard = two.scripted.lease
        until(lambda: not guard.holds, 10, what="the lease run out")  # type: ignore[attr-defined]

    two.meanwhile(stands_still)
    assert two.work_off() == "delivered=2"
    assert_settled(two)


@pytest.mark.slow
def test_a_call_of_five_leases_succeeds_while_the_lease_is_renewed(two: Two) -> None:
    record(two, event("a"), event("b"))
    began = now_ms()

    def lasts() -> None:
        until(lambda: now_ms() - began > 5_000, 10, what="five leases")
        row_id = registry(two.database).target(two.target).row_id
        assert Leases(two.database, 1000).claim_due(row_id, "other", now_ms()) is None

    two.meanwhile(lasts)
    assert two.work_off() == "delivered=2"
    assert_settled(two)


def test_what_was_in_hand_with_the_other_worker_is_put_right_once_it_is_settled(two: Two) -> None:
    """The late write falls between the other worker's write and its settlement."""
    first, second = event("k"), event("k")
    record(two, first)

    def newer() -> None:
        record(two, second)
        partitions = two.other.partitions(now_ms() + LATER)
        assert partitions is not None

        def late(one: Event) -> Outcome:
            if one.id == second.id:
                two.arrived.append(one)
                two.arrived.append(first)  # the late write
                lease = two.stopped.leases  # the stopped worker learns of its loss, and asks, before this is settled
                row = registry(two.database).target(two.target).row_id
                redelivery.request(two.database, row, {(partition_of(two, "k"), key_hash("images", "k")): 1})
                assert lease is not None
            return DELIVERED

        two.other.scripted.script = late
        left = iter(range(100))
        partitions.work_off(lambda: next(left, None) is None)
        two.other.leases.release(partitions._lease)
        two.other.scripted.script = lambda _: DELIVERED

    newer()
    two.take_over()
    assert two.arrived[-1].id == second.id
    assert_settled(two)


def partition_of(two: Two, key: str) -> int:
    e = tables.events.c
    with two.database.reading() as connection:
        return int(connection.execute(sa.select(e.partition).where(e.key == key).limit(1)).scalar_one())


def test_a_redelivery_takes_over_the_back_off_of_a_parked_event_and_waits_behind_none(two: Two) -> None:
    first, second, third = event("k"), event("k"), event("k")
    record(two, first, second)
    two.take_over()
    record(two, third)
    two.other.schedule = RetrySchedule(base=3_600_000, cap=3_600_000)
    two.other.scripted.script = lambda one: Failed("no")
    two.take_over()
    row = registry(two.database).target(two.target).row_id
    p = tables.parked.c
    with two.database.reading() as connection:
        before = connection.execute(sa.select(p.not_before)).scalar_one()
    two.other.scripted.script = lambda _: DELIVERED
    for _ in range(2):  # asked for twice, done once
        redelivery.request(two.database, row, {(partition_of(two, "k"), key_hash("images", "k")): 1})
        two.take_over()
    with two.database.reading() as connection:
        heads = [tuple(found) for found in connection.execute(sa.select(p.seq, p.not_before).order_by(p.seq))]
    assert heads == [(2, before), (3, NEVER)]
    assert_counters_balance(two.database)
    partitions = two.other.partitions(now_ms() + LATER)
    assert partitions is not None
    partitions._clock = lambda: before + 1
    partitions.work_off(lambda: False)
    assert [one.id for one in two.arrived] == [first.id, second.id, second.id, third.id]
    assert_settled(two)


def test_what_is_dead_purged_or_of_a_removed_target_is_not_delivered_again(two: Two) -> None:
    record(two, event("k"), event("k"))
    two.other.scripted.script = lambda one: Rejected("no")
    two.take_over()
    row = registry(two.database).target(two.target).row_id
    line = (partition_of(two, "k"), key_hash("images", "k"))
    two.other.scripted.script = lambda _: DELIVERED
    redelivery.request(two.database, row, {line: 1})
    two.take_over()
    assert two.arrived == []
    assert_settled(two)
    redelivery.request(two.database, row, {line: 1})
    DeadLetters(two.database).purge(DeadLetterFilter())
    registry(two.database).remove(two.target, force=True)
    redelivery.request(two.database, row, {line: 1})
    assert counted(two.database, tables.redeliveries) == 0


def test_a_redelivery_while_a_replay_runs_loses_nothing(two: Two) -> None:
    events = [event("k") for _ in range(5)]
    record(two, *events)
    two.take_over()
    two.arrived.clear()
    Replays(two.database).begin(two.target, Selection())
    row = registry(two.database).target(two.target).row_id
    redelivery.request(two.database, row, {(partition_of(two, "k"), key_hash("images", "k")): 1})
    two.take_over()
    assert two.arrived[-1].id == events[-1].id
    assert [one.id for one in two.arrived if one.id != events[-1].id] == [one.id for one in events[:-1]]
    assert_settled(two)


def test_an_unavailable_answer_after_the_lease_was_lost_is_put_right_too(two: Two) -> None:
    """What the target is said not to have taken may have got there all the same."""
    first, second = event("k"), event("k")
    record(two, first)

    def late(_: Event) -> Outcome:
        two.scripted.script = lambda _: DELIVERED
        record(two, second)
        two.take_over()
        two.arrived.append(first)
        return Unavailable("no answer in time")

    two.scripted.script = late
    assert two.work_off() == "lease lost"
    two.take_over()
    assert two.arrived[-1].id == second.id
    assert_settled(two)


def test_a_late_write_that_the_database_was_away_to_settle_is_put_right_too(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = event("k"), event("k")
    record(two, first)
    guards, settle = list[LeaseGuard](), SettlementStore.settle

    class Noted(LeaseGuard):
        def __enter__(self) -> Self:
            guards.append(self)
            return super().__enter__()

    def away(*_: object) -> None:
        monkeypatch.setattr(SettlementStore, "settle", settle)
        until(lambda: not guards[0].holds, 20, what="the lease lost")
        raise sa.exc.OperationalError("UPDATE", None, Exception("connection refused"))

    def newer() -> None:
        record(two, second)
        two.take_over()
        monkeypatch.setattr(SettlementStore, "settle", away)

    monkeypatch.setattr(deliverer, "LeaseGuard", Noted)
    two.meanwhile(newer)
    two.work_off()
    assert [one.id for one in two.arrived] == [first.id, second.id, first.id, second.id]
    assert_settled(two)


@dataclass
class Outage:
    """The outbox database as `redelivery.request` meets it; `asked` counts how often it was tried in vain."""

    request: Callable[..., None]
    over: bool = False
    asked: int = 0

    def __call__(self, *arguments: object, **options: object) -> None:
        if not self.over:
            self.asked += 1
            raise sa.exc.OperationalError("INSERT", None, Exception("connection refused"))
        self.request(*arguments, **options)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    made = Outage(redelivery.request)
    monkeypatch.setattr(redelivery, "request", made)
    return made


def lose_the_lease(two: Two) -> Event:
    """The stopped worker writes an object's older event after the other wrote its newer one, which is returned."""
    first, second = event("k"), event("k")
    record(two, first)

    def newer() -> None:
        record(two, second)
        two.take_over()

    two.meanwhile(newer)
    assert two.work_off() == "lease lost"
    assert two.arrived[-1].id == first.id
    return second


@pytest.mark.slow
def test_a_request_waits_for_the_database_however_long_that_is_away(two: Two, outage: Outage) -> None:
    newest = lose_the_lease(two)
    until(lambda: outage.asked > 3, 20, what="it is tried again and again")
    record(two, event("other"))
    assert two.work_off() == "the outbox database is unavailable", "nothing is claimed before the request is recorded"
    assert "other" not in [one.key for one in two.arrived]
    outage.over = True
    until(lambda: counted(two.database, tables.redeliveries) == 1, 20, what="recorded without being asked")
    assert two.work_off() == "delivered=2"
    assert [one.id for one in two.arrived if one.key == "k"][-1] == newest.id
    assert_settled(two)


def test_a_process_that_ends_has_some_time_left_to_record_its_requests(two: Two, outage: Outage) -> None:
    lose_the_lease(two)
    assert two.work_off() == "the outbox database is unavailable"
    outage.over = True
    two.stopped.redeliveries.close(10)
    assert counted(two.database, tables.redeliveries) == 1


def test_what_a_process_could_not_record_before_its_end_is_logged(
    two: Two, outage: Outage, caplog: pytest.LogCaptureFixture
) -> None:
    lose_the_lease(two)
    assert outage.asked
    two.stopped.redeliveries.close()
    assert "1 objects may hold an old state" in caplog.text


def test_no_lease_is_the_guard_of_whoever_is_alone() -> None:
    guard: LeaseCheck = NO_LEASE
    guard.check()


@databases.ALL
@mirrored
def test_a_request_without_an_answer_is_kept_with_its_due_time_while_the_database_is_away(
    two: Two, outage: Outage
) -> None:
    record(two, event("k"))
    two.scripted.script = lambda _: Unavailable("no answer in time", may_arrive=True)
    two.work_off()
    assert outage.asked
    assert counted(two.database, tables.redeliveries) == 0
    outage.over = True
    two.stopped.redeliveries.record()
    with two.database.reading() as connection:
        due = connection.execute(sa.select(tables.redeliveries.c.due)).scalar_one()
    assert due > now_ms() + REDELIVERY.latest_arrival_ms - LATER


def killed(two: Two) -> None:
    """A worker claims what is due, and is killed; its lease has run out since."""
    row_id, c = registry(two.database).target(two.target).row_id, tables.cursors.c
    assert Leases(two.database, 1_000).claim_due(row_id, "killed", now_ms()) is not None
    with two.database.writing() as connection:
        connection.execute(tables.cursors.update().where(c.lease_token == "killed").values(leased_until=1))


def requested_since(two: Two, began: int) -> int:
    """How many redeliveries are requested; none is due while a request of before may still arrive."""
    with two.database.reading() as connection:
        due = list(connection.execute(sa.select(tables.redeliveries.c.due)).scalars())
    assert not due or min(due) >= began + REDELIVERY.latest_arrival_ms
    return len(due)


@pytest.mark.parametrize("two", [Policy.MIRROR, pytest.param(Policy.COMPATIBLE, marks=databases.THREE)], indirect=True)
def test_what_a_killed_worker_may_have_sent_is_followed_once_it_cannot_arrive_any_more(two: Two) -> None:
    record(two, event("k"), event("other"))
    killed(two)
    newest, began = event("k"), now_ms()
    record(two, newest)
    for requested in (1, 2):  # of each partition by who claims it
        two.work_off()
        assert requested_since(two, began) == requested
    two.other.clock = lambda: now_ms() + REDELIVERY.latest_arrival_ms + LATER
    two.arrived.clear()
    two.other.run(now=two.other.clock())
    assert [one.id for one in two.arrived] == [newest.id]
    assert requested_since(two, began) == 0
    assert_counters_balance(two.database)


@mirrored
def test_retries_and_replays_that_a_killed_worker_was_sending_are_followed_too(two: Two) -> None:
    record(two, event("replayed"))
    two.other.run()
    record(two, event("retried"))
    two.other.scripted.script = lambda _: Failed("not now")
    two.other.run(turns=1)
    Replays(two.database).begin(two.target, Selection())
    began = now_ms()
    killed(two)
    two.work_off()
    assert requested_since(two, began) == 2


def test_a_log_gets_nothing_again_after_a_kill(two: Two) -> None:
    record(two, event("k"))
    killed(two)
    assert two.work_off() == "delivered=1"
    assert requested_since(two, 0) == 0


@mirrored
def test_a_lease_that_was_released_is_not_followed(two: Two) -> None:
    record(two, event("k"))
    two.other.run(turns=0)
    two.work_off()
    assert requested_since(two, 0) == 0
