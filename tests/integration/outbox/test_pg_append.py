"""The append in one round trip, on PostgreSQL: when it is taken, and that it promises what any other append does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from random import Random
from typing import Any

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.counters import read_counters
from app.outbox.engine.database import VALUE_ERRORS, Database, DatabaseUnavailable
from app.outbox.engine.db_errors import Unstorable
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.log.group_commit import Recorder
from app.outbox.policies import APPEND
from tests import services
from tests.support.builders import add_target, event, migrated

MANY = APPEND.max_trip_events + 1  # rows that are copied


@pytest.fixture
def database(postgres_outbox: str) -> Iterator[Database]:
    """An empty log."""
    with closing(migrated(postgres_outbox)) as opened:
        yield opened


@pytest.fixture
def own_database(postgres_database: str) -> Iterator[Database]:
    """The same in a database of this test's own, whose properties it may change."""
    with closing(migrated(postgres_database)) as opened:
        yield opened


@contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """The statements executed in the block, by the first words of each."""
    found: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        found.append(" ".join(statement.split()[:3]))

    def in_one_trip(statement: str, *arguments: Any) -> int:
        note(None, None, statement)
        return original(statement, *arguments)

    original = database.in_one_trip
    database.in_one_trip = in_one_trip  # type: ignore[method-assign]
    sa.event.listen(database.engine, "before_cursor_execute", note)
    yield found
    sa.event.remove(database.engine, "before_cursor_execute", note)
    database.in_one_trip = original  # type: ignore[method-assign]


def used(database: Database) -> Log:
    """A log that has appended an event to the bucket of the tests."""
    log = Log(database)
    log.append([[event("first")]])
    return log


def some(number: int) -> list[Event]:
    return [event(f"k{count}") for count in range(number)]


def rows(database: Database) -> list[tuple[int, str]]:
    query = sa.select(tables.events.c.seq, tables.events.c.id).order_by(tables.events.c.seq)
    with database.reading() as connection:
        return [(row.seq, row.id) for row in connection.execute(query)]


def counted(database: Database) -> tuple[int, int]:
    """The first target's counters: recorded and discarded."""
    with database.reading() as connection:
        [first, *_] = read_counters(connection)
    return first.recorded, first.discarded


def test_an_append_is_one_statement_that_commits_by_itself(database: Database) -> None:
    target = add_target(database)
    log, events = used(database), some(3)
    with statements(database) as executed:
        assert log.append([events[:1], events[1:]]) == [
            Receipt(recorded=1, matched={target: 1}),
            Receipt(recorded=2, matched={target: 2}),
        ]
    assert executed == ["SELECT append_events(%s, %s,"]
    assert [found for _, found in rows(database)][1:] == [one.id for one in events]
    assert counted(database) == (4, 0)


def test_the_statements_of_the_function_are_planned_once_for_each_connection(database: Database) -> None:
    add_target(database, queue_limit=100)
    log = used(database)
    log.append([some(1)])
    driver: Any = database._reader.raw_connection().driver_connection
    with driver.cursor() as cursor:
        cursor.execute("SET client_min_messages = log; SET log_planner_stats = on")
    planned = []
    for _ in range(8):
        driver.notices.clear()
        log.append([some(1)])
        planned.append(sum("PLANNER STATISTICS" in notice for notice in driver.notices))
    assert planned == [1] * 8  # that which calls the function


@pytest.mark.parametrize("number", [1, MANY])
def test_what_is_repeated_discarded_or_rejected_is_so_one_by_one(database: Database, number: int) -> None:
    limited = add_target(database, "limited", queue_limit=2 * number + 1)
    log = used(database)
    first, last = some(number), some(number)
    with statements(database) as executed:
        assert log.append([first]) == [Receipt(recorded=number, matched={limited: number})]
    if number < MANY:
        assert executed == ["SELECT append_events(%s, %s,"]
    assert log.append([first]) == [Receipt(repeated=number)]
    assert log.append([last]) == [Receipt(recorded=number, matched={limited: number})]
    assert log.append([last, [event("one too many")]]) == [
        Receipt(repeated=number),
        Receipt(recorded=1, matched={limited: 1}, discarded={limited: 1}),
    ]
    assert counted(database) == (2 * number + 1, 1)
    assert len(rows(database)) == 2 * number + 2


def test_a_target_that_rejects_does_so_up_to_its_limit_unless_the_request_is_promised(database: Database) -> None:
    full = add_target(database, "full", queue_limit=3, queue_full="reject")
    log = used(database)
    assert log.append([some(1)]) == [Receipt(recorded=1, matched={full: 1})]
    assert log.append([some(2)]) == [QueueFull((full,))]
    assert log.append([some(1)]) == [Receipt(recorded=1, matched={full: 1})]
    assert log.append([some(2)], promised=True) == [Receipt(recorded=2, matched={full: 2})]
    assert log.append([some(2)], promised=True) == [Receipt(recorded=2, matched={full: 2})]
    assert counted(database) == (7, 0)


