"""Whatever a target answers and whatever is replayed: parked events are due some day, and never sent too early."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.events.model import Event
from app.outbox.admin.counters import read_counters
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log, key_hash
from app.resources.undelivered import DeadLetterFilter
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.parked_rows import assert_each_object_has_one_head, due_times
from tests.support.properties import thorough, times
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance, assert_in_order
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule

pytestmark = [pytest.mark.promise, databases.TWO]

MAX_AGE = 3_600_000
PARTITIONS = 4  # of the fixture's log
_numbers = count(1)

ANSWERS: dict[str, Outcome | None] = {
    "delivered": DELIVERED,
    "failed": Failed("HTTP 500"),
    "rejected": Rejected("HTTP 400"),
    "unavailable": Unavailable("connection reset"),
    "defect": None,  # the adapter raises
}


@dataclass(frozen=True)
class Record:
    """Events of these keys are recorded."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class Work:
    """A worker takes the lease, `later` milliseconds after the step before; then everything else is delivered."""

    answers: tuple[str, ...]
    turns: int
    later: int
    killed: bool  # between a delivery and its settlement


@dataclass(frozen=True)
class ReplayLog:
    """Events that were settled are delivered again."""

    prefix: str


@dataclass(frozen=True)
class ReplayDead:
    """Dead letters are sent again, from this one on."""

    first: int


Step = Record | Work | ReplayLog | ReplayDead
keys = st.sampled_from("ab")
records = st.builds(Record, st.lists(keys, min_size=1, max_size=5).map(tuple))
steps = st.one_of(
    records,
    st.builds(
        Work,
        st.lists(st.sampled_from(sorted(ANSWERS)), max_size=6).map(tuple),
        st.integers(1, 6),
        st.sampled_from((0, 0, 1_000, MAX_AGE + 1)),
        st.sampled_from((False, False, True)),
    ),
    st.builds(ReplayLog, st.sampled_from(("", "a"))),
    st.builds(ReplayDead, st.integers(0, 2)),
)
schedules = st.builds(
    RetrySchedule,
    base=st.sampled_from((0, 60_000)),
    cap=st.just(60_000),
    max_attempts=st.integers(1, 3),
    max_age=st.sampled_from((0, MAX_AGE)),
)


class History:
    """One target of its own, taken through the steps of an example; checks what must hold after each."""

    def __init__(self, database: Database, schedule: RetrySchedule, batch: int) -> None:
        self.database = database
        name = f"t{next(_numbers)}"
        self.bucket = f"bucket-{name}"
        self.target = add_target(database, name, bucket=self.bucket)
        self.courier = Courier(database, self.target, ScriptedTarget(), schedule=schedule, batch=batch)
        self.now = now_ms()
        self.recorded: list[Event] = []
        self.early: list[Event] = []  # sent before the parked events of their object were due
        self.rejected: set[str] = set()  # ids of events that were rejected, also where the call then failed as a whole
        self.replayed = False

    def take(self, step: Step) -> None:
        match step:
            case Record():
                events = [event(key, bucket=self.bucket) for key in step.keys]
                Log(self.database).append([events])
                self.recorded += events
            case Work():
                self.now += step.later
                self.work(iter(step.answers), step.turns, killed=step.killed)
            case ReplayLog():
                Replays(self.database).begin(self.target, Selection(prefix=step.prefix))
                self.replayed = True
            case ReplayDead():
                letters = DeadLetters(self.database)
                some = [letter.id for letter in letters.list(DeadLetterFilter(target=self.target))][step.first :]
                if some:
                    letters.replay(DeadLetterFilter(ids=some))
                    self.replayed = True
        assert_each_object_has_one_head(self.database)
        assert_counters_balance(self.database)

    def work(self, answers: Iterator[str], turns: int, *, killed: bool = False) -> None:
        due = due_times(self.database)

        def script(one: Event) -> Outcome:
            hashed = key_hash(one.bucket, one.key)
            # Only what was there when the step began: what fails in it may be due at once.
            if due.pop((hashed % PARTITIONS, hashed), 0) > self.now:
                self.early.append(one)  # an error raised here would count as the adapter's own
            outcome = ANSWERS[next(answers, "delivered")]
            if outcome is None:
                raise ZeroDivisionError
            if isinstance(outcome, Rejected):
                self.rejected.add(one.id)
            return outcome

        self.courier.scripted.script = script
        partitions = self.courier.partitions(self.now)
        assert partitions is not None
        partitions._clock = lambda: self.now
        left = iter(range(turns))
        if killed:
            partitions._settle = _killed  # type: ignore[method-assign]
        with suppress(KeyboardInterrupt):
            partitions.work_off(lambda: next(left, None) is None)
        self.courier.leases.release(partitions._lease)
        assert self.early == []

    def finish(self) -> None:
        """Every event is delivered or a dead letter once the target takes everything, and the clock has gone on."""
        for _ in range(3):
            self.now += 2 * MAX_AGE
            self.work(iter(()), 1_000)
            assert_counters_balance(self.database)
        with self.database.reading() as connection:
            [counters] = [entry for entry in read_counters(connection) if entry.target == self.target]
        assert (counters.pending, counters.parked) == (0, 0)
        if not self.replayed:  # else older events rightly come after newer ones
            letters = DeadLetters(self.database).list(DeadLetterFilter(target=self.target), limit=10_000)
            dead = {letter.event_id for letter in letters}
            got = [one for one in self._got_after_lost_rejections(dead) if one.id not in dead]
            assert_in_order(self.recorded, got, [one for one in self.recorded if one.id in dead])

    def _got_after_lost_rejections(self, dead: Collection[str]) -> list[Event]:
        """What arrived, without what passed an event whose rejection was lost: it arrives once more, after the event.

        A rejection is lost with its call, by a defect of the adapter or the worker's end.
        """
        place = {one.id: number for number, one in enumerate(self.recorded)}
        got = list(self.courier.scripted.got)
        for lost in [one for one in self.recorded if one.id in self.rejected and one.id not in dead]:
            first = [one.id for one in got].index(lost.id)
            got = [
                one
                for number, one in enumerate(got)
                if number >= first or one.key != lost.key or place[one.id] < place[lost.id]
            ]
        return got


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def live(database: Database, schedule: RetrySchedule, batch: int, taken: Sequence[Step]) -> None:
    """Take one example through its steps, and leave no target behind for the next one."""
    history = History(database, schedule, batch)
    try:
        for step in taken:
            history.take(step)
        history.finish()
    finally:
        registry(database).remove(history.target, force=True)


def explore(database: Database, examples: int) -> Callable[[], None]:
    @settings(thorough(examples), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(
        schedules, st.sampled_from((PARTITIONS, 3 * PARTITIONS, 10 * PARTITIONS)), records, st.lists(steps, max_size=12)
    )
    def property_holds(schedule: RetrySchedule, batch: int, first: Record, then: list[Step]) -> None:
        live(database, schedule, batch, [first, *then])

    return property_holds


def test_a_rejection_that_a_defect_loses_lets_later_events_arrive_once_more(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "bucketwire.partitions")
    for killed in (False, True):
        answers = ("rejected", "delivered", "delivered" if killed else "defect")
        live(database, RetrySchedule(0, 60_000, 2, 0), 12, [Record(("a",) * 3), Work(answers, 1, 0, killed)])


@pytest.mark.timeout(900)
@pytest.mark.slow
def test_each_object_with_parked_events_has_one_head_that_is_due_some_day(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "bucketwire.partitions")
    explore(database, times(100, 200) if database.dialect == "sqlite" else 30)()
