"""The journal: read from the log and from real targets, kept once in Parquet, summed up in a report."""

from __future__ import annotations

import csv
import fcntl
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from spark_jobs.jobs.journal import (
    ENTRIES,
    JOURNAL,
    OPERATIONS,
    QUARANTINE,
    RECORDED,
    not_in,
    operations,
    parse_entries,
    parse_log,
    sum_by,
)
from spark_jobs.jobs.journal_compact import (
    EVENTS,
    QUARANTINED,
    AlreadyCompacting,
    compact,
    journal_folder,
    read_journal,
)
from spark_jobs.reports.journal_report import select, write
from spark_jobs.stores import CannotRead
from tests import provision, services
from tests.spark.conftest import QUICKLY
from tests.support.builders import add_target, event, migrated, registry
from tests.support.hostile_names import BUCKETS
from tests.support.service_processes import BUCKETWIRE
from tests.support.target_contents import MysqlContents
from workers.delivery.outcomes import DELIVERED
from workers.targets import create

PUT, DELETE, HEAD = "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete", "s3:ObjectAccessed:Head"
T = 1_794_992_800_123  # 2026-11-18T09:06:40.123Z
HOUR, DAY = 3_600_000, 86_400_000
ALL = ["id", "time", "name", "key", "version", "size", "etag", "user", "address", "record", "day", "bucket"]


def record(key: str = "dir+a%2F%C3%BC", **more: Any) -> str:
    thing = {"key": key, "size": 12, "eTag": "e", "versionId": "null", "sequencer": "18E9"}
    whole = {
        "eventName": PUT, "eventTime": "2026-11-18T09:06:40.123Z", "userIdentity": {"principalId": "ann"},
        "s3": {"bucket": {"name": "b"}, "object": thing}, "source": {"host": "10.0.0.7"},
    }  # fmt: skip
    return orjson.dumps(whole | more).decode()


def test_an_entry_is_read_in_every_shape_that_a_target_is_given(spark: SparkSession) -> None:
    one = record()
    shapes = [f'{{"Records":[{one}]}}', f'[{{"Event":[{one}],"EventTime":"x"}}]', f'["x",[{one}]]']
    entries = spark.createDataFrame([(None, shape) for shape in (*shapes, shapes[0])], ENTRIES)
    events, quarantine = parse_entries(entries)
    assert quarantine.count() == 0
    row = (T, PUT, "dir a/ü", "", 12, "e", "ann", "10.0.0.7", "2026-11-18", "b")
    expected = spark.createDataFrame([row] * 3, "time bigint, name string, key string, version string, size bigint, "
        "etag string, user string, address string, day string, bucket string")  # fmt: skip
    assertDataFrameEqual(events.drop("id", "record"), expected)
    assert len({found["id"] for found in events.collect()}) == 3  # other texts, other ids; the repeated one once
    assert {orjson.dumps(orjson.loads(found["record"])).decode() for found in events.collect()} == {one}
    assert events.columns == ALL


def test_what_is_no_event_is_quarantined_and_what_lacks_a_time_has_the_rows(spark: SparkSession) -> None:
    timeless = record(eventTime="yesterday", userIdentity=None)
    broken = [record(eventName=""), record(key="%zz"), record(s3={"bucket": {"name": "b"}})]
    bad = [None, "", "{", "[]", '{"Records":[]}', *(f'{{"Records":[{one}]}}' for one in broken)]
    texts = [*bad, f'{{"Records":[{timeless}]}}']
    events, quarantine = parse_entries(spark.createDataFrame([(T + DAY, text) for text in texts], ENTRIES))
    assert sorted(str(found["document"]) for found in quarantine.collect()) == sorted(map(str, bad[:1] + bad[2:]))
    assertDataFrameEqual(
        events.select("time", "day", "user"),
        spark.createDataFrame([(T + DAY, "2026-11-19", "")], "time bigint, day string, user string"),
    )


