"""An event that kills each worker which sends it costs the others nothing, and becomes a dead letter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

import orjson
import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.column_values import NEVER
from app.outbox.delivery import transitions
from app.outbox.delivery.leases import Lease, Leases, new_token
from app.outbox.delivery.logged_events import LoggedEvent
from app.outbox.delivery.partition_reader import PartitionReader
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log, key_hash
from app.outbox.policies import LEASES
from app.resources.undelivered import DeadLetterFilter
from tests.support import databases
from tests.support.builders import add_target, event, migrated, registry
from tests.support.parked_rows import assert_each_object_has_one_head, parked_rows
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance, assert_in_order
from workers.delivery import partition_worker
from workers.delivery.namespace_policy import Decision, Policy, decide
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Unavailable
from workers.delivery.partition_worker import LeaseSummary, PartitionWorker
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.delivery.settlement import LOST_WORKER

pytestmark = [pytest.mark.promise, databases.THREE]

ATTEMPTS = 3
LEASE = 6_000  # ms


class Killed(BaseException):
    """The process of the worker is gone: nothing after this is executed."""


@dataclass
class Life:
    """Workers that follow each other; `kills` says which events kill the one that sends them."""

    database: Database
    kills: Callable[[Event], bool]
    policy: Policy = Policy.LOG
    rate: int = 0
    deaths: int = 0
    answers: Callable[[Event], Outcome] = lambda _: DELIVERED
    scripted: ScriptedTarget = field(init=False)
    courier: Courier = field(init=False)

    def __post_init__(self) -> None:
        self.scripted = ScriptedTarget(self._send)
        schedule = RetrySchedule(base=0, cap=0, max_attempts=ATTEMPTS)
        target = add_target(self.database, "x")
        self.courier = Courier(self.database, target, self.scripted, self.policy, schedule, rate=self.rate)

    def _send(self, one: Event) -> Outcome:
        if self.kills(one):
            self.deaths += 1
            raise Killed
        return self.answers(one)

    def work(self, most: int) -> int:
        """Have workers follow each other until one gets through all that is due; return how many it took."""
        for number in range(1, most + 1):
            with suppress(Killed):
                self.courier.run()
                return number
            expire(self.database)
        raise AssertionError(f"{most} workers were killed")

    def letters(self) -> dict[str, tuple[int, str]]:
        """The attempts and the reason of each dead letter, by key."""
        page = DeadLetters(self.database).page(DeadLetterFilter(), limit=100)
        return {letter.key: (letter.attempts, letter.reason) for letter in page.dead_letters}


def expire(database: Database) -> None:
    """Let the time of every lease pass."""
    c = tables.cursors.c
    with database.writing() as connection:
        connection.execute(tables.cursors.update().where(c.lease_token != "").values(leased_until=1))


def record(database: Database, events: Sequence[Event]) -> Sequence[Event]:
    Log(database).append([events])
    return events


def of_key(key: str) -> Callable[[Event], bool]:
    return lambda one: one.key == key


def claim(database: Database, row_id: int) -> Lease:
    lease = Leases(database, 10_000).claim(row_id, range(4), "some", now_ms())
    assert lease is not None
    return lease


@pytest.mark.parametrize("policy", [Policy.LOG, Policy.COMPATIBLE, Policy.MIRROR])
def test_all_others_are_delivered_and_the_event_becomes_a_dead_letter(database: Database, policy: Policy) -> None:
    life = Life(database, lambda one: one.id == poison.id, policy)
    before, poison = event("k"), event("k")
    after = [] if policy is Policy.MIRROR else [event("k")]  # of a mirror it would supersede the others
    events = record(database, [event("a"), before, event("b"), poison, event("c"), *after, event("d")])
    life.work(LEASES.max_lost + ATTEMPTS + 1)
    assert life.letters() == {"k": (ATTEMPTS, LOST_WORKER)}
    assert life.deaths == LEASES.max_lost + ATTEMPTS
    never = {poison.id, before.id} if policy is Policy.MIRROR else {poison.id}
    assert_in_order(events, life.scripted.got, never=[one for one in events if one.id in never])
    assert {one.id for one in life.scripted.got} == {one.id for one in events} - never
    assert parked_rows(database) == []
    assert_counters_balance(database)


def test_several_such_events_of_one_partition_become_dead_letters(database: Database) -> None:
    life = Life(database, lambda one: one.key.startswith("bad"))
    record(database, [event(f"{kind}{number}") for number in range(8) for kind in ("bad", "good")])
    life.work(100)
    assert life.letters() == {f"bad{number}": (ATTEMPTS, LOST_WORKER) for number in range(8)}
    assert {one.key for one in life.scripted.got} == {f"good{number}" for number in range(8)}
    assert life.deaths == LEASES.max_lost + 8 * ATTEMPTS
    assert_counters_balance(database)


def test_one_kill_costs_no_event_an_attempt_and_sends_no_event_alone(database: Database) -> None:
    """As when a host loses its power: nothing says that an event was to blame."""
    calls: list[int] = []
    life = Life(database, lambda _: len(calls) < LEASES.max_lost - 1 and not calls.append(1))  # type: ignore[func-returns-value]
    record(database, [event(f"k{number}") for number in range(10)])
    assert life.work(LEASES.max_lost) == LEASES.max_lost
    with database.reading() as connection:
        assert list(connection.execute(sa.select(tables.parked.c.attempts)).scalars()) == []
    assert len(life.scripted.got) == 10


def test_workers_that_are_killed_for_another_reason_cost_events_that_get_through_nothing(database: Database) -> None:
    """Each of the events is sent alone, and none of them is to blame."""
    deaths = LEASES.max_lost + 2
    life = Life(database, lambda _: life.deaths < deaths)
    events = record(database, [event(f"k{number % 5}") for number in range(20)])
    life.work(deaths + 1)
    assert_in_order(events, life.scripted.got)
    assert len(life.scripted.got) == 20
    assert life.letters() == {}
    assert parked_rows(database) == []
    assert_counters_balance(database)


def test_a_target_that_is_unavailable_after_kills_costs_no_attempt(database: Database) -> None:
    life = Life(database, lambda _: life.deaths < LEASES.max_lost)
    record(database, [event(f"k{number}") for number in range(5)])
    life.answers = lambda _: Unavailable("503", unreachable=True)
    life.work(LEASES.max_lost + 1)
    assert {row.attempts for row in parked_rows(database)} == {0}
    assert_each_object_has_one_head(database)
    life.answers = lambda _: DELIVERED
    life.work(1)
    assert len(life.scripted.got) == 5
    assert_counters_balance(database)


def test_an_event_that_fails_after_a_kill_has_each_attempt_counted_once(database: Database) -> None:
    life = Life(database, lambda _: life.deaths < LEASES.max_lost)
    life.courier.schedule = RetrySchedule(base=600_000, cap=600_000, max_attempts=ATTEMPTS)
    record(database, [event("k")])
    life.answers = lambda _: Failed("500 broken")
    life.work(LEASES.max_lost + 1)
    [row] = parked_rows(database)
    assert row.attempts == 1
    with database.reading() as connection:
        [history] = connection.execute(sa.select(tables.parked.c.history)).scalars()
    assert [reason for _, reason in orjson.loads(history)] == ["500 broken"]


def test_a_later_attempt_that_kills_again_does_so_alone(database: Database) -> None:
    """Its back-off is over while other events are due, and no lease was lost before."""
    life = Life(database, of_key("bad"))
    life.courier.schedule = RetrySchedule(base=600_000, cap=600_000, max_attempts=ATTEMPTS)
    record(database, [event("bad"), event("good")])
    life.work(LEASES.max_lost + 2)
    for attempts in range(1, ATTEMPTS):
        assert [row.attempts for row in parked_rows(database)] == [attempts]
        row_id = registry(database).target(life.courier.target).row_id
        transitions.try_all_now(database, row_id)
        record(database, [event("other")])
        life.work(2)
    assert life.deaths == LEASES.max_lost + ATTEMPTS
    transitions.try_all_now(database, row_id)
    life.work(1)
    assert life.letters() == {"bad": (ATTEMPTS, LOST_WORKER)}
    assert [one.key for one in life.scripted.got] == ["good", *["other"] * (ATTEMPTS - 1)]


def test_an_event_of_a_replay_that_kills_becomes_a_dead_letter_and_the_replay_ends(database: Database) -> None:
    armed: list[bool] = []
    life = Life(database, lambda one: bool(armed) and one.key == "bad")
    record(database, [event("a"), event("bad"), event("b")])
    life.work(1)
    armed.append(True)
    Replays(database).begin(life.courier.target, Selection())
    life.work(LEASES.max_lost + ATTEMPTS + 2)
    assert life.letters() == {"bad": (ATTEMPTS, LOST_WORKER)}
    assert sorted(one.key for one in life.scripted.got) == ["a", "a", "b", "b", "bad"]
    with database.reading() as connection:
        assert (
            connection.execute(sa.select(tables.cursors.c.replay_id).where(tables.cursors.c.replay_id > 0)).all() == []
        )
    assert_counters_balance(database)


def test_a_target_with_a_rate_limit_gets_past_the_event_too(database: Database) -> None:
    life = Life(database, of_key("bad"), rate=1_000)
    record(database, [event("a"), event("bad"), event("b")])
    life.work(LEASES.max_lost + ATTEMPTS + 1)
    assert life.letters() == {"bad": (ATTEMPTS, LOST_WORKER)}
    assert {one.key for one in life.scripted.got} == {"a", "b"}


@dataclass
class Clocked:
    """Workers that claim what is due by a clock which a test moves; each call to the target takes 20 ms of it."""

    database: Database
    script: Callable[[Event], Outcome | None]  # None kills the worker
    policy: Policy = Policy.LOG
    schedule: RetrySchedule = field(default_factory=RetrySchedule)
    now: int = field(default_factory=now_ms)
    rate: int = 0
    got: list[tuple[int, str]] = field(default_factory=list)  # when, and the key

    def __post_init__(self) -> None:
        self.row_id = registry(self.database).target(add_target(self.database)).row_id
        self.leases, self.store = Leases(self.database, LEASE), SettlementStore(self.database, LEASE)

    def _send(self, one: Event) -> Outcome:
        self.now += 20
        outcome = self.script(one)
        if outcome is None:
            raise Killed
        if outcome == DELIVERED:
            self.got.append((self.now, one.key))
        return outcome

    def work(self) -> LeaseSummary | None:
        """Have one worker work for five seconds; None if nothing is due, or it was killed."""
        lease = self.leases.claim_due(self.row_id, uuid4().hex, self.now)
        if lease is None:
            self.now += 500
            return None
        ends = self.now + 5_000
        with suppress(Killed):
            summary = self.holder(lease).work_off(lambda: self.now > ends)
            self.leases.release(lease)
            self.now += 10
            return summary
        return None

    def holder(self, lease: Lease) -> PartitionWorker:
        """The worker that has a lease."""
        scripted, sizer = ScriptedTarget(self._send), BatchSizer(500)
        target = PooledTarget("x", scripted, self.policy, self.schedule, 1000, sizer, rate=self.rate)
        return PartitionWorker(self.store, target, lease, lambda: self.now)

    def run(self, seconds: int) -> None:
        """Have workers follow each other for so long."""
        ends = self.now + 1_000 * seconds
        while self.now < ends:
            self.work()

    def retry_now(self) -> None:
        due = tables.parked.c.not_before
        with self.database.writing() as connection:
            connection.execute(tables.parked.update().where(due < NEVER).values(not_before=0))


@pytest.fixture
def partition(outbox_url: str) -> Iterator[Database]:
    """An outbox of one partition."""
    opened = migrated(outbox_url, partitions=1)
    yield opened
    opened.close()


@databases.ONE
@pytest.mark.parametrize("killers", [1, 8])
def test_events_that_kill_do_not_hold_up_the_others_of_their_partition(partition: Database, killers: int) -> None:
    clocked = Clocked(partition, lambda one: None if one.key.startswith("bad") else DELIVERED)
    bad = [event(f"bad{number}") for number in range(killers)]
    record(partition, [event("first"), *bad, event("last")])
    clocked.run(120)
    assert sorted({key for _, key in clocked.got}) == ["first", "last"]
    waited = []
    for number in range(20):
        record(partition, [event(f"live{number}")])
        recorded = clocked.now
        clocked.run(15)
        waited += [at - recorded for at, key in clocked.got if key == f"live{number}"]
    assert len(waited) == 20
    assert max(waited) < 2 * LEASE, "one that has begun with an event that kills is waited for"


@databases.TWO
def test_a_late_request_of_a_killed_worker_is_put_right_although_its_event_waits(partition: Database) -> None:
    """Its successor does not find the event due, because its attempt was counted before."""
    rows: dict[str, str] = {}
    kills = [True]
    clocked = Clocked(partition, lambda one: None if kills[0] and one.key == "k" else put(one), Policy.MIRROR)
    clocked.schedule = RetrySchedule(base=10**9, cap=10**9, max_age=0)

    def put(one: Event) -> Outcome:
        rows[one.key] = one.id
        return DELIVERED

    [old] = record(partition, [event("k")])
    clocked.run(60 * 60)  # until no request of the first workers is left
    clocked.retry_now()
    clocked.work()
    kills[0] = False
    [new] = record(partition, [event("k")])
    clocked.run(30)
    clocked.retry_now()
    clocked.run(30)
    assert rows["k"] == new.id
    rows["k"] = old.id
    clocked.run(40 * 60)
    assert rows["k"] == new.id


def test_a_replayed_dead_letter_is_sent_again(database: Database) -> None:
    life = Life(database, of_key("bad"))
    life.courier.schedule = RetrySchedule(base=60_000, cap=60_000, max_attempts=1, max_age=1_000)
    record(database, [event("bad")])
    life.work(LEASES.max_lost + 2)
    assert life.letters() == {"bad": (1, LOST_WORKER)}
    life.kills = lambda _: False
    page = DeadLetters(database).page(DeadLetterFilter(), limit=100)
    with database.writing() as connection:
        transitions.replay(connection, registry(database).target(life.courier.target).row_id, [page.dead_letters[0].id])
    life.work(1)
    assert [one.key for one in life.scripted.got] == ["bad"]
    assert life.letters() == {}


def test_another_event_tells_whether_a_refused_one_or_the_target_is_to_blame(database: Database) -> None:
    life = Life(database, lambda _: life.deaths < LEASES.max_lost)
    record(database, [event("refused" if number == 2 else f"k{number}") for number in range(5)])
    life.answers = lambda one: Unavailable("503") if one.key == "refused" else DELIVERED
    life.work(LEASES.max_lost + 1)
    assert {one.key for one in life.scripted.got} == {"k0", "k1", "k3", "k4"}
    assert {row.attempts for row in parked_rows(database)} == {0}


def test_an_outage_of_the_target_after_kills_costs_no_attempt_later(database: Database) -> None:
    """A refused event is a suspect, whose next refusal after a delivery counts: there may be one of a partition."""
    life = Life(database, lambda _: life.deaths < LEASES.max_lost)
    record(database, [event(f"k{number}") for number in range(40)])
    life.answers = lambda _: Unavailable("503", retry_after=60)
    life.work(LEASES.max_lost + 1)
    with database.reading() as connection:
        refused = connection.execute(sa.select(tables.parked.c.partition).where(tables.parked.c.refused_at > 0))
        assert len(list(refused)) == 1


def test_an_event_that_was_given_up_at_its_last_attempt_is_sent_when_it_is_replayed(database: Database) -> None:
    life = Life(database, of_key("bad"))
    life.courier.schedule = RetrySchedule(base=0, cap=0, max_attempts=1)
    record(database, [event("bad")])
    with pytest.raises(AssertionError, match="were killed"):
        life.work(LEASES.max_lost + 1)
    row_id = registry(database).target(life.courier.target).row_id
    [row] = parked_rows(database)
    with database.writing() as connection:
        assert transitions.give_up(connection, row_id, [(row.partition, row.seq)]) == 1
    expire(database)
    life.kills = lambda _: False
    page = DeadLetters(database).page(DeadLetterFilter(), limit=100)
    with database.writing() as connection:
        transitions.replay(connection, row_id, [page.dead_letters[0].id])
    life.work(1)
    assert [one.key for one in life.scripted.got] == ["bad"]


def test_an_event_that_kills_before_it_is_sent_becomes_a_dead_letter_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is decided what a mirror would write, say: that reads its record."""
    life = Life(database, lambda _: False)
    life.courier.schedule = RetrySchedule(base=600_000, cap=600_000, max_attempts=1)

    def choose(events: Sequence[LoggedEvent], policy: Policy, known: PartitionReader) -> Sequence[Decision]:
        if len(events) == 1 and events[0].event.key == "bad":
            raise Killed
        return decide(events, policy, known)

    monkeypatch.setattr(partition_worker, "decide", choose)
    record(database, [event("a"), event("bad"), event("b")])
    expire_and_claim(database, life, LEASES.max_lost)
    life.work(3)
    assert {one.key for one in life.scripted.got} == {"a", "b"}
    assert life.letters() == {"bad": (1, LOST_WORKER)}


