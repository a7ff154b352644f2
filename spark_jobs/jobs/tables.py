"""Update the Iceberg tables from the event log: the journal, what is known of each version, and the inventory.

The journal takes the events after the position of its last commit, and its commit has the new position. So a run that
was killed is continued by the next one, without a lost or a doubled row. The other two tables follow the journal in the
same way, each with a position of its own. Of two runs at once the later one cannot commit to the journal; in the other
tables it changes nothing for the worse, because versions merge in any order, what is folded again is left out or the
same, and the inventory follows from them.

The maintenance keeps the tables fast and small: larger files, no snapshots older than a time, no files of killed runs.
A rewrite of files says nothing of the event log, and the snapshots before it are expired in the end. So each table gets
a commit with its mark in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.reading import first_seq, log_end, log_state
from spark_jobs.iceberg import BEGINNING, CATALOG, IcebergTable, Mark
from spark_jobs.jobs.recorded_events import ids_recorded_between, recorded_between
from spark_jobs.jobs.tables_inventory import (
    INVENTORY,
    KEY,
    MERGE_INVENTORY,
    MERGE_VERSIONS,
    VERSIONS,
    content_changes,
    fold,
    holdings,
    keys_of,
    near,
    of_keys,
)
from spark_jobs.jobs.tables_journal import JOURNAL, PARTITIONED_BY, journal

GAP = "bucketwire.gap."  # a property of the journal, with the position before the gap
_MARGIN = 3_600_000  # ms; a tenth of the retention if that is less
_REMARK = 4  # marks of a log without new events are renewed after a fourth of the retention
_MAX_POSITIONS = 5_000_000  # positions of one commit: a run over a long log that is killed has lost no more than that
MAINTAINED_AT = "bucketwire.maintained-at"  # a property of the journal: milliseconds since 1970
_EVERY = 86_400_000  # ms
_ORPHAN_AGE = 3 * 86_400_000  # ms; a younger file may belong to a run that has not committed yet
# Of each group of files; fewer are left alone.
_MIN_FILES = 5


class LogMovedBack(Exception):
    """The tables have read events that the log does not have: it is an older state of itself, or another log."""


class Tables:
    """The three tables of a catalog, which are created if they do not exist."""

    def __init__(self, spark: SparkSession, *, connections: int = 8) -> None:
        """`connections` are the most that are opened to the log's database at once."""
        self.spark, self.connections = spark, connections
        self.journal = IcebergTable(spark, "journal", JOURNAL, partitioned_by=PARTITIONED_BY, position="log_position")
        self.versions = IcebergTable(spark, "versions", VERSIONS, ordered_by=KEY)
        self.inventory = IcebergTable(spark, "inventory", INVENTORY, ordered_by=KEY)
        for table in self.all:
            table.create()

    @property
    def all(self) -> tuple[IcebergTable, ...]:
        """The tables, each of which follows those before it."""
        return self.journal, self.versions, self.inventory


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """The result of a run: events added to the journal, keys whose content changed, the position, and gaps."""

    events: int
    keys: int
    position: int
    gaps: tuple[str, ...]


