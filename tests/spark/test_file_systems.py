"""Reports in other file systems than this machine's, and this machine's files where another one is the default.

The other file system is Hadoop's `viewfs`, a table of links; a bucket is tried in `test_backfill.py`.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest
from pyspark.sql import SparkSession

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.reconcile import log_queries
from app.outbox.reconcile.runs import Reconciliations
from spark_jobs import reports, stores
from spark_jobs.api_client import Api
from spark_jobs.folders import Folder, NotShared, spark_url
from spark_jobs.frames import ROWS
from spark_jobs.jobs.backfill import BackfillConfig, backfill
from spark_jobs.jobs.reconcile import ReconcileConfig, ReconcileResult, reconcile
from spark_jobs.reports import FINDINGS, LINES, PAGE, check_shared
from tests.support.builders import add_target, event, migrated, registry
from tests.support.frames import frame_of

OLD = "2026-11-01T00:00:00Z"
REDIS = {"address": "127.0.0.1:9", "key": "rows"}


@pytest.fixture
def elsewhere(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """Have another file system as the default, in which `/reports` is the folder `there`, and no other path exists."""
    (tmp_path / "there").mkdir()
    hadoop, name = spark.sparkContext._jsc.hadoopConfiguration(), uuid4().hex  # Hadoop keeps a file system by its name
    before = hadoop.get("fs.defaultFS")
    hadoop.set("fs.defaultFS", f"viewfs://{name}/")
    hadoop.set(f"fs.viewfs.mounttable.{name}.link./reports", f"file://{tmp_path}/there")
    yield f"viewfs://{name}"
    hadoop.set("fs.defaultFS", before)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = migrated(f"sqlite:///{tmp_path}/outbox.db")
    yield opened
    opened.close()


def listed(folder: Path, *objects: str) -> str:
    """Write a listing of objects to a file in `folder`, and return its path."""
    lines = [{"key": key, "size": 1, "etag": "e", "lastModified": OLD} for key in objects]
    listing = folder / "listing.json"
    listing.write_bytes(b"\n".join(orjson.dumps({"status": "success", "type": "file"} | each) for each in lines))
    return str(listing)


def compared(
    spark: SparkSession, database: Database, folder: Path, reports: str, patch: pytest.MonkeyPatch
) -> ReconcileResult:
    """Compare a listing of two objects in `folder` with a target that has neither of them."""
    target = add_target(database, "rows", type_name="redis", values=REDIS, bucket="bkt")
    patch.setattr(stores, "rows", lambda *_, **__: frame_of(spark, [], ROWS))
    config = ReconcileConfig(
        bucket="bkt", target=TargetId(target.type, target.name), reports=reports, arrival=0.0,
        listing=listed(folder, "a", "b"), listed_at=now_ms(),
    )  # fmt: skip
    return reconcile(spark, database, registry(database), config, Api("http://127.0.0.1:9"))


def keys(folder: Path) -> list[str]:
    lines = (line for part in folder.glob("*.json") for line in part.read_bytes().splitlines())
    return sorted(orjson.loads(line)["key"] for line in lines)


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_a_report_is_where_its_url_says_whatever_the_default_file_system_is(
    spark: SparkSession, database: Database, tmp_path: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch,
    is_elsewhere: bool,
) -> None:  # fmt: skip
    odd = "a b%20[x]{1,2}*?"  # none of it is a pattern, nor encoded
    here = tmp_path / "there" / odd if is_elsewhere else tmp_path / odd
    reports = f"{elsewhere}/reports/{odd}" if is_elsewhere else str(tmp_path / odd)
    killed = Reconciliations(database).begin(TargetId("redis", "rows"), "bkt", lease=-100_000)
    unknown = "0" * 32
    for name in (f"scratch/{killed}", killed, f"scratch/{unknown}", unknown):
        (here / name / "differences.parquet").mkdir(parents=True)
    result = compared(spark, database, tmp_path, reports, monkeypatch)
    [run, _] = Reconciliations(database).list()
    assert (result.state, result.counts["missing"], result.report) == ("drift", 2, f"{reports}/{run.run}")
    assert run.report == result.report
    written = {path.name for path in (here / run.run).iterdir()}
    assert {name for name in written if not name.startswith(".")} == {FINDINGS, LINES, PAGE}
    assert keys(here / run.run / LINES) == ["a", "b"]
    assert "2 differences" in (here / run.run / PAGE).read_text()
    assert {path.name for path in here.iterdir()} == {"scratch", run.run, unknown}, "the killed run's are deleted"
    assert [path.name for path in (here / "scratch").iterdir()] == [unknown], "what nobody knows is not"
    with database.writing() as connection:
        connection.execute(tables.reconciliations.update().values(started_at=1, finished_at=2))
    last = compared(spark, database, tmp_path, reports, monkeypatch)
    assert {path.name for path in here.iterdir()} == {"scratch", last.report.rpartition("/")[2], unknown}


def test_a_backfill_has_few_of_the_keys_in_flight_in_memory(
    spark: SparkSession, database: Database, tmp_path: Path, elsewhere: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = add_target(database, "rows", type_name="redis", values=REDIS, bucket="bkt")
    Log(database).append([[event("a", bucket="bkt"), event("b", bucket="bkt")]])
    log_mark, written = log_queries.log_mark, list[Path]()

    def with_more(
        database: Database, target: TargetId, bucket: str, keep: Callable[[Iterator[str]], object], **more: Any
    ) -> log_queries.LogMark:
        others = (f"{'some-folder/' * 10}{number}" for number in range(200_000))
        mark = log_mark(database, target, bucket, lambda keys: keep(chain(keys, others)), **more)
        written.extend((tmp_path / "there" / "scratch").glob("*/*.jsonl"))
        return mark

    monkeypatch.setattr(log_queries, "log_mark", with_more)
    config = BackfillConfig(
        bucket="bkt", target=TargetId(target.type, target.name), folder=tmp_path, reports=f"{elsewhere}/reports",
        listing=listed(tmp_path, "a", "b"), listed_at=now_ms(),
    )  # fmt: skip
    tracemalloc.start()
    try:
        result = backfill(spark, database, registry(database), config, Api("http://127.0.0.1:9"))
        [_, most] = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (result.state, result.counts["in_flight"], result.counts["missing"]) == ("backfilled", 2, 0)
    assert most < 10_000_000
    assert len(written) == 1
    assert not [*(tmp_path / "there" / "scratch").iterdir()]


def test_a_file_system_that_is_not_there_is_said_at_the_start(
    spark: SparkSession, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotShared, match=r'nowhere://.*host/x/.* cannot be reached: No FileSystem for scheme "nowhere"'):
        compared(spark, database, tmp_path, "nowhere://user@host/x", monkeypatch)
    [run] = Reconciliations(database).list()
    assert run.state == "failed"
    assert "user@" not in run.problem


def test_executors_that_cannot_write_are_noticed_before_anything_is_compared(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "is_local", lambda _: False)
    check_shared(spark, Folder.of(tmp_path / "new"))
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(NotShared, match=r"executors cannot write in .*/file/x: .*BUCKETWIRE_REPORTS"):
        check_shared(spark, Folder.of(tmp_path / "file" / "x"))
    monkeypatch.setattr(Folder, "delete", lambda _: False)
    with pytest.raises(NotShared, match="cannot delete what executors have written"):
        check_shared(spark, Folder.of(tmp_path / "new"))


def test_a_path_has_its_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert spark_url("x") == f"file://{tmp_path}/x"
    assert spark_url("/a:b/c") == "file:///a:b/c"
    for url in ("s3a://b/x", "hdfs://h:1/x", "file:/x", "file:///x"):
        assert spark_url(url) == url
    assert [str(Folder.of(url)) for url in ("/x/", "file:/x", "file:///x", "s3a://b/x/")] == ["/x"] * 3 + ["s3a://b/x"]
