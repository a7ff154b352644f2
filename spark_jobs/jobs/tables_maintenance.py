"""Keep the Iceberg tables fast and small: larger files, no snapshots older than a time, no files of killed runs.

A rewrite of files says nothing of the event log, and the snapshots before it are expired in the end. So each table gets
a commit with its mark in between.
"""

from datetime import UTC, datetime

from app.outbox.engine.database import now_ms
from spark_jobs.iceberg.catalog import CATALOG
from spark_jobs.iceberg.table import IcebergTable
from spark_jobs.jobs.tables import Tables

MAINTAINED_AT = "bucketwire.maintained-at"  # a property of the journal: milliseconds since 1970
_EVERY = 86_400_000  # ms
_ORPHAN_AGE = 3 * 86_400_000  # ms; a younger file may belong to a run that has not committed yet
# Of each group of files; fewer are left alone.
_MIN_FILES = 5


def is_due(tables: Tables, now: int) -> bool:
    """Return whether the tables were last maintained a day ago or longer."""
    return now - int(tables.journal.properties().get(MAINTAINED_AT, "0")) >= _EVERY


def maintain(tables: Tables, history: int, now: int | None = None) -> None:
    """Rewrite small files, expire snapshots older than `history` (ms), and delete files that no snapshot names."""
    now = now_ms() if now is None else now
    for table in tables.all:
        _maintain(tables, table, now - history, now - _ORPHAN_AGE)
    tables.journal.set_property(MAINTAINED_AT, str(now))


def _maintain(tables: Tables, table: IcebergTable, snapshots_before: int, orphans_before: int) -> None:
    strategy = "strategy => 'sort', " if table.ordered_by else ""
    _call(
        tables, "rewrite_data_files", table,
        f"{strategy}options => map('min-input-files', '{_MIN_FILES}', 'delete-file-threshold', '1', "
        "'remove-dangling-deletes', 'true')",
    )  # fmt: skip
    _call(tables, "rewrite_manifests", table, "use_caching => false")
    table.repeat_mark()
    _call(tables, "expire_snapshots", table, f"older_than => {_timestamp(snapshots_before)}, retain_last => 1")
    # Spark lists folders by Hadoop, which has no library for buckets here; Iceberg has its own.
    listing = ", prefix_listing => true" if table.is_in_bucket() else ""
    _call(tables, "remove_orphan_files", table, f"older_than => {_timestamp(orphans_before)}{listing}")


def _call(tables: Tables, procedure: str, table: IcebergTable, arguments: str) -> None:
    tables.spark.sql(f"CALL {CATALOG}.system.{procedure}(table => '{table.local_name}', {arguments})")


def _timestamp(at: int) -> str:
    """Return a time as a literal of SQL; the session's time zone is UTC."""
    return f"TIMESTAMP '{datetime.fromtimestamp(at / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}'"