@pytest.mark.parametrize("number", [1, MANY])
def test_a_value_that_is_refused_leaves_nothing_behind(database: Database, number: int) -> None:
    target = add_target(database)
    log = used(database)
    before = rows(database)
    bad = [*some(number - 1), event("zero\0byte")]
    with pytest.raises(VALUE_ERRORS):
        log.append([bad])
    long = [*some(number - 1), event("long", version="v" * 1025)]
    with pytest.raises(VALUE_ERRORS):
        log.append([long])
    assert (rows(database), counted(database)) == (before, (1, 0))
    assert log.append([some(number)]) == [Receipt(recorded=number, matched={target: number})]


def test_odd_values_arrive_as_they_are(database: Database) -> None:
    log = used(database)
    odd = ["\\", '","', '"', "a\tb\nc", "%s %(a)s %%", "'); --", "\U0001f600\ufeff", "{a,NULL}", ":name", ""]
    events = [event(f"{text}{number}", version=text) for number, text in enumerate(odd)]
    assert log.append([[*events, *events]]) == [Receipt(recorded=len(odd), repeated=len(odd))]
    e = tables.events.c
    with database.reading() as connection:
        found = connection.execute(sa.select(e.key, e.version, e.record).order_by(e.seq)).all()
    assert [tuple(row) for row in found[1:]] == [(one.key, one.version, one.record) for one in events]


def test_connections_that_break_while_they_are_idle_are_no_reason_to_refuse_an_event(
    database: Database, postgres_server: services.Postgres
) -> None:
    recorder = Recorder(database)
    for _ in range(2):
        assert [*recorder.record([some(1)])] == [Receipt(recorded=1)]
    with ExitStack() as idle:
        for _ in range(4):
            idle.enter_context(database.reading()).execute(sa.text("SELECT 1"))
    with postgres_server.connection() as other, other.cursor() as cursor:
        name = database.url.database
        cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,))
    answers = [answer for _ in range(6) for answer in recorder.record([some(1)])]
    assert not any(isinstance(answer, Unstorable) for answer in answers)
    assert answers[2:] == [Receipt(recorded=1)] * 4


def test_a_database_that_lets_nobody_in_is_unavailable(
    own_database: Database, postgres_server: services.Postgres
) -> None:
    recorder = Recorder(own_database)
    assert [*recorder.record([some(1)])] == [Receipt(recorded=1)]
    own_database.close()
    allow = f'ALTER DATABASE "{own_database.url.database}" ALLOW_CONNECTIONS {{}}'.format
    with postgres_server.connection() as other, other.cursor() as cursor:
        cursor.execute(allow("false"))
        [away] = recorder.record([some(1)])
        cursor.execute(allow("true"))
    assert isinstance(away, DatabaseUnavailable)
    assert [*recorder.record([some(1)])] == [Receipt(recorded=1)]


def test_several_that_append_the_same_at_once_record_it_once_whatever_isolation_the_database_prefers(
    own_database: Database,
) -> None:
    with own_database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'"))
    own_database.close()
    target = add_target(own_database, queue_limit=45)
    logs = [used(own_database) for _ in range(4)]
    batches = [some(2) for _ in range(25)]
    together = threading.Barrier(4)

    def append(log: Log) -> list[Receipt | QueueFull]:
        answers = []
        for batch in batches:
            together.wait(60)
            answers += log.append([batch])
        return answers

    with ThreadPoolExecutor(4) as threads:
        receipts = [one for answers in threads.map(append, logs) for one in answers if isinstance(one, Receipt)]
    assert (sum(one.recorded for one in receipts), sum(one.repeated for one in receipts)) == (50, 150)
    assert sum(one.discarded.get(target, 0) for one in receipts) == 9  # of 4 first ones and 50
    assert counted(own_database) == (45, 9)
    assert len({found for _, found in rows(own_database)}) == 54


def test_nothing_appears_in_the_log_before_what_was_read_of_it(database: Database) -> None:
    """Commits happen in the order of the log, also of statements that commit by themselves and of copies."""
    over = threading.Event()

    def append(number: int) -> None:
        log, random = used(database), Random(number)
        for _ in range(40):
            log.append([some(random.choice((1, 3, MANY)))])

    def read() -> list[tuple[int, Sequence[tuple[int, str]]]]:
        seen = []
        while not over.is_set():
            with database.reading() as connection:
                last = connection.execute(sa.select(tables.log_head.c.last_seq)).scalar_one()
            seen.append((last, [row for row in rows(database) if row[0] <= last]))
        return seen

    with ThreadPoolExecutor(4) as threads:
        reading = threads.submit(read)
        for appending in [threads.submit(append, number) for number in range(3)]:
            appending.result()
        over.set()
        seen = reading.result()
    final = rows(database)
    assert len(seen) > 3
    for last, found in seen:
        assert found == [row for row in final if row[0] <= last]
    assert len({seq for seq, _ in final}) == len(final)