def test_the_logs_own_columns_count_where_it_has_them(spark: SparkSession) -> None:
    recorded = spark.createDataFrame([("i" * 32, T, HEAD, "c", "its key", "v", record())], RECORDED)
    expected = [("i" * 32, T, HEAD, "its key", "v", 12, "e", "ann", "10.0.0.7", record(), "2026-11-18", "c")]
    assertDataFrameEqual(parse_log(recorded), spark.createDataFrame(expected, JOURNAL), ignoreNullable=True)


def test_only_what_is_not_known_is_new(spark: SparkSession) -> None:
    found, known = (spark.createDataFrame([(one, 1) for one in ids], "id string, n int") for ids in ("abc", "bx"))
    assertDataFrameEqual(not_in(found, known, "id"), spark.createDataFrame([("a", 1), ("c", 1)], "id string, n int"))


def done(spark: SparkSession, rows: Sequence[tuple[int, str, str, str, int | None]]) -> DataFrame:
    """A JOURNAL of time, name, bucket, user, size."""
    whole = [
        (str(n), at, name, "k", "", size, "e", user, "", "{}", "2026-11-18" if at < T + DAY else "2026-11-19", bucket)
        for n, (at, name, bucket, user, size) in enumerate(rows)
    ]
    return spark.createDataFrame(whole, JOURNAL)


def test_operations_are_added_up_by_bucket_hour_user_and_type(spark: SparkSession) -> None:
    rows = [
        (T, PUT, "b", "ann", 5), (T + 1, PUT, "b", "ann", 7), (T + HOUR, PUT, "b", "ann", 1),
        (T, DELETE, "b", "ann", None), (T, PUT, "b", "", 2), (T, PUT, "c", "ann", 3),
    ]  # fmt: skip
    found = operations(done(spark, rows))
    nine, ten = "2026-11-18T09:00Z", "2026-11-18T10:00Z"
    expected = [
        ("b", nine, "ann", PUT, 2, 12), ("b", ten, "ann", PUT, 1, 1), ("b", nine, "ann", DELETE, 1, 0),
        ("b", nine, "", PUT, 1, 2), ("c", nine, "ann", PUT, 1, 3),
    ]  # fmt: skip
    assertDataFrameEqual(found, spark.createDataFrame(expected, OPERATIONS), ignoreNullable=True)
    totals = spark.createDataFrame([("b", 5, 15), ("c", 1, 3)], "bucket string, operations bigint, bytes bigint")
    assertDataFrameEqual(sum_by(found, "bucket"), totals, ignoreNullable=True)


def test_a_part_of_a_journal_is_chosen_by_time_and_bucket(spark: SparkSession) -> None:
    rows = [(T, PUT, "b", "", 1), (T + 1, PUT, "c", "", 2), (T + DAY, PUT, "b", "", 3)]
    whole = done(spark, rows)

    def sizes(**what: Any) -> list[int]:
        return sorted(row["size"] for row in select(whole, **what).collect())

    assert sizes() == [1, 2, 3]
    assert sizes(since=T + 1) == [2, 3]
    assert sizes(before=T + 1) == [1]
    assert sizes(since=T, before=T + DAY, bucket="b") == [1]


def test_a_report_is_whole_in_itself_and_escapes_what_it_shows(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(T + hour * HOUR, PUT, f"b{hour}", "<script>$x$", 5) for hour in range(20)]
    reported = write(done(spark, rows), tmp_path / "new", source="redis:<b>", created_at=T)
    page = reported.page.read_text()
    assert reported.operations == 20
    assert "<script" not in page
    assert "redis:&lt;b&gt;" in page
    assert not re.search(r"""<link|<script| src=|@import|url\((?!#)|href="(?!#)""", page)
    assert page.count("<svg") == 4
    assert "all others" in page  # more buckets than are shown
    with (tmp_path / "new/by-user.csv").open(newline="") as file:
        assert list(csv.reader(file)) == [["user", "operations", "bytes"], ["<script>$x$", "20", "100"]]
    assert {path.name for path in (tmp_path / "new").glob("by-*.csv")} == {
        "by-bucket.csv", "by-hour.csv", "by-user.csv", "by-type.csv",
    }  # fmt: skip
    empty = write(done(spark, []), tmp_path / "empty", source="the event log", created_at=T)
    assert (empty.operations, "no operations in this period" in empty.page.read_text()) == (0, True)