def expire_and_claim(database: Database, life: Life, times: int) -> None:
    """Have workers lose their leases so many times before they do anything."""
    for _ in range(times):
        claim(database, registry(database).target(life.courier.target).row_id)
        expire(database)


def test_a_probe_that_was_answered_ends_before_an_event_that_may_kill_is_sent(partition: Database) -> None:
    """Or the circuit breaker would stay open until the lease of the killed worker has run out."""
    clocked = Clocked(partition, lambda one: None if one.key == "bad" else DELIVERED)
    record(partition, [event("bad")])
    for _ in range(LEASES.max_lost + 1):
        clocked.work()
        clocked.now += LEASE
    record(partition, [event("good")])
    clocked.retry_now()
    lease = clocked.leases.claim(clocked.row_id, [0], "probe", clocked.now)
    assert lease is not None
    lease.careful, lease.probing = False, True
    assert clocked.holder(lease).work_off(lambda: False).answered
    assert [key for _, key in clocked.got] == ["good"]


@databases.ONE
def test_a_retried_event_behind_many_that_kill_is_sent(partition: Database) -> None:
    failed: set[str] = set()

    def script(one: Event) -> Outcome | None:
        if one.key.startswith("bad"):
            return None
        if one.key == "healthy" and one.key not in failed:
            failed.add(one.key)
            return Failed("once")
        return DELIVERED

    clocked = Clocked(partition, script)
    record(partition, [event(f"bad{number}") for number in range(40)])
    clocked.run(300)
    clocked.retry_now()
    record(partition, [event("healthy")])
    began = clocked.now
    clocked.run(30)
    clocked.retry_now()
    clocked.run(30)
    assert [at - began < 12 * LEASE for at, key in clocked.got if key == "healthy"] == [True]


