"""How a target's rows differ from what the bucket holds: frames in, frames out, nothing is read or changed here.

* `missing`: the object is there and the rules would have told of it, but there is no row.
* `stale`: the row is about another content, another version, or an older write (`differs` names each).
* `orphaned`: there is a row, but no such object, and the rules would have told of its removal.
* `malformed`: the row's document is no event, or one of another object.
* `outside`: a row whose key no rule leads to the target; told of, but no drift, as somebody else may have put it there.
"""

from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.effects import ContentChange, names
from app.rules.model import Rule
from spark_jobs.rule_predicates import rule_predicates
from spark_jobs.schemas import FINDINGS, NAMESPACE, PATHS, milliseconds, version, whole

MISSING, STALE, ORPHANED, MALFORMED, OUTSIDE = "missing", "stale", "orphaned", "malformed", "outside"
DRIFT = (MISSING, STALE, ORPHANED, MALFORMED)
_NOTHING_REMOVED = "s3:ObjectRemoved:NoOP"
REMOVALS = (ContentChange.DELETE_MARKER, ContentChange.REMOVED, ContentChange.ALL_DELETED)

# An event's time is when it was told, an object's when it was written, and several machines' clocks are involved.
CLOCKS = 60_000

_PART = 200_000  # keys that a task has in memory, about 50 MB; beyond so many parts they are sorted instead
_MOST_PARTS = 20_000


def documents(frame: DataFrame, document: str = "document") -> DataFrame:
    """ROWS of a frame with `key` and whole documents as text."""
    texts = [F.get_json_object(document, "$.Records[0]." + ".".join(path)).alias(name) for name, path in PATHS.items()]
    return frame.select("key", *texts)


def namespace(rows: DataFrame, bucket: str) -> DataFrame:
    """NAMESPACE of ROWS, each key once: a store that is read while it is written may show a row twice.

    Of several a sound one counts: what stands at a wrong place besides is not what the object's events change.
    """
    about = F.try_url_decode(F.col("object"))  # type: ignore[attr-defined, unused-ignore]  # younger than the stubs
    sound = F.col("name").isNotNull() & (F.col("bucket") == bucket) & (about == F.col("key"))
    read = rows.select(
        "key",
        F.coalesce(sound, F.lit(False)).alias("sound"),
        "name",
        "etag",
        whole(F.col("size")).alias("size"),
        version(F.col("version")).alias("version"),
        "sequencer",
        milliseconds(F.col("time")).alias("time"),
    )
    best = F.max(F.struct("sound", "sequencer", "time", "name", "etag", "size", "version")).alias("best")
    return read.groupBy("key").agg(best).select("key", "best.*").select(*NAMESPACE.names)


