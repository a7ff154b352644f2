"""Events that left the log unread are reported, and a log that is another one is not read."""

from pathlib import Path
from typing import Any

import pytest

from app.events.model import Event
from app.outbox import log_head
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.log.reading import log_state
from app.outbox.reconcile.schedule import RunState, read_run_states
from app.outbox.tables import events as events_table
from app.outbox.tables import log_head as head_table
from spark_jobs.iceberg import LostPosition, Mark
from spark_jobs.jobs import tables as job_of_tables
from spark_jobs.jobs.tables import Tables, describe_gap, update
from spark_jobs.jobs.tables_journal import JOURNAL
from tests.spark.conftest import Job
from tests.spark.tables.conftest import environment
from tests.support.builders import add_target, migrated
from tests.support.table_events import HOUR, WEEK, T, journal_ids, made

NIGHTLY = pytest.mark.nightly("gaps that are shown, and logs that failed over")

# On a busy machine each commit takes seconds.
pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("_journal_alone")]


def test_what_left_the_log_unread_is_told_and_recorded(tables: Tables, outbox: Database) -> None:
    Log(outbox).append([[made("k", number=1)]])
    assert update(tables, outbox, 0).gaps == ()  # nothing was read before
    Log(outbox).append([[made("k", number=2)]])
    [gap] = update(tables, outbox, 0).gaps
    assert tables.journal.properties()["bucketwire.gap.1"] == gap
    assert "BUCKETWIRE_RETENTION" in job_of_tables.describe_gaps([gap])
    Log(outbox).append([[made("k", number=3)]])
    assert update(tables, outbox, WEEK).gaps == ()