def update(tables: Tables, database: Database, retention: int) -> UpdateResult:
    """Read the log up to its present end; `retention` (ms) is how long the log keeps settled events.

    The log may be replaced by an older state of itself meanwhile, so each part asks for its end and epoch again.

    Raises `AlreadyUpdating`, `LogMovedBack`, `LostPosition`, and what Spark and Iceberg raise.
    """
    events, keys, gaps = 0, 0, list[str]()
    goal = _end(database).position
    while True:
        mark, snapshot = tables.journal.state()
        end = _end(database)
        if mark.position > end.position:
            raise LogMovedBack(_moved_back(mark.position, f"that ends at {end.position}"))
        is_other_epoch = mark != BEGINNING and mark.epoch != end.epoch
        if is_other_epoch and mark.epoch:
            _check_newest_events(tables, database, mark, end.read_at - retention)
        goal = min(goal, end.position)
        end = replace(end, position=max(goal, mark.position))
        if mark.position < end.position:
            if gap := describe_gap(mark, end.read_at, retention):
                tables.journal.set_property(f"{GAP}{mark.position}", gap)
                gaps.append(gap)
            events += _read_log(tables, database, mark, snapshot, end)
        elif is_other_epoch or (mark != BEGINNING and not 0 <= end.read_at - mark.read_at < retention // _REMARK):
            # Nothing was recorded, so nothing can have left the log: the mark must not look old to a later run.
            tables.journal.set_mark(end, snapshot)
        keys += _fold_journal(tables)
        _follow_versions(tables)
        if mark.position >= goal:
            return UpdateResult(events, keys, end.position, tuple(gaps))


def describe_gap(mark: Mark, now: int, retention: int) -> str:
    """Return between which times events may have left the log unread; "" if none has.

    The log keeps an event for at least `retention` (ms), and every event after the mark was received after it. The
    margin is for what leaves the log while it is read.
    """
    left_until = now - retention + min(_MARGIN, retention // 10)
    if mark == BEGINNING or left_until <= mark.read_at:
        return ""
    times = (datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="seconds") for at in (mark.read_at, left_until))
    return "/".join(times)


def describe_gaps(gaps: Sequence[str]) -> str:
    """Return a sentence on gaps and what to do."""
    return (
        f"events of {', '.join(gaps)} may have left the log before the tables read them, and be missing: "
        "run `bucketwire tables` more often than BUCKETWIRE_RETENTION, which is how long the log keeps events; "
        "`bucketwire backfill` adds the objects that the inventory lacks; to get rid of those that were removed "
        "meanwhile, name a new folder in BUCKETWIRE_TABLES_WAREHOUSE before it"
    )


def _end(database: Database) -> Mark:
    """Return the log's end. Its time is read first: every later event is received after it.

    After a failover that no worker has noticed yet, the epoch is none that a worker begins.
    """
    with database.reading() as connection:
        now = database_now(connection)
    _, state = log_state(database)
    return Mark(state.last_seq, now, state.epoch if state.is_current else f"after {state.epoch}")


def _check_newest_events(tables: Tables, database: Database, mark: Mark, kept_since: int) -> None:
    """Raise `LogMovedBack` unless journal and log have the same events at the positions of two commits.

    The log may have been replaced while the last one was read, and have lost events of the one before. An event that
    was received before `kept_since` (ms) may have left the log.
    """
    first = max(_least_position(tables.journal.frame()) or 1, mark.position - 2 * _MAX_POSITIONS + 1)
    rows = tables.journal.frame().where(F.col("log_position").between(first, mark.position))
    read = rows.select("log_position", "event_id", F.unix_millis("recorded_at").alias("received_at"))
    in_log = ids_recorded_between(
        tables.spark, database, log_end(database).partitions, first - 1, mark.position, connections=tables.connections
    )
    both = read.join(in_log.withColumn("in_log", F.lit(True)), ["log_position", "event_id"], "full_outer")
    differs = F.col("received_at").isNull() | (F.col("in_log").isNull() & (F.col("received_at") >= kept_since))
    different = _least_position(both.where(differs))
    if different is not None:
        raise LogMovedBack(_moved_back(mark.position, f"that does not have the same event at position {different}"))


def _least_position(rows: DataFrame) -> int | None:
    least = rows.agg(F.min("log_position")).first()
    return None if least is None else least[0]


def _moved_back(position: int, log: str) -> str:
    return (
        f"the tables have read up to position {position} of a log {log}: the outbox was restored, has failed over or "
        "was replaced, and lost events; name a new folder in BUCKETWIRE_TABLES_WAREHOUSE, then run "
        "`bucketwire backfill` for what the log no longer has"
    )


def _read_log(tables: Tables, database: Database, mark: Mark, snapshot: int | None, end: Mark) -> int:
    """Add the next events of the log to the journal, and return their number."""
    partitions = log_end(database).partitions
    # The log of a service that has run for long begins far from 1.
    after = max(mark.position, first_seq(database, partitions) - 1) if mark == BEGINNING else mark.position
    until = min(after + _MAX_POSITIONS, end.position)
    recorded = recorded_between(tables.spark, database, partitions, after, until, connections=tables.connections)
    tables.journal.add(journal(recorded), mark.position, snapshot, Mark(until, end.read_at, end.epoch))
    return tables.journal.added_rows()


def _fold_journal(tables: Tables) -> int:
    """Merge the journal's next changes into the versions, and return the number of their keys."""
    known, read = tables.versions.mark(), tables.journal.mark()
    if known.position >= read.position:
        return 0
    changes = _changes_between(tables, known.position, read.position)
    folded = fold(changes, tables.versions.frame()).persist(StorageLevel.DISK_ONLY)
    try:
        keys = keys_of(folded)
        count = keys.count()
        if count:
            tables.versions.merge(folded, MERGE_VERSIONS, read, near=near(keys, "t"))
        else:
            tables.versions.set_mark(read)
    finally:
        folded.unpersist()
    return count


def _follow_versions(tables: Tables) -> None:
    """Bring the inventory to what the versions say."""
    shown, known = tables.inventory.mark(), tables.versions.mark()
    if shown.position >= known.position:
        return
    changed = keys_of(_changes_between(tables, shown.position, known.position)).persist(StorageLevel.DISK_ONLY)
    versions = tables.versions.frame().where(near(changed))
    rows = holdings(of_keys(versions, changed)).persist(StorageLevel.DISK_ONLY)
    try:
        if rows.isEmpty():
            tables.inventory.set_mark(known)
        else:
            tables.inventory.merge(rows, MERGE_INVENTORY, known, near=near(changed, "t"))
    finally:
        rows.unpersist()
        changed.unpersist()


def _changes_between(tables: Tables, after: int, until: int) -> DataFrame:
    rows = tables.journal.frame().where((F.col("log_position") > after) & (F.col("log_position") <= until))
    return content_changes(rows)


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
