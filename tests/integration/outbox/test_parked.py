"""Parked events: one head for each object, back-off that nothing bypasses, and reasons that any database stores."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event as Signal

import orjson
import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.settings import Settings
from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.column_values import NEVER, UNSTORABLE_REASON
from app.outbox.delivery.availability import open_breaker
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Lease
from app.outbox.delivery.partition_reader import PartitionReader
from app.outbox.delivery.settlement_store import ParkedRow, Settlement
from app.outbox.delivery.transitions import HeadRepair, restore_heads
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.resources.declaration import format_time
from app.resources.undelivered import DeadLetterFilter
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.parked_rows import assert_each_object_has_one_head, due_times, parked_rows
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance, assert_in_order
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected, Unavailable
from workers.delivery.retry import RetrySchedule
from workers.runtime import Runtime

pytestmark = [pytest.mark.promise, databases.TWO]

HOUR = 3_600_000


def record(database: Database, *events: Event) -> list[Event]:
    Log(database).append([events])
    return list(events)


def work(courier: Courier, now: int, *, turns: int) -> Counter[str]:
    """Work off what is due when the clock shows `now` (ms)."""
    partitions = courier.partitions()
    assert partitions is not None
    partitions._clock = lambda: now
    left = iter(range(turns))
    counts = partitions.work_off(lambda: next(left, None) is None).counts
    courier.leases.release(partitions._lease)
    return counts


def answering(outcomes: dict[str, Outcome]) -> ScriptedTarget:
    """A target that answers these events, by their ids, and takes every other one."""
    return ScriptedTarget(lambda one: outcomes.get(one.id, DELIVERED))


def test_an_event_is_not_given_up_for_one_failure_after_an_outage_longer_than_its_retries(database: Database) -> None:
    """The same applies to a dead letter that is replayed: its attempts begin again, and so does their time."""
    one = event("a")
    courier = Courier(database, add_target(database), schedule=RetrySchedule(base=0, cap=0, max_age=60_000))
    record(database, one)
    for answer in (Failed("500"), Rejected("no"), Failed("500"), DELIVERED):
        courier.scripted.script = lambda _, answer=answer: answer  # type: ignore[misc]
        work(courier, now_ms() + HOUR, turns=0)  # the outage was an hour
        if isinstance(answer, Failed):
            assert DeadLetters(database).list(DeadLetterFilter()) == []
            assert len(parked_rows(database)) == 1
        elif isinstance(answer, Rejected):
            with database.writing() as connection:  # long ago
                connection.execute(tables.dead_letters.update().values(first_tried=1, last_tried=2))
            assert DeadLetters(database).replay(DeadLetterFilter()) == 1
    assert [sent.id for sent in courier.scripted.got] == [one.id]
    assert_counters_balance(database)


@pytest.mark.parametrize("schedule", [RetrySchedule(max_attempts=1), RetrySchedule(base=10**9, cap=10**9, max_age=1)])
@pytest.mark.parametrize("others", [0, 5])
def test_what_waits_behind_an_event_that_dies_at_its_first_attempt_is_delivered_next(
    database: Database, schedule: RetrySchedule, others: int
) -> None:
    first, second, third = (event("a") for _ in range(3))
    courier = Courier(database, add_target(database), answering({first.id: Failed("no")}), schedule=schedule, batch=100)
    # Those recorded later are delivered in the same batch, so that the partition's cursor goes on.
    record(database, first, second, third, *(event(f"k{number}") for number in range(others * 8)))
    work(courier, now_ms() + 100, turns=100)  # beyond max_age
    assert [one.id for one in courier.scripted.got if one.key == "a"] == [second.id, third.id]
    assert [letter.event_id for letter in DeadLetters(database).list(DeadLetterFilter())] == [first.id]
    assert parked_rows(database) == []
    assert_counters_balance(database)


def test_after_a_death_an_event_that_was_not_sent_becomes_the_head_and_not_a_waiting_one(database: Database) -> None:
    first, second, third, other = event("a"), event("a"), event("a"), event("b0")
    outcomes: dict[str, Outcome] = {first.id: Failed("no"), second.id: Unavailable("reset"), third.id: DELIVERED}
    courier = Courier(
        database, add_target(database), answering(outcomes), schedule=RetrySchedule(max_attempts=1), batch=100
    )
    record(database, first, second, third, *(event(f"b{number}") for number in range(40)), other)
    courier.run(turns=1)
    [due] = due_times(database).values()
    assert due < NEVER
    assert_counters_balance(database)


@pytest.mark.parametrize("objects", [3, 90])
def test_many_due_objects_are_retried_each_in_its_order(database: Database, objects: int) -> None:
    """With more of them than are looked at one by one, a batch has one event of each."""
    schedule = RetrySchedule(base=HOUR, cap=HOUR)
    courier = Courier(database, add_target(database), ScriptedTarget(_refuse), schedule=schedule, batch=200)
    events = record(database, *(event(f"k{number % objects}") for number in range(3 * objects)))
    assert work(courier, now_ms(), turns=100)["parked"] == 3 * objects
    courier.scripted.script, courier.scripted.got = (lambda one: DELIVERED), []
    assert work(courier, now_ms() + 2 * HOUR, turns=100) == {"delivered": 3 * objects}
    assert_in_order(events, courier.scripted.got)
    assert len(courier.scripted.got) == 3 * objects
    assert parked_rows(database) == []
    assert_counters_balance(database)


def _refuse(_: Event) -> Outcome:
    return Failed("no")


def test_a_defect_of_an_adapter_makes_one_head_of_an_object_whose_events_all_failed(database: Database) -> None:
    schedule = RetrySchedule(base=HOUR, cap=HOUR)
    courier = Courier(database, add_target(database), ScriptedTarget(_defect), schedule=schedule, batch=100)
    record(database, *(event("a") for _ in range(4)))
    courier.run()
    for hours in range(1, 4):
        assert_each_object_has_one_head(database)
        work(courier, now_ms() + hours * (HOUR + 1), turns=1)
    assert [row.attempts for row in parked_rows(database)] == [4, 0, 0, 0]
    assert_counters_balance(database)


def _defect(_: Event) -> Outcome:
    raise ZeroDivisionError


def _delivered_then_failing(database: Database, schedule: RetrySchedule) -> tuple[Courier, list[Event]]:
    """An object whose first event is delivered, and whose second one failed once."""
    courier = Courier(database, add_target(database), schedule=schedule)
    events = record(database, event("a"))
    courier.run()
    events += record(database, event("a"))
    courier.scripted.script = lambda one: Failed("no")
    courier.run(turns=1)
    return courier, events


def test_an_older_event_that_a_replay_parks_in_front_waits_as_long_as_the_head_did(database: Database) -> None:
    courier, events = _delivered_then_failing(database, RetrySchedule(base=HOUR, cap=HOUR))
    [due] = due_times(database).values()
    Replays(database).begin(courier.target, Selection(before=_received(database, events[0]) + 1))
    courier.scripted.got.clear()
    sent: list[str] = []
    courier.scripted.script = lambda one: sent.append(one.id) or Failed("still no")  # type: ignore[func-returns-value]
    courier.run(turns=50)
    assert sent == []
    assert list(due_times(database).values()) == [due]
    assert [(row.attempts, row.not_before == NEVER) for row in parked_rows(database)] == [(0, False), (1, True)]
    assert_counters_balance(database)
    work(courier, due + 1, turns=30)
    assert sent == [events[0].id], "one attempt for each back-off"
    assert [row.attempts for row in parked_rows(database)] == [1, 1]
    assert_each_object_has_one_head(database)
    assert_counters_balance(database)


def _received(database: Database, one: Event) -> int:
    with database.reading() as connection:
        query = sa.select(tables.events.c.received_at).where(tables.events.c.id == one.id)
        return int(connection.execute(query).scalar_one())


def _break(database: Database, *rows: tuple[int, int]) -> None:
    """Give parked events, by seq, the due times that an older version or a defect may have left."""
    with database.writing() as connection:
        for seq, not_before in rows:
            connection.execute(tables.parked.update().where(tables.parked.c.seq == seq).values(not_before=not_before))


def _park_three(database: Database) -> tuple[Courier, list[Event]]:
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: Failed("no")), batch=100)
    courier.schedule = RetrySchedule(base=HOUR, cap=HOUR)
    events = record(database, *(event("a") for _ in range(3)))
    courier.run()
    assert len(parked_rows(database)) == 3
    return courier, events


def test_when_an_object_is_due_does_not_depend_on_the_order_of_its_rows(database: Database) -> None:
    courier, _ = _park_three(database)
    first, second, third = (row.seq for row in parked_rows(database))
    for times in ((50, 70, 60), (70, 50, 60), (60, 70, 50)):
        _break(database, *zip((first, second, third), times, strict=True))
        with _reader(courier) as reader:
            assert len(reader.due_objects(times[0], 10)) == 1
            assert reader.due_objects(times[0] - 1, 10) == []


def test_those_that_are_due_for_longest_come_first_whatever_their_partition(database: Database) -> None:
    """Else a partition that always has a batch of them would keep those of the others waiting."""
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: Failed("no")), batch=100)
    courier.schedule = RetrySchedule(base=HOUR, cap=HOUR)
    record(database, *(event(f"k{number}") for number in range(40)))
    courier.run()
    rows = sorted(parked_rows(database), key=lambda row: (row.partition, row.seq))
    assert len({row.partition for row in rows}) > 1
    _break(database, *((row.seq, 1_000 - number) for number, row in enumerate(rows)))
    with _reader(courier) as reader:
        due = reader.due_objects(1_000, 15)
    assert due == [(row.partition, row.key_hash) for row in reversed(rows)][:15]


@contextmanager
def _reader(courier: Courier) -> Iterator[PartitionReader]:
    row_id = registry(courier.database).target(courier.target).row_id
    lease = courier.leases.claim(row_id, range(4), "token", now_ms())
    assert isinstance(lease, Lease)
    with courier.store.reading(lease) as reader:
        yield reader
    courier.leases.release(lease)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((NEVER, NEVER, NEVER), 0),  # nothing is ever due
        ((NEVER, 70, NEVER), 70),  # an older event was parked in front of the head
        ((50, 70, NEVER), 50),  # the head keeps its own time
        ((0, 70, 60), 0),
        ((NEVER, 70, 60), 60),
        ((50, NEVER, NEVER), 50),
    ],
)
def test_the_oldest_parked_event_becomes_the_head_again(
    database: Database, before: tuple[int, ...], after: int
) -> None:
    _park_three(database)
    rows = parked_rows(database)
    _break(database, *zip((row.seq for row in rows), before, strict=True))
    objects = {(rows[0].partition, rows[0].key_hash), (0, 12345)}
    with database.writing() as connection:
        changed = restore_heads(connection, rows[0].target_id, objects)
    assert [row.not_before for row in parked_rows(database)] == [after, NEVER, NEVER]
    assert [row.attempts for row in parked_rows(database)] == [row.attempts for row in rows]
    assert changed == (0 if before == (50, NEVER, NEVER) else 1)


@databases.THREE
def test_objects_without_a_head_are_found_and_mended_once_and_others_left_alone(database: Database) -> None:
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: Failed("no")), batch=100)
    courier.schedule = RetrySchedule(base=HOUR, cap=HOUR)
    record(database, *(event(f"k{number}") for number in range(9) for _ in range(3)))
    courier.run()
    repair = HeadRepair(database, chunk=5)
    assert repair.run() == {}
    healthy = due_times(database)
    rows = parked_rows(database)
    _break(database, (rows[0].seq, NEVER), (rows[10].seq, 77))  # one without a head, one with two
    assert repair.run() == {courier.target: 2}
    due = due_times(database)
    assert due.pop((rows[0].partition, rows[0].key_hash)) == 0
    healthy.pop((rows[0].partition, rows[0].key_hash))
    assert due == healthy
    assert repair.run() == {}
    courier.scripted.script = lambda one: DELIVERED
    assert work(courier, now_ms() + HOUR, turns=100) == {"delivered": 27}
    assert_counters_balance(database)


@databases.THREE
def test_a_run_of_the_repair_reads_so_many_rows_and_the_next_goes_on_where_it_ended(database: Database) -> None:
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: Failed("no")), batch=100)
    courier.schedule = RetrySchedule(base=HOUR, cap=HOUR)
    record(database, *(event(f"k{number}") for number in range(9) for _ in range(3)))
    courier.run()
    rows = parked_rows(database)
    _break(database, *((row.seq, NEVER) for row in rows))
    repair = HeadRepair(database, chunk=3, chunks_each_run=2)
    mended = [repair.run().total() for _ in range(10)]
    assert max(mended) <= 4
    assert sum(mended) == 9
    assert_each_object_has_one_head(database)


def test_the_drain_repairs_a_partition_whose_parked_events_would_never_be_due(
    database: Database, outbox_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _park_three(database)
    rows = parked_rows(database)
    _break(database, (rows[0].seq, NEVER))
    context = Runtime(
        Settings.from_environ({"BUCKETWIRE_DATA_DIR": str(tmp_path), "BUCKETWIRE_DATABASE_URL": outbox_url})
    )
    wake_ups: list[TargetId] = []
    assert context.drain.run(wake_ups.append) == 1, "the target is to be opened"
    assert list(due_times(database).values()) == [0]
    assert "repaired 1 objects" in caplog.text
    assert context.drain.run(wake_ups.append) == 1
    [due] = DueWork(database).find(now_ms())
    assert [one.partition for one in due.partitions] == [rows[0].partition]
    context.close()


HOSTILE = (
    "a NUL \x00 in the text",
    "a lone surrogate \ud800 and \udcff",
    "control \x01\x1b[31m\x7f\x9f\r\n\u2028 characters",
    "\U0001f600" * 5_000,
    '"\\' * 5_000,
    "\x00" * 5_000,
)


@databases.ALL
def test_a_reason_with_any_characters_is_stored_and_wedges_nothing(database: Database) -> None:
    schedule = RetrySchedule(base=0, cap=0, max_attempts=12)
    courier = Courier(database, add_target(database), schedule=schedule)
    events, other = [event(f"bad-{number}") for number in range(len(HOSTILE))], event("other")
    said = {one.id: reason for one, reason in zip(events, HOSTILE, strict=True)}
    courier.scripted.script = lambda one: Failed(said[one.id]) if one.id in said else DELIVERED
    record(database, *events, other)
    courier.run()
    letters = {letter.event_id: letter for letter in DeadLetters(database).list(DeadLetterFilter())}
    assert letters.keys() == said.keys()
    assert [one.id for one in courier.scripted.got] == [other.id]
    for event_id, reason in said.items():
        letter = letters[event_id]
        assert (letter.attempts, len(letter.history)) == (12, 10)
        assert {attempt.reason for attempt in letter.history} == {letter.reason}
        assert letter.reason.isprintable()
        assert 10 < len(letter.reason) <= 2_000
        open_breaker(database, _target_id(database), reason, now_ms(), probing=False)
        assert registry(database).target(courier.target).reason == letter.reason
        registry(database).pause(courier.target, reason)
        assert registry(database).target(courier.target).reason == letter.reason
        registry(database).resume(courier.target)
    assert_counters_balance(database)


def _target_id(database: Database) -> int:
    with database.reading() as connection:
        return int(connection.execute(sa.select(tables.targets.c.id)).scalar_one())


def _refused(database: Database) -> Iterator[str]:
    """Texts that the database or its driver refuses, this time and any other."""
    yield "\ud800"
    if database.dialect == "postgresql":
        yield "\x00"
    if database.dialect == "mysql":
        yield "x" * 70_000


@databases.ALL
def test_a_value_that_the_database_refuses_costs_its_own_reason_only(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    for number, text in enumerate(_refused(database)):
        courier = Courier(database, add_target(database, f"t{number}", bucket=f"b{number}"))
        events = record(database, *(event("a", bucket=f"b{number}") for _ in range(5)))
        lease = courier.leases.claim(registry(database).target(courier.target).row_id, range(4), "token", now_ms())
        assert isinstance(lease, Lease)
        with courier.store.reading(lease) as reader:
            batch = reader.load(100)
        settlement = Settlement()
        for logged, reason in zip(batch.events, ("fine", text, "fine", text, "fine"), strict=True):
            row = ParkedRow(logged.partition, logged.seq, logged.key_hash, HOUR, 1, 5, 5, f'[[5,"{reason}"]]')
            settlement.partition(logged.partition).position = logged.seq
            if logged.seq < batch.events[3].seq:
                settlement.bury(logged, row, reason)
            else:
                settlement.park(row)
        caplog.clear()
        courier.store.settle(lease, settlement, now_ms())
        assert "refused" in caplog.text
        letters = DeadLetters(database).list(DeadLetterFilter(target=courier.target))
        assert [letter.event_id for letter in letters] == [one.id for one in events[:3]]
        assert [letter.reason for letter in letters] == ["fine", UNSTORABLE_REASON, "fine"]
        attempts = [[(one.at, one.reason) for one in letter.history] for letter in letters]
        assert attempts == [
            [(format_time(5), "fine")],
            [(format_time(5), UNSTORABLE_REASON)],
            [(format_time(5), "fine")],
        ]
        with database.reading() as connection:
            query = sa.select(tables.parked.c.history).where(tables.parked.c.target_id == lease.target_id)
            kept = connection.execute(query.order_by(tables.parked.c.seq)).scalars().all()
        assert [orjson.loads(history) for history in kept] == [[[5, UNSTORABLE_REASON]], [[5, "fine"]]]
        # The same for one that was parked before.
        again = replace(settlement.parked[0], attempts=2, history=f'[[5,"{text}"],[6,"{text}"]]')
        retried = Settlement(retried=[again])
        retried.partition(again.partition)
        courier.store.settle(lease, retried, now_ms())
        with database.reading() as connection:
            row = connection.execute(sa.select(tables.parked).where(tables.parked.c.seq == again.seq)).one()
        assert (row.attempts, orjson.loads(row.history)) == (2, [[5, UNSTORABLE_REASON]])
        assert_each_object_has_one_head(database)
        assert_counters_balance(database)
        courier.leases.release(lease)


def test_a_rejection_is_kept_in_the_words_of_the_remote(database: Database) -> None:
    courier = Courier(database, add_target(database))
    courier.scripted.script = lambda one: Rejected("Ungültig:\n\tfield \u201cé\u201d, \U0001f600\x00")
    record(database, event())
    courier.run()
    assert (
        DeadLetters(database).list(DeadLetterFilter())[0].reason == "Ungültig:  field \u201cé\u201d, \U0001f600\ufffd"
    )


@pytest.mark.parametrize("outbox_url", ["postgresql", "mysql", "mariadb"], indirect=True)
def test_a_target_can_be_removed_while_a_worker_parks_events_of_it(database: Database, outbox_url: str) -> None:
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: Failed("no")))
    record(database, event("a"))
    other = Database(outbox_url)
    locks_cursors = Signal()
    removals: list[Future[list[str]]] = []

    with ThreadPoolExecutor(1) as pool:

        def before_it_parks(_: object, cursor: object, statement: str, *rest: object) -> None:
            if statement.startswith("INSERT INTO parked"):
                removals.append(pool.submit(registry(other).remove, courier.target, force=True))
                assert locks_cursors.wait(30)

        def seen(_: object, cursor: object, statement: str, *rest: object) -> None:
            if "FROM cursors" in statement and statement.endswith("FOR UPDATE"):
                locks_cursors.set()

        sa.event.listen(database.engine, "before_cursor_execute", before_it_parks)
        sa.event.listen(other.engine, "before_cursor_execute", seen)
        courier.run(turns=0)
        [removal] = removals
        assert removal.result(30) == ["1 rule", "1 undelivered event"]
    other.close()
    assert parked_rows(database) == []


def test_a_dead_letter_that_is_replayed_while_a_worker_keeps_its_lease_goes_out_before_later_events(
    database: Database,
) -> None:
    courier = Courier(database, add_target(database))
    courier.scripted.script = lambda _: Rejected("not yet")
    [dead] = record(database, event("a"))
    courier.run()
    later, other = event("a"), event("b")

    def meanwhile(_: Event) -> Outcome:
        courier.scripted.script = lambda _: DELIVERED
        assert DeadLetters(database).replay(DeadLetterFilter()) == 1
        record(database, later)
        return DELIVERED

    courier.scripted.script = meanwhile
    record(database, other)
    courier.run()
    assert_each_object_has_one_head(database)
    assert [one.id for one in courier.scripted.got] == [other.id, dead.id, later.id]
    assert_counters_balance(database)