@databases.ONE
def test_a_backlog_that_uses_up_a_rate_limit_does_not_put_off_such_an_event_for_ever(partition: Database) -> None:
    clocked = Clocked(partition, lambda one: None if one.key == "bad" else DELIVERED, rate=5)
    clocked.schedule = RetrySchedule(base=0, cap=0, max_attempts=ATTEMPTS)
    record(partition, [event("bad")])
    record(partition, [event(f"k{number}") for number in range(2_000)])
    clocked.run(120)
    assert 0 < len(clocked.got) < 1_000
    page = DeadLetters(partition).page(DeadLetterFilter(), limit=100)
    assert [letter.key for letter in page.dead_letters] == ["bad"]


def test_a_process_that_ends_for_the_sake_of_others_makes_nobody_careful(database: Database) -> None:
    life = Life(database, lambda _: False)
    row_id = registry(database).target(life.courier.target).row_id
    leases = Leases(database, 10_000)
    for _ in range(LEASES.max_lost + 1):
        lease = leases.claim(row_id, range(4), new_token(), now_ms())
        assert lease is not None
        leases.disown()
        expire(database)
    lease = leases.claim(row_id, range(4), "other", now_ms())
    assert lease is not None
    assert not lease.careful
    leases.disown()
    assert leases.renew(lease, now_ms()), "it is another process's"


