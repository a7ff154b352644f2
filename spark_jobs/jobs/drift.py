"""Compare a target's rows with a bucket's objects: frames in, frames out; this module reads and changes nothing.

* `missing`: the object exists and the rules would have sent its event, but there is no row.
* `stale`: the row has another content, another version, or an older write (`differs` names each).
* `orphaned`: there is a row, but no such object, and the rules would have sent its removal.
* `malformed`: the row's document is not an event, or the event of another object.
* `unmatched`: no rule sends events of the row's key to the target; reported, but not drift, because another program
  may have written the row.
"""

from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.effects import ContentChange, names
from app.rules.model import Rule
from spark_jobs.rule_predicates import rule_predicates
from spark_jobs.schemas import FINDINGS, NAMESPACE, PATHS, integer, milliseconds, version

MISSING, STALE, ORPHANED, MALFORMED, UNMATCHED = "missing", "stale", "orphaned", "malformed", "unmatched"
DRIFT = (MISSING, STALE, ORPHANED, MALFORMED)
_NOOP_REMOVAL = "s3:ObjectRemoved:NoOP"
REMOVALS = (ContentChange.DELETE_MARKER, ContentChange.REMOVED, ContentChange.ALL_DELETED)

# An event's time is when it was sent, an object's when it was written, and the clocks of several machines differ.
CLOCK_SKEW = 60_000  # ms

_PARTITION_KEYS = 200_000  # keys that a task has in memory, about 50 MB
_MAX_PARTITIONS = 20_000  # with more, both sides are sorted instead


def documents(frame: DataFrame, document: str = "document") -> DataFrame:
    """Return the ROWS of a frame with `key` and whole documents as text."""
    texts = [F.get_json_object(document, "$.Records[0]." + ".".join(path)).alias(name) for name, path in PATHS.items()]
    return frame.select("key", *texts)


def namespace(rows: DataFrame, bucket: str) -> DataFrame:
    """Return the NAMESPACE of ROWS, each key once: a store that is read while it is written may return a row twice.

    Of several rows a sound one counts: the events of the object do not change a row at a wrong place.
    """
    object_key = F.try_url_decode(F.col("object"))  # type: ignore[attr-defined, unused-ignore]  # younger than the stubs
    sound = F.col("name").isNotNull() & (F.col("bucket") == bucket) & (object_key == F.col("key"))
    parsed = rows.select(
        "key",
        F.coalesce(sound, F.lit(False)).alias("sound"),
        "name",
        "etag",
        integer(F.col("size")).alias("size"),
        version(F.col("version")).alias("version"),
        "sequencer",
        milliseconds(F.col("time")).alias("time"),
    )
    best = F.max(F.struct("sound", "sequencer", "time", "name", "etag", "size", "version")).alias("best")
    return parsed.groupBy("key").agg(best).select("key", "best.*").select(*NAMESPACE.names)


