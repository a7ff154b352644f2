"""Update the Iceberg tables from the event log: the journal, what is known of each version, and the inventory.

The journal takes the events after the position of its last commit, and its commit has the new position. So a run that
was killed is continued by the next one, without a lost or a doubled row. The other two tables follow the journal in the
same way, each with a position of its own. Of two runs at once the later one cannot commit to the journal; in the other
tables it changes nothing for the worse, because versions merge in any order, what is folded again is left out or the
same, and the inventory follows from them.

The rules by which they follow are those of the mirror policy (`app.events.order`), as aggregates: everything that is
known of a version is a greatest or a least place in the key's history. So events may come late, in any order or again,
and two folds of parts are merged by the greater and the lesser value. A place is a text whose order is that of
(sequencer, rank, position): `18E9E833E5D35CED 0 00000000000004D2`.

The maintenance keeps the tables fast and small: larger files, no snapshots older than a time, no files of killed runs.
A rewrite of files says nothing of the event log, and the snapshots before it are expired in the end. So each table gets
a commit with its mark in between.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.names import NULL, ContentChange
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.reading import first_seq, log_end, log_state
from spark_jobs.frames import change_of
from spark_jobs.iceberg import BEGINNING, CATALOG, IcebergTable, Mark
from spark_jobs.jobs.tables_journal import (
    JOURNAL,
    OBJECT,
    PARTITIONED_BY,
    ids_recorded_between,
    journal,
    recorded_between,
)

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
        self.versions = IcebergTable(spark, "versions", VERSIONS, ordered_by=OBJECT_KEY)
        self.inventory = IcebergTable(spark, "inventory", INVENTORY, ordered_by=OBJECT_KEY)
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
    folded = fold_versions(changes, tables.versions.frame()).persist(StorageLevel.DISK_ONLY)
    try:
        keys = keys_of(folded)
        count = keys.count()
        if count:
            tables.versions.merge(folded, MERGE_VERSIONS, read, near=near_keys(keys, "t"))
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
    versions = tables.versions.frame().where(near_keys(changed))
    rows = holdings(of_keys(versions, changed)).persist(StorageLevel.DISK_ONLY)
    try:
        if rows.isEmpty():
            tables.inventory.set_mark(known)
        else:
            tables.inventory.merge(rows, MERGE_INVENTORY, known, near=near_keys(changed, "t"))
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


OBJECT_KEY = ("bucket", "key")
_GREATEST = ("created", "removed", "marked_last", "marked_high", "cover")
_LEAST = ("marked_first", "marked_low")
_OBJECT_NAMES = tuple(name for name, _ in OBJECT)
_SECOND, _MILLISECOND = 10**9, 10**6  # in nanoseconds
_FEW_KEYS, _FEW_BUCKETS = 1_000, 100  # that are named in a statement
# A row for each version: the places of its newest creation and removal, the first and the last event that named it as a
# marker, and the least and the greatest sequencer of those. `marked_at` is the time of the last of them. The row with
# version "" is of the key: everything older than `cover` is gone or hidden.
VERSIONS = (
    ("bucket", "string"), ("key", "string"), ("version", "string"),
    *((name, "string") for name in (*_GREATEST, *_LEAST)), ("marked_at", "timestamp"), *OBJECT,
)  # fmt: skip
INVENTORY = (
    ("bucket", "string"), ("key", "string"), ("sequence_number", "string"), ("version_id", "string"),
    ("is_delete_marker", "boolean"), *OBJECT, ("is_latest", "boolean"), ("log_position", "bigint"),
)  # fmt: skip

MERGE_VERSIONS = (
    "MERGE INTO {{table}} t USING changes c "
    "ON t.bucket = c.bucket AND t.key = c.key AND t.version = c.version AND {{near}} "
    "WHEN MATCHED THEN UPDATE SET {updates} WHEN NOT MATCHED THEN INSERT *"
).format(
    updates=", ".join(
        [
            *(f"t.{name} = greatest(t.{name}, c.{name})" for name in _GREATEST),
            *(f"t.{name} = least(t.{name}, c.{name})" for name in _LEAST),
            "t.marked_at = greatest(t.marked_at, c.marked_at)",
            *(
                f"t.{name} = CASE WHEN c.created > coalesce(t.created, '') THEN c.{name} ELSE t.{name} END"
                for name in _OBJECT_NAMES
            ),
        ]
    )
)
# A row with the same event and the same rank is the same row: only the others are written.
MERGE_INVENTORY = (  # noqa: S608 - names of columns
    "MERGE INTO {{table}} t USING changes c "
    "ON t.bucket = c.bucket AND t.key = c.key AND t.version_id <=> c.version_id AND {{near}} "
    "WHEN MATCHED AND NOT c.is_present THEN DELETE "
    "WHEN MATCHED AND (t.log_position <> c.log_position OR t.is_latest <> c.is_latest) THEN UPDATE SET {updates} "
    "WHEN NOT MATCHED AND c.is_present THEN INSERT ({columns}) VALUES ({values})"
).format(
    updates=", ".join(f"t.{name} = c.{name}" for name, _ in INVENTORY),
    columns=", ".join(name for name, _ in INVENTORY),
    values=", ".join(f"c.{name}" for name, _ in INVENTORY),
)


def content_changes(journal: DataFrame) -> DataFrame:
    """Return the rows of a JOURNAL that change what a bucket holds, with the change as `change`."""
    return journal.withColumn("change", change_of(F.col("event_name"))).where("change IS NOT NULL")


def fold_versions(changes: DataFrame, versions: DataFrame) -> DataFrame:
    """Return what content changes say of the versions that they name: VERSIONS.

    `versions` is what is known of their keys; it matters only for events without a sequencer, which come after
    everything that is known of their key when they are recorded.
    """
    is_created, is_marked, is_removed, is_all_deleted = (
        F.col("change") == change.value
        for change in (
            ContentChange.CREATED, ContentChange.DELETE_MARKER, ContentChange.REMOVED, ContentChange.ALL_DELETED,
        )
    )  # fmt: skip
    version = F.when(is_all_deleted, "").otherwise(F.coalesce("version_id", F.when(is_created, NULL).otherwise("")))
    # Removals of all versions, and those without a version, concern the key.
    of_version = version != ""
    is_ordered = F.col("sequence_number").isNotNull()
    rank = F.when(~is_ordered, "2").when(is_created | is_marked, "0").otherwise("1")  # as in `app.events.order`
    place = F.concat_ws(" ", "at", rank, F.lpad(F.hex("log_position"), 16, "0"))
    placed = _with_sequencers(changes, versions).select("*", version.alias("version"), place.alias("place"))

    def place_of(condition: Column) -> Column:
        return F.when(condition & (F.col("version") != ""), F.col("place"))

    marked, created = place_of(is_marked), place_of(is_created)
    marked_sequencer = F.when(is_marked & of_version & is_ordered, F.col("sequence_number"))
    folded = placed.groupBy(*OBJECT_KEY, "version").agg(
        F.max(created).alias("created"),
        F.max(place_of(is_removed)).alias("removed"),
        F.max(marked).alias("marked_last"),
        F.max(marked_sequencer).alias("marked_high"),
        F.max(F.when(F.col("version") == "", F.col("place"))).alias("cover"),
        F.min(marked).alias("marked_first"),
        F.min(marked_sequencer).alias("marked_low"),
        F.max(F.when(is_marked & of_version, F.col("record_timestamp"))).alias("marked_at"),
        F.max_by(F.struct(*_OBJECT_NAMES), created).alias("made"),
    )
    return folded.select("*", "made.*").select(*(name for name, _ in VERSIONS))


def holdings(versions: DataFrame) -> DataFrame:
    """Return the rows of the INVENTORY for all VERSIONS of some keys, with `is_present`: false for what is gone."""
    created, removed, first, last = (F.col(name) for name in ("created", "removed", "marked_first", "marked_last"))
    is_null_version = F.col("version") == NULL
    newest = F.greatest(created, removed, last)
    low, high = F.col("marked_low"), F.col("marked_high")
    is_undeleted = F.coalesce((low != high) & ~(_is_time_of(low, high) | _is_time_of(high, low)), F.lit(False))
    layer = F.when(is_null_version, F.when(~F.equal_null(newest, removed), newest)).otherwise(
        F.when(removed.isNull(), F.coalesce(created, F.when(~is_undeleted, first)))
    )
    # A storage that names the version beneath a marker: the marker hides everything older.
    covering = F.when(~is_null_version & (F.col("version") != "") & created.isNotNull(), last)
    of_key = Window.partitionBy(*OBJECT_KEY)
    layered = versions.select(
        "*", layer.alias("layer"), F.max(F.greatest(F.col("cover"), covering)).over(of_key).alias("covered")
    ).where("version <> ''")
    is_present = F.col("layer").isNotNull() & (F.col("covered").isNull() | (F.col("layer") > F.col("covered")))
    shown = layered.select(
        "*",
        is_present.alias("is_present"),
        F.equal_null("layer", created).alias("is_object"),
        F.max(F.when(is_present, F.col("layer"))).over(of_key).alias("top"),
    )
    is_object = F.col("is_object")
    of_object = {name: F.when(is_object, F.col(name)) for name in _OBJECT_NAMES}
    of_object["last_modified_date"] = of_object["last_modified_date"].otherwise(F.col("marked_at"))
    return shown.select(
        *OBJECT_KEY,
        _sequencer(F.col("layer")).alias("sequence_number"),
        F.when(F.col("version") != NULL, F.col("version")).alias("version_id"),
        (~is_object).alias("is_delete_marker"),
        *(column.alias(name) for name, column in of_object.items()),
        F.equal_null("layer", "top").alias("is_latest"),
        _position(F.col("layer")).alias("log_position"),
        "is_present",
    )


def keys_of(changes: DataFrame) -> DataFrame:
    """Return the distinct keys of rows: bucket and key."""
    return changes.select(*OBJECT_KEY).distinct()


def of_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """Return the rows of these keys."""
    return rows.join(keys, list(OBJECT_KEY), "left_semi")


def near_keys(keys: DataFrame, table: str = "") -> str:
    """Return a condition of SQL, on the columns of a `table`, that every row of these keys meets, and few others.

    Those of the same buckets between the keys meet it; of up to 1,000 keys, no others. Where rows are in the order of
    their keys, only the parts of files with such rows are read.
    """
    few = keys.select(*(F.hex(name).alias(name) for name in OBJECT_KEY)).limit(_FEW_KEYS + 1).collect()
    ends = keys.groupBy(F.hex("bucket")).agg(F.hex(F.min("key")), F.hex(F.max("key"))).limit(_FEW_BUCKETS + 1).collect()
    if len(ends) > _FEW_BUCKETS:
        return "true"
    column = f"{table}." if table else ""
    places = []
    for bucket, first, last in ends:
        place = f"{column}bucket = {_text(bucket)} AND {column}key BETWEEN {_text(first)} AND {_text(last)}"
        if len(few) <= _FEW_KEYS:
            place += f" AND {column}key IN ({', '.join(_text(row['key']) for row in few if row['bucket'] == bucket)})"
        places.append(f"({place})")
    return f"({' OR '.join(places or ['false'])})"


def _text(in_hexadecimal: str) -> str:
    return f"CAST(X'{in_hexadecimal}' AS STRING)"


def _with_sequencers(changes: DataFrame, versions: DataFrame) -> DataFrame:
    """Add the sequencer that orders each change as `at`: its own, or else the greatest that its key had before it.

    A change without a sequencer that the versions have already, because two runs fold it, is left out: what they know
    of its key may be of later changes, and its place must not change. They have its own place of the key then, or one
    of a later position that replaced it.
    """
    unordered = changes.where("sequence_number IS NULL")
    if unordered.isEmpty():
        return changes.withColumn("at", F.col("sequence_number"))
    known = of_keys(versions, keys_of(unordered))
    places = [F.col(name) for name in ("created", "removed", "marked_last", "cover")]
    known = known.groupBy(*OBJECT_KEY).agg(
        F.greatest(*(F.max(_sequencer(place)) for place in places)).alias("known"),
        F.greatest(*(F.max(_position(place)) for place in places)).alias("folded_to"),
    )
    before = Window.partitionBy(*OBJECT_KEY).orderBy("log_position").rowsBetween(Window.unboundedPreceding, 0)
    latest = F.greatest("known", F.max("sequence_number").over(before))
    joined = changes.join(known, list(OBJECT_KEY), "left")
    placed = joined.withColumn("at", F.coalesce("sequence_number", latest, F.lit("")))
    is_new = F.col("folded_to").isNull() | (F.col("log_position") > F.col("folded_to"))
    return placed.where(F.col("sequence_number").isNotNull() | is_new).drop("known", "folded_to")


def _sequencer(place: Column) -> Column:
    sequencer = F.substring_index(place, " ", 1)
    return F.when(sequencer != "", sequencer)


def _position(place: Column) -> Column:
    return F.conv(F.substring_index(place, " ", -1), 16, 10).cast("bigint")


def _is_time_of(value: Column, other: Column) -> Column:
    """Return whether a marker's sequencer is a listing's time of the other one: `order.is_time_of`."""
    begin, time = (F.conv(F.rpad(one, 16, "0"), 16, 10).cast("decimal(20)") for one in (value, other))
    begin = F.when(F.length(value) > 16, begin - begin % _SECOND).otherwise(begin)
    width = F.when(begin % _SECOND == 0, _SECOND).when(begin % _MILLISECOND == 0, _MILLISECOND).otherwise(0)
    return (begin <= time) & (time < begin + width)