@contextmanager
def outbox(server: services.Postgres | None = None) -> Iterator[Database]:
    """An outbox of its own, on SQLite unless a server is given."""
    folder = services.new_folder("journal")
    name = f"journal_{folder.name.replace('-', '_').lower()}"
    database = migrated(server.create_database(name) if server else f"sqlite:///{folder}/outbox.db")
    try:
        yield database
    finally:
        database.close()


def happened(count: int = 12) -> list[Event]:
    """Of two buckets, one of them called like a number."""
    return [
        event(f"dir/a b {n:02}", bucket=("2026", "images")[n % 2], name=(PUT, DELETE, HEAD)[n % 3])
        for n in range(count)
    ]


def deliver(database: Database, target: TargetId, events: Sequence[Event]) -> None:
    settings = registry(database).settings(registry(database).target(target))
    adapter = create(target.type, settings)
    adapter.open()
    try:
        assert set(adapter.deliver(events, 1)) == {DELIVERED}
    finally:
        adapter.close()


def keys(spark: SparkSession, kept: Path) -> list[tuple[str, str]]:
    return sorted((row["bucket"], row["key"]) for row in read_journal(spark, kept).collect())


def test_the_log_is_kept_once_and_stays_when_it_is_forgotten(
    spark: SparkSession, tmp_path: Path, postgres_server: services.Postgres
) -> None:
    events = happened()
    expected = sorted((one.bucket, one.key) for one in events)
    for server in (None, postgres_server):
        folder = tmp_path / ("postgres" if server else "sqlite")
        with outbox(server) as database:
            add_target(database)
            Log(database).append([events[:8]])
            first = compact(spark, database, registry(database), folder)
            assert (first.events, first.written, first.quarantined) == (8, 8, 0)
            again = compact(spark, database, registry(database), folder)
            assert (again.events, again.written) == (8, 0)
            with database.writing() as connection:
                connection.exec_driver_sql("DELETE FROM events")
            Log(database).append([events[8:]])
            last = compact(spark, database, registry(database), folder)
            assert (last.events, last.written) == (4, 4)
        kept = journal_folder(folder, None)
        assert keys(spark, kept) == expected
        found = read_journal(spark, kept).collect()
        assert {row["id"]: row["record"] for row in found} == {one.id: one.record for one in events}
        assert {path.name for path in (kept / EVENTS).glob("day=*/bucket=*")} == {"bucket=2026", "bucket=images"}


def test_no_name_of_a_bucket_stops_the_journal_or_its_report_or_leaves_its_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    events = [event("k", bucket=name) for name in (*BUCKETS, "images", "__HIVE_DEFAULT_PARTITION__")]
    with outbox() as database:
        add_target(database)
        Log(database).append([events])
        first = compact(spark, database, registry(database), tmp_path / "kept")
        again = compact(spark, database, registry(database), tmp_path / "kept")
    assert (first.written, again.written) == (len(events), 0)
    found = {row["id"]: row for row in read_journal(spark, journal_folder(tmp_path / "kept", None)).collect()}
    for one in events:
        row = found[one.id]
        assert row["record"] == one.record
        usual = row["bucket"] == one.bucket or one.bucket == "__HIVE_DEFAULT_PARTITION__"
        assert usual or (len(one.bucket.encode()) > 80 and len(row["bucket"].encode()) <= 80)
    assert {path.name for path in tmp_path.iterdir()} == {"kept"}
    assert len({row["bucket"] for row in found.values()}) == len(events), "none is taken for another"

    reported = write(
        read_journal(spark, journal_folder(tmp_path / "kept", None)),
        tmp_path / "new",
        source="the event log",
        created_at=T,
    )
    page = reported.page.read_text()
    assert reported.operations == len(events)
    assert "<script" not in page
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", page), "it can be read as XML"


