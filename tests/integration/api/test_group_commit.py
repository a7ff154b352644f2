"""The group commit and COPY: a value that cannot be kept, a connection that is cut, a request that gave up."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import psycopg2
import pytest
import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.engine import postgresql
from app.outbox.engine.database import VALUE_ERRORS, Database, DatabaseUnavailable
from app.outbox.engine.many_rows import insert
from app.outbox.log.append import Log, QueueFull, Receipt
from app.outbox.log.group_commit import GroupCommit
from app.outbox.log.routing import MatchingTooSlow
from app.rules.filters import Filters, MatchingBusy, one_at_a_time
from app.rules.matching import Matcher
from app.rules.model import Rule
from tests import services
from tests.integration.api.conftest import keys, records
from tests.support.builders import add_target, event, migrated, registry
from tests.support.outboxes import in_file


@pytest.mark.parametrize("size", [1, 20])
def test_a_value_that_cannot_be_kept_fails_its_own_request_only(log: Database, size: int) -> None:
    commits = GroupCommit(log)
    requests = [[event(f"{number}-{place}") for place in range(size)] for number in range(40)]
    requests[13] = [*requests[13], event("zero\0byte")]

    def append(number: int) -> Receipt | QueueFull | BaseException:
        try:
            return commits.append(requests[number])
        except VALUE_ERRORS as error:
            return error

    with ThreadPoolExecutor(40) as threads:
        answers = list(threads.map(append, range(40)))
    assert isinstance(answers.pop(13), BaseException)
    assert all(answer == Receipt(recorded=size) for answer in answers)
    assert len(keys(log)) == 39 * size
    assert commits.append([event("after")]) == Receipt(recorded=1)


def test_with_a_commit_for_each_request_all_are_recorded_too(log: Database) -> None:
    commits = GroupCommit(log, max_events=1)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: commits.append([event(f"{number}")]), range(50)))
    assert len(keys(log)) == 50
    with log.reading() as connection:
        commits_made = connection.execute(sa.text("SELECT COUNT(DISTINCT xmin::text) FROM events")).scalar_one()
    assert commits_made == 50


def test_a_request_that_gave_up_before_its_turn_is_not_recorded_later(log: Database) -> None:
    commits = GroupCommit(log)
    commits.append([event("first")])
    locked, done = threading.Event(), threading.Event()

    def hold_the_head() -> None:
        with log.writing() as connection:
            connection.execute(tables.log_head.update().values(last_seq=tables.log_head.c.last_seq))
            locked.set()
            done.wait(30)

    with ThreadPoolExecutor(3) as threads:
        holding = threads.submit(hold_the_head)
        locked.wait(10)
        working = threads.submit(commits.append, [event("in work")])
        services.until(lambda: waiting_for_the_head(log) == 1)
        with pytest.raises(TimeoutError):
            commits.append([event("gave up")], 0.2)
        done.set()
        holding.result()
        assert working.result() == Receipt(recorded=1)
        assert commits.append([event("after")]) == Receipt(recorded=1)
    assert keys(log) == ["first", "in work", "after"]


def test_a_request_that_commits_itself_gives_up_in_time_and_can_be_sent_again(log: Database) -> None:
    commits = ready(log)
    backend = single_backend(log)
    locked, done = threading.Event(), threading.Event()

    def hold_the_head() -> None:
        with log.writing() as connection:
            log_head.lock(connection)
            locked.set()
            done.wait(30)

    events = [event("late")]
    with ThreadPoolExecutor(1) as threads:
        holding = threads.submit(hold_the_head)
        assert locked.wait(10)
        began = time.monotonic()
        # A lock is waited for by this thread, then by that for groups, until both have asked for it often enough.
        with pytest.raises((TimeoutError, *DatabaseUnavailable)):
            commits.append(events, 6)
        assert time.monotonic() - began < 15
        done.set()
        holding.result()
    services.until(lambda: waiting_for_the_head(log) == 0)
    again = commits.append(events)
    assert isinstance(again, Receipt)
    assert again.recorded + again.repeated == 1
    assert keys(log)[2:] == ["late"]
    assert single_backend(log) == backend  # a lock is no reason to give a connection up


def test_requests_one_by_one_commit_themselves_and_those_that_come_meanwhile_are_committed_together(
    log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(postgresql._SESSION, "lock_timeout", "60s")
    log = Database(log.url.render_as_string(hide_password=False))
    commits = ready(log)
    threads_used: list[str] = []
    in_one_trip = log.in_one_trip

    def noting(*arguments: Any) -> Any:
        threads_used.append(threading.current_thread().name)
        return in_one_trip(*arguments)

    log.in_one_trip = noting  # type: ignore[method-assign]
    for number in range(3):
        assert commits.append([event(f"one {number}")]) == Receipt(recorded=1)
    assert threads_used == [threading.current_thread().name] * 3
    with log.writing() as connection:
        log_head.lock(connection)
        threads = ThreadPoolExecutor(9)
        first = threads.submit(commits.append, [event("first")])
        services.until(lambda: waiting_for_the_head(log) == 1)
        others = [threads.submit(commits.append, [event(f"other {number}")]) for number in range(8)]
        services.until(lambda: commits._committing.get().thread_waits and commits._committing.get().queue.qsize() == 7)
    assert [one.result() for one in (first, *others)] == [Receipt(recorded=1)] * 9
    assert threads_used[4:] == ["group-commit"]
    threads.shutdown()
    log.close()


@pytest.mark.parametrize("what", ["killed", "closed"])
def test_a_connection_that_was_lost_is_no_reason_to_refuse_an_event(
    log: Database, postgres_server: services.Postgres, what: str
) -> None:
    commits = ready(log)
    if what == "killed":
        with postgres_server.connection() as other, other.cursor() as cursor:
            name = log.url.database
            cursor.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", (name,))
    else:
        log.close()
    for number in range(3):
        assert commits.append([event(f"after {number}")]) == Receipt(recorded=1)
    assert keys(log)[2:] == ["after 0", "after 1", "after 2"]


def test_a_thread_that_cannot_be_started_fails_one_request_and_not_all_later_ones(
    log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = GroupCommit(log)

    def no_threads(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without:
        without.setattr(threading.Thread, "start", no_threads)
        with pytest.raises(RuntimeError):
            commits.append([event("refused")])
    assert commits.append([event("recorded")]) == Receipt(recorded=1)


def ready(log: Database) -> GroupCommit:
    """Commits of which the next single request commits itself: the second one has opened the connection for that."""
    commits = GroupCommit(log)
    for number in range(2):
        assert commits.append([event(f"before {number}")]) == Receipt(recorded=1)
    services.until(lambda: not commits._committing.get().lock.locked())
    return commits


def single_backend(log: Database) -> int:
    """The server's process of the connection for appends in one round trip."""
    with closing(log._reader.raw_connection()) as connection:
        driver: Any = connection.driver_connection
        return int(driver.info.backend_pid)