@NIGHTLY
def test_a_log_in_which_nothing_happened_for_long_has_no_gap(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Log(outbox).append([[made("k", number=1)]])
    update(tables, outbox, WEEK)
    began = tables.journal.mark().read_at
    for days in (3, 6, 9):
        monkeypatch.setattr(job_of_tables, "database_now", lambda _, days=days: began + days * 24 * HOUR)
        assert update(tables, outbox, WEEK).gaps == ()
    Log(outbox).append([[made("k", number=2)]])
    assert update(tables, outbox, WEEK).gaps == ()
    monkeypatch.setattr(job_of_tables, "database_now", lambda _: began - 9 * 24 * HOUR)  # the clock was wrong
    update(tables, outbox, WEEK)
    assert tables.journal.mark().read_at < began, "a mark of the future would hide gaps"
    assert len(journal_ids(tables)) == 2


def test_the_command_fails_at_a_gap_after_it_has_added_what_there_is(
    outbox: Database, tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = environment(tmp_path, outbox)
    Log(outbox).append([[made("k", number=1)]])
    assert job(settings, "tables", "--no-maintain")[0] == 0
    Log(outbox).append([[made("k", number=2)]])
    monkeypatch.setattr(job_of_tables, "database_now", lambda _: now_ms() + 2 * WEEK)
    code, out, error = job(settings, "tables", "--no-maintain")
    assert code == 1
    assert out.startswith("1 event added")
    assert "may have left the log before the tables read them" in error
    assert "bucketwire backfill" in error
    assert ("may have left the log" in _recorded(outbox).problem, _recorded(outbox).failed_at > 0) == (True, True)
    Log(outbox).append([[made("k", number=3)]])
    code, out, error = job(settings, "tables", "--no-maintain")
    assert (code, out[:13]) == (0, "1 event added"), error
    assert (_recorded(outbox).problem, _recorded(outbox).good is not None) == ("", True)


def _recorded(outbox: Database) -> RunState:
    with outbox.reading() as connection:
        [state] = read_run_states(connection, now_ms(), tables_schedule="", oldest=0)
    return state


@pytest.mark.parametrize(
    ("read_at", "now", "gap"),
    [(0, T, ""), (T, T + WEEK // 2, ""), (T, T + WEEK + 1, True), (T, T + WEEK - 3_500_000, True)],
)
def test_a_gap_is_possible_after_the_retention_and_a_little_earlier(read_at: int, now: int, gap: bool) -> None:
    assert bool(describe_gap(Mark(5 if read_at else 0, read_at), now, WEEK)) == bool(gap)


def test_a_log_that_ends_before_the_tables_is_not_read(tables: Tables, outbox: Database, tmp_path: Path) -> None:
    Log(outbox).append([[made("k", number=n) for n in range(3)]])
    update(tables, outbox, WEEK)
    other = migrated(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(job_of_tables.LogMovedBack, match="BUCKETWIRE_TABLES_WAREHOUSE"):
        update(tables, other, WEEK)
    other.close()


def restored(path: Path, events: list[Event]) -> Database:
    """The log after a restore of an older state, with events from before and since, in an epoch of its own."""
    database = migrated(f"sqlite:///{path}")
    add_target(database)
    Log(database).append([events])
    return database


def test_a_log_that_has_lost_events_and_grown_again_is_not_read(
    tables: Tables, outbox: Database, tmp_path: Path
) -> None:
    """It is longer than what the tables have read: the positions of the lost events have others."""
    events = [made(f"k{n}", number=n) for n in range(6)]
    Log(outbox).append([events[:3]])
    update(tables, outbox, WEEK)
    older = restored(tmp_path / "older.db", [*events[:2], *events[3:]])
    with pytest.raises(job_of_tables.LogMovedBack, match="position 3 of a log that does not have"):
        update(tables, older, WEEK)
    assert journal_ids(tables) == [one.id for one in events[:3]]
    older.close()


def fail_over(outbox: Database, kept: int, since: list[Event]) -> None:
    """Make the log what it was after so many events, in a new epoch, and record others since."""
    with outbox.writing() as connection:
        connection.execute(events_table.delete().where(events_table.c.seq > kept))
        connection.execute(head_table.update().values(last_seq=kept))
        log_head.begin_epoch(connection, "by a test")
    if since:
        Log(outbox).append([since])


@pytest.mark.nightly(
    "one that has lost events: what was read is looked for in the log before each part", when=lambda kept: kept == 3
)
@pytest.mark.parametrize(
    ("step", "kept", "count", "lost"),
    [
        ("between", 2, 4, True),  # an event of the first part is lost
        ("between", 3, 3, False),
        ("while", 2, 4, True),  # the newest event of the second part is one that the log has
        ("while", 3, 3, False),
        ("while", 3, 0, True),  # the log ends before what was read, and has grown again since
    ],
)
def test_a_log_that_fails_over_within_a_run_is_read_on_only_if_it_has_what_was_read(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch, step: str, kept: int, count: int, lost: bool
) -> None:
    """Between two parts of the run, or while the second is read."""
    monkeypatch.setattr(job_of_tables, "_MAX_POSITIONS", 3)
    events = [made(f"k{n}", number=n) for n in range(6)]
    others = [made(f"k{n}", number=n) for n in range(6, 13)]
    since = others[:count]
    Log(outbox).append([events])
    name = {"between": "_fold_journal", "while": "_read_log"}[step]
    real, calls = getattr(job_of_tables, name), []

    def stepped(*arguments: Any) -> Any:
        calls.append(name)
        if len(calls) == {"between": 1, "while": 2}[step]:
            fail_over(outbox, kept, since)
        made_of_it = real(*arguments)
        if len(calls) == 2 and not count:
            Log(outbox).append([others[:4]])
        return made_of_it

    monkeypatch.setattr(job_of_tables, name, stepped)
    if lost:
        with pytest.raises(job_of_tables.LogMovedBack):
            update(tables, outbox, WEEK)
    else:
        update(tables, outbox, WEEK)
        assert journal_ids(tables) == [one.id for one in (*events[:3], *since)]
        assert tables.journal.mark().epoch == log_state(outbox)[1].epoch


def test_a_failover_that_no_worker_has_noticed_is_another_epoch(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [made(f"k{n}", number=n) for n in range(4)]
    Log(outbox).append([events[:3]])
    update(tables, outbox, WEEK)
    with outbox.writing() as connection:
        connection.execute(events_table.delete().where(events_table.c.seq == 3))
        connection.execute(head_table.update().values(last_seq=2))
    Log(outbox).append([events[3:]])
    head, state = log_state(outbox)
    monkeypatch.setattr(job_of_tables, "log_state", lambda _: (head, state._replace(is_current=False)))
    with pytest.raises(job_of_tables.LogMovedBack, match="same event at position 3"):
        update(tables, outbox, WEEK)


def test_a_log_of_another_epoch_that_has_lost_nothing_is_read_on(
    tables: Tables, outbox: Database, tmp_path: Path
) -> None:
    events = [made(f"k{n}", number=n) for n in range(4)]
    Log(outbox).append([events[:2]])
    update(tables, outbox, WEEK)
    same = restored(tmp_path / "same.db", events[:2])
    assert update(tables, same, WEEK).events == 0
    adopted = tables.journal.mark().epoch
    assert adopted == log_state(same)[1].epoch != log_state(outbox)[1].epoch
    with outbox.writing() as connection:
        log_head.begin_epoch(connection, "by a test")
    Log(outbox).append([events[2:]])
    assert update(tables, outbox, WEEK).events == 2
    assert journal_ids(tables) == [one.id for one in events]
    same.close()


@NIGHTLY
def test_a_table_without_an_epoch_gets_it_at_the_next_run(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Log(outbox).append([[made("k", number=1)]])
    with monkeypatch.context() as patched:
        patched.setattr(Mark, "properties", properties_without_epoch)
        update(tables, outbox, WEEK)
    assert tables.journal.mark().epoch == ""
    assert update(tables, outbox, WEEK).events == 0
    assert tables.journal.mark().epoch == log_state(outbox)[1].epoch


def properties_without_epoch(mark: Mark, prefix: str) -> dict[str, str]:
    """What a version that kept no epoch wrote."""
    return {f"{prefix}bucketwire.position": str(mark.position), f"{prefix}bucketwire.read-at": str(mark.read_at)}


@NIGHTLY
def test_the_newest_event_may_have_left_the_log_when_the_epoch_changes(tables: Tables, outbox: Database) -> None:
    Log(outbox).append([[made("k", number=1)]])
    update(tables, outbox, WEEK)
    with outbox.writing() as connection:
        log_head.begin_epoch(connection, "by a test")
        connection.execute(events_table.delete())
    with pytest.raises(job_of_tables.LogMovedBack):
        update(tables, outbox, WEEK)
    Log(outbox).append([[made("k", number=2)]])
    assert update(tables, outbox, -1).events == 1  # it was received before what the log keeps


@NIGHTLY
def test_a_table_without_a_position_is_not_filled_from_the_start(tables: Tables, outbox: Database) -> None:
    Log(outbox).append([[made("k", number=1)]])
    name = tables.journal.name
    columns = ", ".join(f"CAST(NULL AS {kind}) AS {column}" for column, kind in JOURNAL)
    tables.spark.sql(f"INSERT INTO {name} SELECT {columns}")
    with pytest.raises(LostPosition, match=r"bucketwire\.position"):
        update(tables, outbox, WEEK)