def test_two_runs_do_not_write_into_one_folder(spark: SparkSession, tmp_path: Path) -> None:
    kept = journal_folder(tmp_path, None)
    kept.mkdir()
    with outbox() as database, (kept / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(AlreadyCompacting, match="another run is writing to"):
            compact(spark, database, registry(database), tmp_path)


def test_a_targets_entries_are_kept_and_reported(
    spark: SparkSession, tmp_path: Path, postgres_server: services.Postgres
) -> None:
    """Of PostgreSQL, by the real adapter; its report by the command."""
    name = f"journal_{tmp_path.name.replace('-', '_').lower()}"
    postgres_server.create_database(name)
    target, kept = TargetId("postgresql", "log"), journal_folder(tmp_path, TargetId("postgresql", "log"))
    with outbox() as database:
        values = {"connection_string": postgres_server.dsn(name), "table": '"Odd Log"', "format": "access"}
        add_target(database, "log", type_name="postgresql", values=values)
        events = happened()
        deliver(database, target, [*events, events[0]])  # one of them twice, as a crash may have it
        with postgres_server.connection(name) as connection, connection.cursor() as cursor:
            cursor.execute("""INSERT INTO "Odd Log" VALUES (now(), '{"Records": []}'), (now(), NULL)""")
            connection.commit()
        for written in (12, 0):
            result = compact(spark, database, registry(database), tmp_path, target)
            assert (result.events, result.written, result.quarantined) == (12, written, 2)
        assert keys(spark, kept) == sorted((one.bucket, one.key) for one in events)
        assert spark.read.schema(QUARANTINE).parquet(str(kept / QUARANTINED)).count() == 2
        later = compact(
            spark, database, registry(database), tmp_path, target, since=max(one.time for one in events) + 1
        )
        assert later.events == 0
        with pytest.raises(CannotRead, match="needs a target of format access"):
            compact(spark, database, registry(database), tmp_path, add_target(database, "hook"))
        more = {"BUCKETWIRE_DATABASE_URL": str(database.url), "BUCKETWIRE_DATA_DIR": str(services.new_folder("var"))}
        more |= {"BUCKETWIRE_SPARK_MASTER": "local[1]", "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS)}
        argv = [BUCKETWIRE, "journal", "report", "--target", str(target), "--folder", str(tmp_path), "--bucket", "2026"]
        ran = subprocess.run(
            [*argv, "--json"], env=os.environ | more | QUICKLY, capture_output=True,
            timeout=240, check=False,
        )  # fmt: skip
    assert ran.returncode == 0, ran.stderr.decode()
    result = orjson.loads(ran.stdout)
    assert result["operations"] == 6
    with Path(result["page"]).with_name("by-type.csv").open(newline="") as file:
        assert sorted(csv.reader(file))[:3] == [[HEAD, "2", "0"], [PUT, "2", "0"], [DELETE, "2", "0"]]


def test_entries_are_read_from_mysql_and_from_a_list_in_redis(
    spark: SparkSession, tmp_path: Path, mysql_server: services.MySQL
) -> None:
    name = f"journal_{tmp_path.name.replace('-', '_').lower()}"
    mysql_server.create_database(name)
    events = happened()
    with outbox() as database, services.redis() as server:
        places = {
            "mysql": {"dsn_string": MysqlContents(mysql_server, name).dsn, "table": "log"},
            "redis": {"address": f"{services.LOOPBACK}:{server.port}", "key": "log"},
        }
        for type_name, values in places.items():
            target = add_target(database, "log", type_name=type_name, values=values | {"format": "access"})
            deliver(database, target, events)
            for written in (12, 0):
                result = compact(spark, database, registry(database), tmp_path, target)
                assert (result.events, result.written, result.quarantined) == (12, written, 0)
            assert keys(spark, journal_folder(tmp_path, target)) == sorted((one.bucket, one.key) for one in events)
