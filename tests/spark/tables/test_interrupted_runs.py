"""Each event is in the tables once, whatever interrupts a run or runs beside it."""

import os
import random
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession

from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from spark_jobs.iceberg import AlreadyUpdating, IcebergTable, Warehouse
from spark_jobs.jobs.tables import Tables, update
from tests import services
from tests.spark.conftest import Job
from tests.spark.tables.conftest import environment
from tests.support.builders import DELETE, PUT
from tests.support.properties import times
from tests.support.service_processes import BUCKETWIRE
from tests.support.table_events import HEAVY, WEEK, folded, histories, inventory, journal_ids, made, opened

NIGHTLY = pytest.mark.nightly("a run that is killed at any commit, and two at once")

pytestmark = pytest.mark.timeout(900)  # on a busy machine each commit takes seconds


class Killed(BaseException):
    """The process ends here."""


# Before the second and third commit nothing is there that was not after the one before.
STEPS = [(name, table, when) for name, table in (("add", "journal"), ("merge", "versions"), ("merge", "inventory"))
         for when in ("before", "after") if when == "after" or name == "add" or times(0, 1)]  # fmt: skip


@pytest.mark.promise
def test_a_run_that_is_killed_at_any_commit_is_continued(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else of a run is seen by the next one: these are all the states in which it can be killed."""
    events = histories(20, 40 * len(STEPS))
    for number, (name, table, when) in enumerate(STEPS):
        Log(outbox).append([events[40 * number : 40 * (number + 1)]])
        original = getattr(IcebergTable, name)

        def dies(
            self: IcebergTable, *arguments: Any, original: Any = original, at: Any = (table, when), **named: Any
        ) -> None:
            if not self.name.endswith(at[0]):
                return original(self, *arguments, **named)
            if at[1] == "after":
                original(self, *arguments, **named)
            raise Killed

        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, name, dies)
            with pytest.raises(Killed):
                update(tables, outbox, WEEK)
    update(tables, outbox, WEEK)
    assert journal_ids(tables) == [one.id for one in events]
    rows = inventory(tables, "is_delete_marker", "is_latest", "log_position")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == folded(events)
    again = update(tables, outbox, WEEK)
    assert (again.events, again.keys) == (0, 0)


@pytest.mark.promise
@NIGHTLY
@pytest.mark.parametrize("kills", [1, pytest.param(20, marks=HEAVY)])
def test_the_command_is_killed_and_run_again(
    outbox: Database, session: SparkSession, tmp_path: Path, job: Job, kills: int
) -> None:
    rng, events, folder = random.Random(kills), histories(50, 100 * kills), tmp_path / "tables"
    environ = environment(tmp_path, outbox)
    command = [str(BUCKETWIRE), "tables", "--json"]
    for number in range(kills):
        Log(outbox).append([events[100 * number : 100 * (number + 1)]])
        # A run makes about forty files, the last ones when it has committed.
        enough = sum(1 for _ in folder.rglob("*")) + rng.randrange(8, 40)
        run = subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0
        )
        services.until(
            lambda run=run, enough=enough: run.poll() is not None or sum(1 for _ in folder.rglob("*")) >= enough, 600,
            what="the run in the middle of its work",
        )  # fmt: skip
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()
    code, out, error = job(environ, *command[1:])
    assert code == 0, error
    assert orjson.loads(out)["position"] == len(events)
    found = opened(session, Warehouse(str(folder)))
    assert journal_ids(found) == [one.id for one in events]
    rows = inventory(found, "is_delete_marker", "is_latest", "log_position")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == folded(events)


@pytest.mark.promise
@pytest.mark.usefixtures("_journal_alone_in_make_test")
def test_of_two_runs_at_once_one_gives_up_and_no_row_is_doubled(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other run begins and ends while this one has read the log and not yet committed; twice, also at first."""
    original = IcebergTable.add
    for number in range(2):
        Log(outbox).append([[made(f"k{number}", number=number)]])
        once = iter([True])

        def overtaken(self: IcebergTable, *arguments: Any, once: Any = once) -> None:
            if next(once, False):
                assert update(tables, outbox, WEEK).events == 1
            original(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, "add", overtaken)
            with pytest.raises(AlreadyUpdating, match="another run"):
                update(tables, outbox, WEEK)
        assert len(journal_ids(tables)) == number + 1
    assert update(tables, outbox, WEEK).events == 0


def update_overtaken(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch, events: Sequence[Event], table: str = ""
) -> None:
    """Update; before the first merge into the table, or into any, record events that another update takes."""
    original, once = IcebergTable.merge, iter([True])

    def overtaken(self: IcebergTable, *arguments: Any, **named: Any) -> None:
        if self.name.endswith(table) and next(once, False):
            Log(outbox).append([events])
            assert update(tables, outbox, WEEK).events == len(events)
        original(self, *arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "merge", overtaken)
        with suppress(AlreadyUpdating):
            update(tables, outbox, WEEK)


@pytest.mark.promise
@NIGHTLY
@pytest.mark.parametrize("table", ["versions", "inventory"])
def test_a_run_that_was_stopped_before_a_merge_and_goes_on_after_others_changes_nothing_for_the_worse(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """Another run has read more of the log meanwhile, and has removed what this one would add."""
    events = histories(10, 120)
    Log(outbox).append([events[:60]])
    update_overtaken(tables, outbox, monkeypatch, events[60:], table)
    update(tables, outbox, WEEK)
    assert journal_ids(tables) == [one.id for one in events]
    rows = inventory(tables, "is_delete_marker", "is_latest", "log_position")
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == folded(events)
    assert len(rows) == len(folded(events))


@pytest.mark.promise
@NIGHTLY
def test_an_event_without_a_sequencer_that_is_folded_again_stays_where_it_was(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened after it was folded by another run, whose position this one has set back."""
    Log(outbox).append([[made("k", PUT, "", "A1", 1)]])
    update_overtaken(tables, outbox, monkeypatch, [made("k", DELETE, number=2), made("k", PUT, "", "A5", 3)])
    update(tables, outbox, WEEK)
    Log(outbox).append([[made("k", PUT, "", "A2", 4)]])  # late: it changes nothing, but its key is looked at again
    update(tables, outbox, WEEK)
    assert inventory(tables, "size") == [("b", "k", None, 3)]
    Log(outbox).append([[made("k", DELETE, number=5)]])
    update(tables, outbox, WEEK)
    assert inventory(tables, "size") == []


def test_a_folder_has_one_writer_at_a_time(tmp_path: Path) -> None:
    warehouse = Warehouse(f"{tmp_path}/tables")
    with warehouse.locked(), pytest.raises(AlreadyUpdating, match="another run is writing to"), warehouse.locked():
        pass
    with warehouse.locked():
        pass
