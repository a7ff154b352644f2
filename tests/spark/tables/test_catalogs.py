"""Other catalogs, a warehouse in a bucket, and other engines that read the tables."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from spark_jobs.errors import describe_error
from spark_jobs.iceberg import BadCatalog, IcebergTable, Warehouse
from spark_jobs.jobs.tables import maintain, update
from tests import services
from tests.spark.tables.conftest import Merged
from tests.support.builders import add_target, migrated
from tests.support.properties import times
from tests.support.table_events import WEEK, folded, histories, inventory, journal_ids, made, opened

NIGHTLY = pytest.mark.nightly(
    "tables in a folder, and in a bucket by PostgreSQL's catalog; a run that is killed after any commit"
)

PAGE = Path(__file__).parents[3] / "docs/how-to/tables.md"
pytestmark = pytest.mark.timeout(900)  # on a busy machine each commit takes seconds


@contextmanager
def postgres_outbox(server: services.Postgres) -> Iterator[Database]:
    folder = services.new_folder("tables")
    database = migrated(server.create_database(f"tables_{folder.name.replace('-', '_').lower()}"))
    add_target(database)
    try:
        yield database
    finally:
        database.close()


@NIGHTLY
def test_a_catalog_in_postgresql_and_pyiceberg_reads_it(
    session: SparkSession, postgres_server: services.Postgres, tmp_path: Path
) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.catalog.sql import SqlCatalog

    events = histories(30, 400)
    with postgres_outbox(postgres_server) as database:
        tables = opened(session, Warehouse(f"{tmp_path}/tables", database.url))
        for first in (0, 200):  # the second changes rows of the first
            Log(database).append([events[first : first + 200]])
            update(tables, database, WEEK)
        url = database.url.render_as_string(hide_password=False)
        catalog = SqlCatalog("bucketwire", uri=url, warehouse=f"file://{tmp_path}/tables")
        try:
            journal = catalog.load_table("s3.journal").scan().to_arrow().to_pylist()
            rows = catalog.load_table("s3.inventory").scan().to_arrow().to_pylist()
        finally:
            catalog.engine.dispose()
    assert sorted(row["event_id"] for row in journal) == sorted(one.id for one in events)
    found = {(r["key"], r["version_id"]): (r["is_delete_marker"], r["is_latest"], r["log_position"]) for r in rows}
    assert found == folded(events)
    assert len(rows) == len(found)


def duckdb_reader() -> Any:
    """A DuckDB with its extension for Iceberg, from the files of packages: it would download it."""
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect(config={"autoinstall_known_extensions": "false"})
    for name in ("avro", "iceberg"):
        package = pytest.importorskip(f"duckdb_extension_{name}")
        [library] = Path(package.__path__[0]).rglob("*.duckdb_extension")
        connection.load_extension(str(library))
    return connection


def test_pyiceberg_reads_a_folder(merged: Merged) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.table import StaticTable

    [place] = re.findall(r'StaticTable\.from_metadata\("/var/lib/bucketwire/tables/(.*?)"\)', PAGE.read_text())
    rows = StaticTable.from_metadata(f"{merged.folder}/{place}").scan().to_arrow().to_pylist()
    found = {(r["key"], r["version_id"]): (r["is_delete_marker"], r["is_latest"], r["log_position"]) for r in rows}
    assert found == folded(merged.events)


def test_duckdb_reads_a_folder(merged: Merged) -> None:
    [query] = re.findall(r"```sql\n(.*?)```", PAGE.read_text().partition("DuckDB reads")[2], re.DOTALL)
    with duckdb_reader() as reader:
        rows = reader.execute(query.replace("/var/lib/bucketwire/tables", str(merged.folder))).fetchall()
        journal = f"iceberg_scan('{merged.folder}/s3/journal')"
        ids = reader.execute(f"SELECT event_id FROM {journal} ORDER BY log_position").fetchall()
    assert [row[0] for row in ids] == [one.id for one in merged.events]
    found = {(key, version): (marker, latest, seq) for key, version, marker, latest, seq in rows}
    assert found == folded(merged.events)
    assert len(rows) == len(found)


@pytest.mark.promise
@NIGHTLY
def test_a_rest_catalog_also_when_the_answer_to_a_commit_is_lost(
    session: SparkSession, outbox: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit has happened and nobody was told so: the next run must neither add its rows again nor miss them."""
    original, events = IcebergTable.add, histories(20, 200)
    with services.iceberg_rest() as server, services.proxy(server.port) as wire:
        tables = opened(session, Warehouse("", rest=f"http://{services.LOOPBACK}:{wire.port}"))
        Log(outbox).append([events[:100]])
        assert update(tables, outbox, WEEK).events == 100
        Log(outbox).append([events[100:]])

        def unanswered(self: IcebergTable, *arguments: Any) -> None:
            wire.lose_answer_to(b"POST /v1/namespaces/s3/tables/journal ")
            original(self, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(IcebergTable, "add", unanswered)
            with suppress(Exception):  # Iceberg may look what has become of the commit
                update(tables, outbox, WEEK)
        assert wire.lost.is_set()
        update(tables, outbox, WEEK)
        assert journal_ids(tables) == [one.id for one in events]
        rows = inventory(tables, "is_delete_marker", "is_latest", "log_position")
        maintain(tables, 0)
        assert len(journal_ids(tables)) == len(events)
    assert {(key, version): tuple(rest) for _, key, version, *rest in rows} == folded(events)


def test_a_socket_is_no_address_for_a_catalog(session: SparkSession) -> None:
    url = sa.make_url("postgresql+psycopg2://user@/outbox?host=/run/postgresql")
    with pytest.raises(BadCatalog, match="host of PostgreSQL"):
        Warehouse("/nowhere", url).open(session)


def test_a_warehouse_in_a_bucket(
    session: SparkSession, postgres_server: services.Postgres, at_minio: services.MinIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{at_minio.endpoint}")
    at_minio.client().make_bucket("lake")
    with postgres_outbox(postgres_server) as database:
        with monkeypatch.context() as patched:
            patched.setenv("AWS_SECRET_ACCESS_KEY", "wrong" * 4)
            with pytest.raises(Exception, match="403") as refused:
                opened(session.newSession(), Warehouse("s3a://lake/bucketwire", database.url))
            assert "BUCKETWIRE_DEBUG" in str(describe_error(refused.value))
        tables = opened(session, Warehouse("s3a://lake/bucketwire", database.url))
        Log(database).append([[made("k", number=1), made("j", number=2)]])
        assert update(tables, database, WEEK).events == 2
        assert inventory(tables, "size") == [("b", "j", None, 2), ("b", "k", None, 1)]
        if times(0, 1):  # what maintains tables asks any warehouse for the same
            maintain(tables, 0)
            assert inventory(tables, "size") == [("b", "j", None, 2), ("b", "k", None, 1)]
    keys = [each.object_name for each in at_minio.client().list_objects("lake", recursive=True)]
    assert any(str(key).startswith("bucketwire/s3/inventory/data/") for key in keys)
