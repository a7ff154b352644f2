"""A run that ends while it lists a large bucket: the next one lists what is left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from app.config.arn import TargetId
from app.listings.limits import BadListing
from app.outbox import log_head, tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.reconcile.runs import Reconciliations, read_findings
from spark_jobs import scratch, stores
from spark_jobs.api_client import Api
from spark_jobs.folders import Folder
from spark_jobs.frames import ROWS
from spark_jobs.jobs.reconcile import ReconcileConfig, ReconcileResult, reconcile
from spark_jobs.listings import s3_listing
from tests import services
from tests.support.builders import add_target, migrated, registry
from tests.support.frames import frame_of

NIGHTLY = pytest.mark.nightly("a listing of yesterday, and a file that was cut off")

KEYS = [f"{folder:02}/{name}" for folder in range(8) for name in "ab"]
PARTS = 4
LARGE = 4_000_000  # entries and rows of the last run
HOUR = 3_600_000  # ms


class _Ended(Exception):
    """What ends a run."""


@dataclass
class Bucket:
    """A bucket in MinIO, and runs that compare it with a target without rows."""

    spark: SparkSession
    database: Database
    s3: Any
    name: str
    folder: Path
    patch: pytest.MonkeyPatch
    listed: int = 0  # parts, by the last run

    def run(self, *, parts: int = 100, **more: Any) -> ReconcileResult:
        """Compare, and end after so many parts."""
        self.listed = 0
        listing = s3_listing.listing

        def counted(*args: Any, **options: Any) -> Any:
            if self.listed == parts:
                raise _Ended
            self.listed += 1
            return listing(*args, **options)

        with self.patch.context() as patch:
            patch.setattr(s3_listing, "listing", counted)
            config = ReconcileConfig(
                bucket=self.name, target=TargetId("redis", "rows"), reports=str(self.folder),
                **{"grace": 0, "arrival": 0.0, "size": LARGE, "endpoint": self.s3.meta.endpoint_url} | more,
            )  # fmt: skip
            return reconcile(self.spark, self.database, registry(self.database), config, Api("http://127.0.0.1:9"))

    def end_early(self, parts: int = 2) -> dict[str, Any]:
        """Run until so many parts are there; return what is noted of them."""
        with pytest.raises(_Ended):
            self.run(parts=parts)
        return dict(json.loads((self.begun / "begun.json").read_text()))

    @property
    def begun(self) -> Path:
        [folder] = (self.folder / "scratch").glob("listing-*")
        return folder

    def missing(self) -> list[str]:
        """Return the keys that the last run found missing."""
        run = Reconciliations(self.database).list()[0].run
        return sorted(finding.facts["key"] for finding in read_findings(self.database, run))


@pytest.fixture(scope="module")
def minio() -> Iterator[services.MinIO]:
    with services.minio() as running:
        yield running


@pytest.fixture
def bucket(
    spark: SparkSession, minio: services.MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bucket]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", minio.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", minio.secret_key)
    monkeypatch.setattr(scratch, "_PARTS", PARTS)
    monkeypatch.setattr(stores, "rows", lambda *_, **__: frame_of(spark, [], ROWS))
    name, database, s3 = f"b-{uuid4().hex[:8]}", migrated(f"sqlite:///{tmp_path}/outbox.db"), minio.boto3()
    s3.create_bucket(Bucket=name)
    for key in KEYS:
        s3.put_object(Bucket=name, Key=key, Body=b"x")
    add_target(database, "rows", type_name="redis", values={"address": "127.0.0.1:9", "key": "rows"}, bucket=name)
    yield Bucket(spark, database, s3, name, tmp_path / "reports", monkeypatch)
    s3.close()
    database.close()


def test_the_next_run_lists_what_is_left_and_takes_the_listing_for_as_old_as_it_is(bucket: Bucket) -> None:
    begun = bucket.end_early()
    bucket.s3.put_object(Bucket=bucket.name, Key="00/new", Body=b"x")  # in a part that is there
    bucket.s3.put_object(Bucket=bucket.name, Key="07/new", Body=b"x")  # in one that is not
    result = bucket.run()
    assert bucket.listed == PARTS - 2
    assert bucket.missing() == KEYS
    assert result.counts["in_flight"] == 1, "what was written since may have an event on its way"
    assert result.position is not None
    assert not list((bucket.folder / "scratch").iterdir())
    bucket.run()
    assert bucket.listed == PARTS, "each run has a listing of its own"
    assert bucket.missing() == sorted([*KEYS, "00/new", "07/new"])
    assert begun["listed_at"] <= now_ms()


def _of_yesterday(begun: dict[str, Any]) -> str:
    return json.dumps(begun | {"listed_at": begun["listed_at"] - 25 * HOUR})


def _of_tomorrow(begun: dict[str, Any]) -> str:
    return json.dumps(begun | {"listed_at": begun["listed_at"] + 24 * HOUR})


def _cut_off(begun: dict[str, Any]) -> str:
    return json.dumps(begun)[:-9]


def _of_another_form(_: dict[str, Any]) -> str:
    return '{"ranges": [["", null]]}'


@pytest.mark.parametrize(
    "changed",
    [
        _of_yesterday,
        _cut_off,
        pytest.param(_of_tomorrow, marks=NIGHTLY),
        pytest.param(_of_another_form, marks=NIGHTLY),
    ],
)
def test_a_listing_that_cannot_be_continued_is_made_anew(
    bucket: Bucket, changed: Callable[[dict[str, Any]], str]
) -> None:
    begun = bucket.end_early()
    (bucket.begun / "begun.json").write_text(changed(begun))
    bucket.run()
    assert bucket.listed == PARTS
    assert bucket.missing() == KEYS


def test_a_listing_is_that_of_one_place_and_as_old_as_the_log_allows(bucket: Bucket) -> None:
    bucket.end_early()
    bucket.run(prefix="0")
    assert bucket.missing() == [key for key in KEYS if key.startswith("0")]
    assert bucket.begun.is_dir(), "the whole bucket's is for a run of the whole bucket"
    bucket.run(log_retention=1)
    assert bucket.listed == PARTS


def test_a_listing_from_before_a_restore_of_the_outbox_is_not_gone_on_with(bucket: Bucket) -> None:
    """What was written since, and lost with its event, would look like a row that the bucket does not have."""
    bucket.end_early()
    with bucket.database.writing() as connection:
        assert log_head.begin_epoch(connection, "a restore", instead_of=log_head.read_state(connection).epoch)
    bucket.s3.put_object(Bucket=bucket.name, Key="00/new", Body=b"x")
    bucket.run()
    assert bucket.listed == PARTS
    assert bucket.missing() == sorted([*KEYS, "00/new"])


def test_a_part_counts_when_it_is_complete_and_once_if_two_runs_made_it(bucket: Bucket) -> None:
    bucket.end_early()
    (incomplete,) = bucket.begun.glob("1-*.done")
    incomplete.unlink()
    [first] = bucket.begun.glob("0-*.parquet")
    other = bucket.begun / "0-other.parquet"
    other.mkdir()
    for file in first.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (bucket.begun / "0-other.done").touch()
    bucket.run()
    assert bucket.listed == PARTS - 1
    assert bucket.missing() == KEYS


def test_versioning_that_was_enabled_since_is_said_and_the_next_run_begins_anew(bucket: Bucket) -> None:
    bucket.end_early()
    bucket.s3.put_bucket_versioning(Bucket=bucket.name, VersioningConfiguration={"Status": "Enabled"})
    with pytest.raises(BadListing, match="versioning was enabled since"):
        bucket.run()
    bucket.run()
    assert bucket.listed == PARTS


def test_a_run_that_was_taken_for_dead_leaves_the_listing_to_its_successor(bucket: Bucket) -> None:
    bucket.end_early()
    with bucket.database.writing() as connection:
        connection.execute(tables.reconciliations.update().values(state="running", finished_at=0, alive_until=0))
    runs = Reconciliations(bucket.database)
    [ended] = [each.run for each in runs.list()]
    living = runs.begin(TargetId("redis", "rows"), "elsewhere", lease=60_000)
    folders = {name: Folder.of(bucket.folder / "scratch" / f"listing-{name}") for name in (ended, living, "unknown")}
    for name, folder in folders.items():
        folder.write(f"{name}.used", ())
        folder.write("begun.json", ['{"listed_at": 1, "versioned": false, "ranges": []}'])
    bucket.run()
    assert bucket.listed == PARTS - 2
    assert [bool(folder.names()) for folder in folders.values()] == [False, True, True], "only what nobody uses goes"


def test_a_small_bucket_is_listed_in_one_go(bucket: Bucket) -> None:
    with pytest.raises(_Ended):
        bucket.run(parts=0, size=1000)
    assert not list((bucket.folder / "scratch").iterdir())
    with pytest.raises(_Ended):
        bucket.run(parts=0, size=0)
    assert not list((bucket.folder / "scratch").iterdir())
