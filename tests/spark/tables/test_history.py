"""The tables over time: earlier states, maintenance, new columns, and the queries of the documentation."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from spark_jobs.iceberg import IcebergTable
from spark_jobs.jobs import tables as tables_job
from spark_jobs.jobs.tables import Tables, is_due, maintain, update
from tests.spark.tables.conftest import Merged
from tests.support.builders import DELETE, PUT
from tests.support.properties import times
from tests.support.table_events import GET, HOUR, WEEK, inventory, journal_ids, made

NIGHTLY = pytest.mark.nightly("the maintenance of an inventory, of which everything is read as before")

pytestmark = pytest.mark.timeout(900)  # on a busy machine each commit takes seconds
COMMITS = times(2, 6)


def leave_file(tables: Tables, table: IcebergTable, days: int) -> Path:
    """Leave a file of that age beside the table's own, which is in no snapshot."""
    [path, *_] = [row["file_path"] for row in tables.spark.table(f"{table.name}.files").collect()]
    file = Path(path.removeprefix("file:")).parent / f"written-{days}-days-ago.parquet"
    file.write_bytes(b"not in any snapshot")
    at = now_ms() / 1000 - days * 86_400
    os.utime(file, (at, at))
    return file


def check_order(tables: Tables, files: Sequence[str]) -> None:
    """The rows of each file are in the order of their keys, as bytes, and the files one after another."""
    read = [tables.spark.read.parquet(file).select("bucket", "key").collect() for file in files]
    keys = [[(row["bucket"].encode(), row["key"].encode()) for row in rows] for rows in read]
    assert [key for file in sorted(keys) for key in file] == sorted(key for file in keys for key in file)


def check_maintained(tables: Tables, maintained: Sequence[IcebergTable]) -> None:
    """It deletes what a killed run has left, too, and spares what may belong to one that is under way."""
    marks, rows = [table.mark() for table in tables.all], (journal_ids(tables), inventory(tables, "size"))
    left, young = ([leave_file(tables, table, days) for table in maintained] for days in (4, 2))
    assert is_due(tables, now_ms())
    maintain(tables, -HOUR)  # also what it writes itself
    assert not is_due(tables, now_ms())
    assert [table.mark() for table in tables.all] == marks
    assert (journal_ids(tables), inventory(tables, "size")) == rows
    assert not any(file.exists() for file in left)
    assert all(file.exists() for file in young)
    for table in maintained:
        assert tables.spark.table(f"{table.name}.snapshots").count() == 1
        files = tables.spark.table(f"{table.name}.files")
        assert files.where("content <> 0").count() == 0, "all deletions are merged"
        if table.ordered_by:
            check_order(tables, [row["file_path"] for row in files.collect()])


@pytest.mark.usefixtures("_inventory_alone_is_maintained")
def test_maintenance_changes_nothing_that_is_read(merged: Merged, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables_job, "_MIN_FILES", 2)
    check_maintained(merged.tables, [merged.tables.inventory])


@NIGHTLY
def test_an_earlier_state_is_queried_and_maintenance_forgets_it_and_nothing_else(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    enough = min(COMMITS, tables_job._MIN_FILES)
    monkeypatch.setattr(tables_job, "_MIN_FILES", enough)  # each table has as many small files
    states = []
    for number in range(COMMITS):
        Log(outbox).append([[made(f"k{number}", number=number), made("k", number=10 + number, sequencer=f"A{number}")]])
        update(tables, outbox, WEEK)
        states.append(inventory(tables, "size"))
    snapshots = tables.spark.sql(f"SELECT snapshot_id FROM {tables.inventory.name}.snapshots ORDER BY committed_at")
    ids = [row["snapshot_id"] for row in snapshots.collect()]
    assert len(ids) == COMMITS
    query = f"SELECT bucket, key, version_id, size FROM {tables.inventory.name} VERSION AS OF {{}}"
    then = [[tuple(row) for row in tables.spark.sql(query.format(each)).collect()] for each in ids]
    assert [sorted(rows, key=repr) for rows in then] == states
    check_maintained(tables, tables.all)
    assert inventory(tables, "size") == states[-1]
    Log(outbox).append([[made("last", number=99)]])
    assert update(tables, outbox, WEEK).events == 1
    assert len(journal_ids(tables)) == 2 * COMMITS + 1


@NIGHTLY
def test_a_column_is_added_and_old_snapshots_stay_readable(
    tables: Tables, outbox: Database, monkeypatch: pytest.MonkeyPatch, session: SparkSession
) -> None:
    Log(outbox).append([[made("old", number=1)]])
    update(tables, outbox, WEEK)
    before = tables.journal.state()[1]
    session.sql(f"ALTER TABLE {tables.journal.name} DROP COLUMN request_id")  # as a version that did not have it
    again = Tables(session)
    Log(outbox).append([[made("new", number=2)]])
    update(again, outbox, WEEK)
    rows = {row["key"]: row["request_id"] for row in again.journal.frame().collect()}
    assert rows == {"old": None, "new": "r2"}
    old = session.sql(f"SELECT key, event_name FROM {tables.journal.name} VERSION AS OF {before}").collect()
    assert old == [Row(key="old", event_name=PUT)]


@NIGHTLY
def test_the_queries_of_the_documentation_find_what_they_are_for(tables: Tables, outbox: Database) -> None:
    now = now_ms()
    old, key = now - 100 * 24 * HOUR, "{}/{}".format
    events = [
        made(key("a", "cold"), number=1, size=5, at=old),
        made(key("a", "read"), number=2, size=6, at=old),
        made(key("a", "read"), GET, number=3, at=now),
        made(key("a", "new"), number=4, size=7, at=now, e_tag="same"),
        made(key("c", "copy"), number=5, size=7, at=now, e_tag="same"),
        made(key("c", "gone"), number=6, size=100, at=now),
        made(key("c", "gone"), DELETE, number=7, at=now),
        made(key("c", "tagged"), number=8, size=9, at=now),
        made(key("c", "tagged"), "s3:ObjectCreated:PutTagging", number=9, at=now),
    ]
    Log(outbox).append([events])
    update(tables, outbox, WEEK)
    page = (Path(__file__).parents[3] / "docs/how-to/tables.md").read_text()
    queries = re.findall(r"```sql\n(.*?)```", page.partition("## Queries")[2].partition("\n## ")[0], re.DOTALL)
    deleted, operations, growth, cold, duplicates, untagged, then = (
        tables.spark.sql(
            query.replace("2026-11-01 00:00:00", "2100-01-01 00:00:00").replace("'images'", "'b'")
        ).collect()
        for query in queries
    )
    assert [(row["requester"], row["source_ip_address"], row["key"]) for row in deleted] == [
        ("ann", "10.0.0.1", "c/gone")
    ]
    counted = {(row["event_name"], row["requester"], row["operations"], row["bytes"]) for row in operations}
    assert (PUT, "ann", 4, 7 + 7 + 100 + 9) in counted
    assert (DELETE, "ann", 1, None) in counted
    assert {row["folder"]: (row["written"], row["present"], row["objects"]) for row in growth} == {
        "a": (18, 18, 3), "c": (116, 16, 2),
    }  # fmt: skip
    assert [row["key"] for row in cold] == ["a/cold"]
    assert [(row["e_tag"], row["copies"], row["wasted"], row["example"]) for row in duplicates] == [
        ("same", 2, 7, "b/a/new")
    ]
    assert [row["key"] for row in untagged] == ["a/cold", "a/new", "a/read", "c/copy"]
    assert [row["key"] for row in then] == ["a/cold", "a/new", "a/read", "c/copy", "c/tagged"]
