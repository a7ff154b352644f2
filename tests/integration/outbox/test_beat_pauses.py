"""Beat's heartbeats, and what a pause of it has missed, on each kind of database."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from app.config.settings import Settings
from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import BEAT, Process, read_processes, record_process
from app.outbox.upkeep import Missed, Pause, last_pause, missed, read_beat_at, read_missed, record_pause
from tests.support import databases
from tests.support.builders import add_target
from workers import heartbeat as module
from workers.heartbeat import BeatHeartbeat

pytestmark = databases.TWO

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
NOON = 1_800_014_400_000  # 2027-01-15 12:00 UTC


class Clock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture
def start(outbox_url: str, tmp_path: Path) -> Callable[[], BeatHeartbeat]:
    values = {"BUCKETWIRE_DATABASE_URL": outbox_url, "BUCKETWIRE_DATA_DIR": str(tmp_path)}
    return lambda: BeatHeartbeat(Settings.from_environ(values))


def beats(database: Database) -> list[Process]:
    with database.reading() as connection:
        return [one for one in read_processes(connection) if BEAT in one.serves]


def pause(database: Database) -> Pause | None:
    with database.reading() as connection:
        return last_pause(connection)


def age(database: Database, milliseconds: int) -> None:
    """Have all beats have fallen silent so long ago."""
    at = now_ms() - milliseconds
    with database.writing() as connection:
        connection.execute(tables.workers.update().values(at=at, served_at=at, started_at=at))


@databases.THREE
def test_beat_says_when_its_loop_last_turned_and_nothing_new_while_it_hangs(
    database: Database, start: Callable[[], BeatHeartbeat], clock: Clock
) -> None:
    beat = start()
    beat.record(database)
    assert beats(database) == [], "it has not turned yet"
    beat.turned("")
    clock.now += 8
    before = now_ms()
    beat.record(database)
    [first] = beats(database)
    assert before - 9 * SECOND < first.at == first.served_at <= now_ms() - 8 * SECOND
    clock.now += HEARTBEATS.silence_ms / 1000
    beat.record(database)
    assert beats(database) == [first]
    with database.reading() as connection:
        assert read_beat_at(connection) == first.served_at
    beat.turned("the broker cannot be used")
    beat.record(database)
    [away] = beats(database)
    assert (away.problem, away.served_at, away.at > first.at) == ("the broker cannot be used", first.served_at, True)
    beat.end()
    [ended] = beats(database)
    assert ended.ended_at >= away.at
    beat.turned("")
    beat.record(database)
    assert beats(database) == [ended], "it does not come back"


def test_a_pause_of_every_beat_is_recorded_when_one_works_again(
    database: Database, start: Callable[[], BeatHeartbeat], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    first = start()
    first.turned("")
    first.record(database)
    assert pause(database) is None, "no beat has run before"
    age(database, 20 * SECOND)
    second = start()
    second.turned("")
    second.record(database)
    assert pause(database) is None, "a restart takes a moment"
    age(database, 10 * MINUTE)
    third = start()
    third.turned("the broker cannot be used")
    third.record(database)
    assert pause(database) is None, "it does not work yet"
    clock.now += 5
    third.turned("")
    third.record(database)
    found = pause(database)
    assert found is not None
    assert 10 * MINUTE <= found.ended - found.began < 10 * MINUTE + 30 * SECOND
    assert "no beat did anything for 10.0 m" in caplog.text
    clock.now += 5
    third.turned("")
    third.record(database)
    assert pause(database) == found


def test_a_beat_that_was_stopped_for_a_while_has_a_pause_and_one_without_its_database_has_none(
    database: Database, start: Callable[[], BeatHeartbeat], clock: Clock
) -> None:
    beat = start()
    for _ in range(100):  # while the database is away
        beat.turned("")
        clock.now += 6
    beat.record(database)
    age(database, 10 * MINUTE)
    beat.turned("")
    beat.record(database)
    assert pause(database) is None, "its loop has turned all the time"
    age(database, 10 * MINUTE)
    clock.now += 600
    beat.record(database)
    assert pause(database) is None
    beat.turned("")
    beat.record(database)
    found = pause(database)
    assert found is not None
    assert 9 * MINUTE < found.ended - found.began < 11 * MINUTE
    age(database, 10 * MINUTE)
    record_process(database, Process("there:1:x", "beat@there", "1", "beat", [BEAT]))
    clock.now += 600
    beat.turned("")
    beat.record(database)
    assert pause(database) == found, "another beat ran meanwhile"


def test_the_loop_notes_its_turns_whether_the_database_is_there_or_not(tmp_path: Path) -> None:
    url = "postgresql://a:b@127.0.0.1:9/c"
    settings = Settings.from_environ({"BUCKETWIRE_DATABASE_URL": url, "BUCKETWIRE_DATA_DIR": str(tmp_path)})
    beat = BeatHeartbeat(settings)
    beat.turned("")
    with closing(Database(settings.database_url)) as away, pytest.raises(sa.exc.OperationalError):
        beat.record(away)
    beat.turned("")
    beat.end()


@databases.THREE
def test_the_last_pause_replaces_the_one_before(database: Database) -> None:
    for ended in (50, 90):
        record_pause(database, Pause(10, ended))
    assert pause(database) == Pause(10, 90)


def test_what_was_missed_is_counted_by_the_schedules(database: Database) -> None:
    values = {"reconcile": "30 11 * * *", "scan": "0 4 * * *", "address": "127.0.0.1:9", "key": "rows"}
    add_target(database, "x", type_name="redis", values=values, bucket="images")
    with database.reading() as connection:
        assert read_missed(connection, Pause(NOON - HOUR, NOON), "") == Missed(360, 1, 0)
        assert read_missed(connection, Pause(NOON - 9 * HOUR, NOON), "0 * * * *") == Missed(3240, 3, 2)


@pytest.mark.parametrize(
    ("minutes", "schedule", "runs", "lost"),
    [
        (60, "59 11 * * *", 1, 0),
        (60, "0 11 * * *", 0, 0),  # it began just then
        (61, "0 11 * * *", 1, 0),
        (62, "59 10 * * *", 1, 1),
        (600, "*/5 * * * *", 1, 0),  # the last one is made up for, and is as good as those before
        (5, "0 3 * * *", 0, 0),
    ],
)
def test_of_a_schedule_what_was_due_last_decides(minutes: int, schedule: str, runs: int, lost: int) -> None:
    found = Pause(NOON - minutes * MINUTE, NOON)
    assert missed(found, [schedule], []) == Missed(minutes * 6, runs, lost)
    assert missed(found, [], [schedule]) == Missed(minutes * 6, runs, runs), "as the tables are never made up for"