def waiting_for_the_head(database: Database) -> int:
    with database.reading() as connection:
        waiting = (
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(connection.execute(sa.text(waiting)).scalar_one())


def test_everything_that_a_text_can_hold_survives_a_copy(log: Database) -> None:
    odd = [
        "\\",
        "\\.",
        "\\N",
        "a\tb",
        "a\nb",
        "a\r\nb",
        "\\t",
        "\x01\x1f\x7f",
        "\u2028\ufeff",
        "\U0001f600",
        "",
        " ",
        "'\"",
    ]
    events = [event(f"{text}{number}", version=text) for number, text in enumerate(odd)]
    Log(log).append([events])
    with log.reading() as connection:
        rows = connection.execute(
            sa.select(tables.events.c.key, tables.events.c.version).order_by(tables.events.c.seq)
        ).all()
    assert [tuple(row) for row in rows] == [(one.key, one.version) for one in events]
    assert records(log) == [one.record for one in events]


def test_a_connection_that_is_cut_during_a_copy_records_nothing_and_the_next_one_works(
    log: Database, postgres_server: services.Postgres
) -> None:
    rows = [(f"{number}", number) for number in range(20)]

    def cut() -> None:
        with log.writing() as connection:
            pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            with postgres_server.connection() as other, other.cursor() as cursor:
                cursor.execute("SELECT pg_terminate_backend(%s)", (pid,))
            insert(connection, tables.heartbeats, rows)

    with pytest.raises(DatabaseUnavailable):
        cut()
    with log.writing() as connection:
        insert(connection, tables.heartbeats, rows)
    with log.reading() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(tables.heartbeats)).scalar_one() == 20