def find_drift(
    listing: DataFrame, rows: DataFrame, in_flight: DataFrame, *, bucket: str, rules: Iterable[Rule], policy: str,
    versioned: bool, young: int, clock_skew: int = CLOCK_SKEW, keys: int = 0,
) -> DataFrame:  # fmt: skip
    """Return the FINDINGS of a LISTING and a NAMESPACE by the target's rules and policy.

    `keys` is the number of keys on the larger side, so that their memory can be planned; 0 for a few.

    `in_flight` has the keys (`key`) whose events are on their way; objects modified at or after `young` (ms) are in
    flight as well. Findings about them are marked, and are not drift.
    """
    objects = listing.select(*(F.col(name).alias(f"l_{name}") for name in listing.columns))
    rows = rows.select(*(F.col(name).alias(f"n_{name}") for name in NAMESPACE.names))
    # A hash join takes a fifth less time than a sort of both sides (measured on 5 million keys), but the keys of a
    # partition have to fit into memory, because a hashed side is never spilled.
    configured = int(listing.sparkSession.conf.get("spark.sql.shuffle.partitions") or 1)
    partitions = min(max(configured, -(-keys // _PARTITION_KEYS)), _MAX_PARTITIONS)
    if partitions > configured:
        objects, rows = objects.repartition(partitions, "l_key"), rows.repartition(partitions, "n_key")
    hint = "shuffle_hash" if keys <= partitions * _PARTITION_KEYS else "merge"
    both = objects.hint(hint).join(rows, F.col("l_key") == F.col("n_key"), "full_outer")
    both = both.withColumn("key", F.coalesce("l_key", "n_key"))
    moving = in_flight.select(F.col("key").alias("moving")).distinct()
    classified = both.withColumn(
        "differs", _differs(versioned=versioned, policy=policy, clock_skew=clock_skew)
    ).withColumn("kind", _kind(list(rules), bucket, versioned=versioned, policy=policy))
    findings = classified.where(F.col("kind").isNotNull()).join(moving, F.col("key") == F.col("moving"), "left")
    return findings.select(
        "key",
        "kind",
        F.when(F.col("kind") == STALE, F.array_join("differs", ",")).otherwise("").alias("differs"),
        *(F.col(f"l_{name}").alias(name) for name in ("etag", "size", "modified", "version")),
        *(F.col(f"n_{name}").alias(f"row_{name}") for name in ("name", "etag", "size", "version", "sequencer", "time")),
        (F.col("moving").isNotNull() | F.coalesce(F.col("l_modified") >= young, F.lit(False))).alias("in_flight"),
    ).select(*FINDINGS.names)


def count_findings(findings: DataFrame) -> dict[str, int]:
    """Return the number of findings of each kind; those in flight count as `in_flight` only."""
    kind = F.when(F.col("in_flight") & (F.col("kind") != UNMATCHED), "in_flight").otherwise(F.col("kind")).alias("kind")
    counts = {row["kind"]: int(row["count"]) for row in findings.groupBy(kind).count().collect()}
    return {name: counts.get(name, 0) for name in (*DRIFT, UNMATCHED, "in_flight")}


def _kind(rules: Sequence[Rule], bucket: str, *, versioned: bool, policy: str) -> Column:
    predicates = rule_predicates(rules, bucket, F.col("key"), versioned=versioned)
    has_object, has_row = F.col("l_key").isNotNull(), F.col("n_key").isNotNull()
    orphaned, missing = predicates.removable, predicates.expected
    if policy == "compatible":
        # MinIO leaves rows of delete markers and of removals without effect by design (§1.11), and in a versioned
        # bucket the removal of an old version removes the current object's row.
        orphaned &= ~(_is_event(*REMOVALS) | F.coalesce(F.col("n_name") == _NOOP_REMOVAL, F.lit(False)))
        if versioned:
            missing = F.lit(False)
    return (
        F.when(has_row & ~predicates.possible, UNMATCHED)
        .when(has_row & ~F.col("n_sound"), MALFORMED)
        .when(has_object & has_row & predicates.expected & (F.size("differs") > 0), STALE)
        .when(has_object & ~has_row & missing, MISSING)
        .when(~has_object & has_row & orphaned, ORPHANED)
    )


def _differs(*, versioned: bool, policy: str, clock_skew: int) -> Column:
    created = _is_event(ContentChange.CREATED)
    etag = F.when(F.col("n_etag").isNotNull(), F.col("n_etag") != F.col("l_etag")).otherwise(created)
    # A row that a mirror would not have written, and that lacks the content's ETag too, has to be sent again.
    event = _is_event(*REMOVALS) | (F.lit(policy == "mirror") & ~created & F.col("n_etag").isNull())
    differences = {
        "event": event,
        "etag": etag & ~event,
        "size": created & (F.coalesce("n_size", F.lit(0)) != F.col("l_size")),  # MinIO leaves a size of 0 out
        "version": created & F.lit(versioned) & (F.col("n_version") != F.col("l_version")),
        "time": created & (F.col("n_time") < F.col("l_modified") - clock_skew),
    }
    named = [F.when(F.coalesce(differs, F.lit(False)), name) for name, differs in differences.items()]
    return F.array_compact(F.array(*named))


def _is_event(*changes: ContentChange) -> Column:
    return F.coalesce(F.col("n_name").isin(names(*changes)), F.lit(False))
