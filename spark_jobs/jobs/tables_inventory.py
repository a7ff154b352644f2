"""Fold events of the journal into what is known of each version, and derive what a bucket holds; frames in and out.

The rules are those of the mirror policy (`app.events.order`), as aggregates: everything that is known of a
version is a greatest or a least place in the key's history. So events may come late, in any order or again, and two
folds of parts are merged by the greater and the lesser value.

A place is a text whose order is that of (sequencer, rank, position): `18E9E833E5D35CED 0 00000000000004D2`.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.names import NULL, ContentChange
from spark_jobs.frames import change_of
from spark_jobs.jobs.tables_journal import OBJECT

KEY = ("bucket", "key")
_GREATEST = ("created", "removed", "marked_last", "marked_high", "cover")
_LEAST = ("marked_first", "marked_low")
_OBJECT = tuple(name for name, _ in OBJECT)
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
                for name in _OBJECT
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


def fold(changes: DataFrame, versions: DataFrame) -> DataFrame:
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
    folded = placed.groupBy(*KEY, "version").agg(
        F.max(created).alias("created"),
        F.max(place_of(is_removed)).alias("removed"),
        F.max(marked).alias("marked_last"),
        F.max(marked_sequencer).alias("marked_high"),
        F.max(F.when(F.col("version") == "", F.col("place"))).alias("cover"),
        F.min(marked).alias("marked_first"),
        F.min(marked_sequencer).alias("marked_low"),
        F.max(F.when(is_marked & of_version, F.col("record_timestamp"))).alias("marked_at"),
        F.max_by(F.struct(*_OBJECT), created).alias("made"),
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
    of_key = Window.partitionBy(*KEY)
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
    of_object = {name: F.when(is_object, F.col(name)) for name in _OBJECT}
    of_object["last_modified_date"] = of_object["last_modified_date"].otherwise(F.col("marked_at"))
    return shown.select(
        *KEY,
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
    return changes.select(*KEY).distinct()


def of_keys(rows: DataFrame, keys: DataFrame) -> DataFrame:
    """Return the rows of these keys."""
    return rows.join(keys, list(KEY), "left_semi")


def near(keys: DataFrame, table: str = "") -> str:
    """Return a condition of SQL, on the columns of a `table`, that every row of these keys meets, and few others.

    Those of the same buckets between the keys meet it; of up to 1,000 keys, no others. Where rows are in the order of
    their keys, only the parts of files with such rows are read.
    """
    few = keys.select(*(F.hex(name).alias(name) for name in KEY)).limit(_FEW_KEYS + 1).collect()
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
    known = known.groupBy(*KEY).agg(
        F.greatest(*(F.max(_sequencer(place)) for place in places)).alias("known"),
        F.greatest(*(F.max(_position(place)) for place in places)).alias("folded_to"),
    )
    before = Window.partitionBy(*KEY).orderBy("log_position").rowsBetween(Window.unboundedPreceding, 0)
    latest = F.greatest("known", F.max("sequence_number").over(before))
    joined = changes.join(known, list(KEY), "left")
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