def test_each_attempt_counts_once_as_failed(database: Database) -> None:
    life = Life(database, of_key("bad"))
    record(database, [event("bad"), event("good")])
    life.work(LEASES.max_lost + ATTEMPTS + 1)
    with database.reading() as connection:
        failed = connection.execute(sa.select(sa.func.sum(tables.cursors.c.failed))).scalar_one()
    assert failed == ATTEMPTS


def test_an_abandoned_partition_makes_no_worker_of_others_careful(database: Database) -> None:
    """It has nothing due, and is free: its killing event waits for its next attempt."""
    life = Life(database, lambda _: False)
    row_id = registry(database).target(life.courier.target).row_id
    leases = Leases(database, 10_000)
    for _ in range(LEASES.max_lost + 1):
        assert leases.claim(row_id, [key_hash("images", "bad") % 4], "killed", now_ms()) is not None
        expire(database)
    others = [
        f"k{number}" for number in range(20) if (key_hash("images", f"k{number}") - key_hash("images", "bad")) % 4
    ]
    record(database, [event(others[0])])
    lease = leases.claim_due(row_id, "other", now_ms(), with_free=True)
    assert lease is not None
    assert (len(lease.positions), lease.careful) == (3, False)


def test_only_leases_that_were_lost_in_a_row_make_a_worker_careful(database: Database) -> None:
    life = Life(database, lambda _: False)
    row_id = registry(database).target(life.courier.target).row_id
    leases = Leases(database, 10_000)
    assert not claim(database, row_id).careful
    for lost in range(1, LEASES.max_lost + 2):
        expire(database)
        lease = claim(database, row_id)
        assert lease.careful == (lost >= LEASES.max_lost)
    leases.release(lease)
    assert not claim(database, row_id).careful, "the last one was released"
    for _ in range(LEASES.max_lost + 1):
        with database.writing() as connection:
            transitions.revoke_leases(connection, row_id)
        expire(database)
        assert not claim(database, row_id).careful, "an operator took the last one"