def test_an_outbox_that_became_read_only_is_away_and_not_at_fault(log: Database) -> None:
    commits = GroupCommit(log)
    assert commits.append([event()]) == Receipt(recorded=1)
    with log.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        name = connection.execute(sa.text("SELECT current_database()")).scalar_one()
        connection.execute(sa.text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    log.close()  # new connections only, as after a failover
    with pytest.raises(DatabaseUnavailable) as caught:
        commits.append([event()])
    assert isinstance(caught.value.orig, psycopg2.errors.ReadOnlySqlTransaction)


def test_a_request_whose_events_take_long_to_compare_with_the_rules_makes_no_other_wait(
    log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits, matching, go_on, threads = GroupCommit(log), threading.Event(), threading.Event(), set[str]()
    targets = Matcher.targets

    def slow_for_some(matcher: Any, bucket: str, name: str, key: str, record: str = "") -> Any:
        threads.add(threading.current_thread().name)
        if key == "slow":
            matching.set()
            assert go_on.wait(60)
        return targets(matcher, bucket, name, key, record)

    monkeypatch.setattr(Matcher, "targets", slow_for_some)
    commits.append([event("first")])
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(commits.append, [event("slow"), event("slow too")], 60)
        try:
            assert matching.wait(60)
            assert commits.append([event("quick")], 20) == Receipt(recorded=1)
            with ThreadPoolExecutor(8) as many:
                answers = list(many.map(lambda number: commits.append([event(f"{number}")], 20), range(40)))
            assert answers == [Receipt(recorded=1)] * 40
        finally:
            go_on.set()
        assert slow.result(60) == Receipt(recorded=2)
    assert "group-commit" not in threads


def test_events_are_compared_with_the_rules_of_their_commit_and_never_by_the_thread_that_commits(
    log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(log, bucket="another")
    commits, threads = GroupCommit(log), set[str]()
    targets = Matcher.targets

    def noted(matcher: Any, *event: str) -> Any:
        threads.add(threading.current_thread().name)
        return targets(matcher, *event)

    monkeypatch.setattr(Matcher, "targets", noted)
    expected = 0
    for number in range(10):
        rule = Rule(bucket=event("k").bucket, events=("*",), target=target, prefix=f"{number}-")
        registry(log).replace_rules(rule.bucket, [rule])
        with ThreadPoolExecutor(8) as many:
            for receipt in many.map(lambda key: commits.append([event(key)]), [f"{number}-{key}" for key in range(8)]):
                assert isinstance(receipt, Receipt)
                assert receipt.matched == {target: 1}
                expected += 1
    assert len(keys(log)) == expected
    assert "group-commit" not in threads


def test_many_events_that_take_too_long_to_compare_are_refused_and_one_is_recorded(
    log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = GroupCommit(log)
    targets = Matcher.targets

    def slow(matcher: Any, *event: str) -> Any:
        time.sleep(0.2)
        return targets(matcher, *event)

    commits.append([event("before")])
    monkeypatch.setattr(Matcher, "targets", slow)
    with pytest.raises(MatchingTooSlow, match=r"after \d+ of 100 events"):
        commits.append([event(f"{number}") for number in range(100)], 2)
    assert commits.append([event("alone")], 10) == Receipt(recorded=1)
    assert keys(log) == ["before", "alone"]


def test_while_an_event_is_costly_to_compare_others_are_recorded_and_costly_ones_are_refused(
    log: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.rules.filters._FREE_SECONDS", 0.001)
    commits, target = GroupCommit(log), add_target(log, bucket="another")
    filters = [Filters(regex=f".*a[ab]{{{60 + number}}}b.*x{number}") for number in range(100)]
    rules = [Rule(bucket="costly", events=("*",), target=target, filters=one) for one in filters]
    registry(log).replace_rules("costly", rules)
    first, second = (event("".join(Random(number).choices("ab", k=1000)), bucket="costly") for number in range(2))
    assert commits.append([first]) == Receipt(recorded=1)
    with one_at_a_time:
        with pytest.raises(MatchingBusy):
            commits.append([second])
        for number in range(20):
            receipt = commits.append([event(f"{number}", bucket="another")])
            assert isinstance(receipt, Receipt)
            assert receipt.matched == {target: 1}
    assert commits.append([second]) == Receipt(recorded=1)


def test_a_request_gets_its_answer_in_time_while_a_file_is_locked(tmp_path: Path) -> None:
    with closing(migrated(in_file(tmp_path / "outbox.db"))) as database:
        commits = GroupCommit(database)
        assert commits.append([event("before")]) == Receipt(recorded=1)
        with database.writing() as connection:
            log_head.lock(connection)
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                commits.append([event("late")], 2.5)
            assert time.monotonic() - began < 15  # a statement may wait for 20 s
