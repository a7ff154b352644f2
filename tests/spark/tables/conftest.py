"""Fixtures of the tests of the Iceberg tables: an outbox and tables of the test's own."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from spark_jobs.iceberg import IcebergTable, Warehouse
from spark_jobs.jobs import tables as job_of_tables
from spark_jobs.jobs import tables as tables_job
from spark_jobs.jobs.tables import Tables, update
from tests import provision, services
from tests.spark.conftest import QUICKLY
from tests.support.builders import add_target, migrated
from tests.support.properties import times
from tests.support.table_events import WEEK, histories, inventory, opened


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """A session of the test's own, for a catalog of its own."""
    return spark.newSession()


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Database]:
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    add_target(database)
    yield database
    database.close()


@pytest.fixture
def tables(session: SparkSession, tmp_path: Path) -> Tables:
    return opened(session, Warehouse(f"{tmp_path}/tables"))


@dataclass(frozen=True)
class Merged:
    """Tables that took events in two parts, the second of which changes rows of the first: keep what is read."""

    folder: Path
    tables: Tables
    events: Sequence[Event]
    rows: Mapping[int, Sequence[tuple[Any, ...]]]  # of the inventory, after so many events


@pytest.fixture(scope="session")
def merged(spark: SparkSession) -> Iterator[Merged]:
    count, part = times(600, 1800), times(230, 700)
    folder, events, rows = services.new_folder("merged"), histories(count // 15, count), {}
    database = migrated(f"sqlite:///{folder}/outbox.db")
    add_target(database)
    tables = opened(spark.newSession(), Warehouse(f"{folder}/tables"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_of_tables, "_MAX_POSITIONS", part)  # so that the second part needs two commits
        for first, last in ((0, part), (part, count)):
            Log(database).append([events[first:last]])
            update(tables, database, WEEK)
            rows[last] = inventory(tables, "is_delete_marker", "is_latest", "log_position", "size", "e_tag")
    yield Merged(folder / "tables", tables, events, rows)
    database.close()


@pytest.fixture
def _journal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the log for the journal alone: two merges take longer, and other tests are about what follows it."""
    monkeypatch.setattr(job_of_tables, "_fold_journal", lambda _: 0)
    monkeypatch.setattr(job_of_tables, "_follow_versions", lambda _: None)


@pytest.fixture
def _journal_alone_in_make_test(request: pytest.FixtureRequest) -> None:
    if not times(0, 1):
        request.getfixturevalue("_journal_alone")


@pytest.fixture
def _inventory_alone_is_maintained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the other two out: each table is maintained by the same statements."""
    maintain = tables_job._maintain

    def maintained(tables: Tables, table: IcebergTable, *until: int) -> None:
        if table is tables.inventory:
            maintain(tables, table, *until)

    monkeypatch.setattr(tables_job, "_maintain", maintained)


def environment(folder: Path, database: Database) -> dict[str, str]:
    """Return the environment of `bucketwire tables` with its warehouse in a folder."""
    return {
        **os.environ,
        "BUCKETWIRE_DATA_DIR": str(folder),
        "BUCKETWIRE_DATABASE_URL": database.url.render_as_string(hide_password=False),
        "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS),
        "BUCKETWIRE_SPARK_MASTER": "local[1]",
        **QUICKLY,
    }