def drift(
    listing: DataFrame, rows: DataFrame, in_flight: DataFrame, *, bucket: str, rules: Iterable[Rule], policy: str,
    versioned: bool, young: int, clocks: int = CLOCKS, keys: int = 0,
) -> DataFrame:  # fmt: skip
    """FINDINGS of a LISTING and a NAMESPACE, as the target's rules and its policy would have them.

    `keys` is how many there are on the larger side, so that memory is enough for them; 0 for a few.

    `in_flight` holds the keys (`key`) of which events are on their way, and objects written at or after `young` (ms)
    count as such too: what is found of them is marked, and is no drift.
    """
    held = listing.select(*(F.col(name).alias(f"l_{name}") for name in listing.columns))
    found = rows.select(*(F.col(name).alias(f"n_{name}") for name in NAMESPACE.names))
    # Hashing takes a fifth less time than sorting both sides (measured on 5 million keys), but a part's keys have to
    # fit into memory, as a hashed side is never spilled.
    usual = int(listing.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    parts = min(max(usual, -(-keys // _PART)), _MOST_PARTS)
    if parts > usual:
        held, found = held.repartition(parts, "l_key"), found.repartition(parts, "n_key")
    hint = "shuffle_hash" if keys <= parts * _PART else "merge"
    both = held.hint(hint).join(found, F.col("l_key") == F.col("n_key"), "full_outer")
    both = both.withColumn("key", F.coalesce("l_key", "n_key"))
    moving = in_flight.select(F.col("key").alias("moving")).distinct()
    judged = both.withColumn("differs", _differs(versioned=versioned, policy=policy, clocks=clocks)).withColumn(
        "kind", _kind(list(rules), bucket, versioned=versioned, policy=policy)
    )
    told = judged.where(F.col("kind").isNotNull()).join(moving, F.col("key") == F.col("moving"), "left")
    return told.select(
        "key",
        "kind",
        F.when(F.col("kind") == STALE, F.array_join("differs", ",")).otherwise("").alias("differs"),
        *(F.col(f"l_{name}").alias(name) for name in ("etag", "size", "modified", "version")),
        *(F.col(f"n_{name}").alias(f"row_{name}") for name in ("name", "etag", "size", "version", "sequencer", "time")),
        (F.col("moving").isNotNull() | F.coalesce(F.col("l_modified") >= young, F.lit(False))).alias("in_flight"),
    ).select(*FINDINGS.names)


def counts(findings: DataFrame) -> dict[str, int]:
    """How many there are of each kind, those in flight counted as `in_flight` alone."""
    kind = F.when(F.col("in_flight") & (F.col("kind") != OUTSIDE), "in_flight").otherwise(F.col("kind")).alias("kind")
    counted = {row["kind"]: int(row["count"]) for row in findings.groupBy(kind).count().collect()}
    return {name: counted.get(name, 0) for name in (*DRIFT, OUTSIDE, "in_flight")}


def _kind(rules: Sequence[Rule], bucket: str, *, versioned: bool, policy: str) -> Column:
    promised = rule_predicates(rules, bucket, F.col("key"), versioned=versioned)
    held, row = F.col("l_key").isNotNull(), F.col("n_key").isNotNull()
    orphaned, missing = promised.removable, promised.expected
    if policy == "compatible":
        # MinIO's rows of markers and of removals that found nothing are left by design (§1.11), and in a versioned
        # bucket removing an old version takes the living object's row along.
        orphaned &= ~(_says(*REMOVALS) | F.coalesce(F.col("n_name") == _NOTHING_REMOVED, F.lit(False)))
        if versioned:
            missing = F.lit(False)
    return (
        F.when(row & ~promised.possible, OUTSIDE)
        .when(row & ~F.col("n_sound"), MALFORMED)
        .when(held & row & promised.expected & (F.size("differs") > 0), STALE)
        .when(held & ~row & missing, MISSING)
        .when(~held & row & orphaned, ORPHANED)
    )


def _differs(*, versioned: bool, policy: str, clocks: int) -> Column:
    created = _says(ContentChange.CREATED)
    etag = F.when(F.col("n_etag").isNotNull(), F.col("n_etag") != F.col("l_etag")).otherwise(created)
    # A row that a mirror would not have written, and that does not tell of the content either, has to be told anew.
    event = _says(*REMOVALS) | (F.lit(policy == "mirror") & ~created & F.col("n_etag").isNull())
    respects = {
        "event": event,
        "etag": etag & ~event,
        "size": created & (F.coalesce("n_size", F.lit(0)) != F.col("l_size")),  # MinIO leaves a size of 0 out
        "version": created & F.lit(versioned) & (F.col("n_version") != F.col("l_version")),
        "time": created & (F.col("n_time") < F.col("l_modified") - clocks),
    }
    named = [F.when(F.coalesce(differs, F.lit(False)), name) for name, differs in respects.items()]
    return F.array_compact(F.array(*named))


def _says(*wanted: ContentChange) -> Column:
    return F.coalesce(F.col("n_name").isin(names(*wanted)), F.lit(False))
