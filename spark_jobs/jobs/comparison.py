"""Compare a target's rows with a bucket's objects: frames in, frames out; this module reads and changes nothing.

The kinds of drift are those of `app.resources.reconciliation`. A row whose key no rule sends to the target is
`unmatched`: it is reported, but is no drift, because another program may have written it. Both sides are counted while
they are compared.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.names import ContentChange
from app.events.own_events import CLOCK_SKEW
from app.resources.reconciliation import DRIFT_KINDS, DriftKind
from app.rules.model import Rule
from spark_jobs.frames import (
    DIFFERENCES,
    FINDINGS,
    KEY_HASH,
    LISTING,
    NAMESPACE,
    PATHS,
    REMOVALS,
    by_key,
    change_of,
    etag,
    integer,
    is_change,
    milliseconds,
    one_per_key,
    version,
)
from spark_jobs.rule_predicates import rule_predicates


class Sizes:
    """The sizes of both sides of a comparison, counted while they are compared."""

    def __init__(self) -> None:
        self._objects, self._rows, self._pairs = Observation(), Observation(), Observation()

    def of_objects(self, frame: DataFrame) -> DataFrame:
        """Count the frame as the objects."""
        return frame.observe(self._objects, F.count(F.lit(1)).alias("count"))

    def of_rows(self, frame: DataFrame) -> DataFrame:
        """Count the frame as the target's rows."""
        return frame.observe(self._rows, F.count(F.lit(1)).alias("count"))

    def of_pairs(self, frame: DataFrame) -> DataFrame:
        """Count the pairs of a full outer join of objects (`l_key`) and rows (`n_key`).

        It also makes sure that both sides are read to their ends: Spark turns a full outer join into another one where
        a condition behind it allows that, but not behind a count of its rows.
        """
        both = F.count(F.when(F.col("l_key").isNotNull() & F.col("n_key").isNotNull(), 1))
        return frame.observe(self._pairs, F.count(F.lit(1)).alias("count"), both.alias("matched"))

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of `objects` and of `target_rows`."""
        return {"objects": self._objects.get["count"], "target_rows": self._rows.get["count"]}

    @property
    def has_repeated_matches(self) -> bool:
        """Whether a key that both sides have is in one of them more than once.

        Of m entries and n rows of a key there are m * n pairs: as many as m + n - m * n only if both are 1.
        """
        pairs = self._pairs.get
        return bool(sum(self.counts.values()) != pairs["count"] + pairs["matched"])


UNMATCHED = "unmatched"
_NOOP_REMOVAL = "s3:ObjectRemoved:NoOP"

# An event's document, as far as ROWS need it: every text as it is written there.
_DOCUMENT = (
    "Records array<struct<eventName string, eventTime string, s3 struct<bucket struct<name string>, object struct<"
    "key string, eTag string, size string, versionId string, sequencer string>>>>"
)


def documents(frame: DataFrame, document: str = "document") -> DataFrame:
    """Return the ROWS of a frame with `key` and whole documents as text."""
    parsed = frame.select("key", F.from_json(document, _DOCUMENT).alias("parsed"))
    record = parsed.select("key", F.get("parsed.Records", F.lit(0)).alias("record"))
    return record.select("key", *(F.col(".".join(("record", *path))).alias(name) for name, path in PATHS.items()))


def namespace_by_key(rows: DataFrame, bucket: str) -> DataFrame:
    """Return the NAMESPACE of ROWS, each key once, with the hash of each key, in the order in which `compare` joins it.

    A store that is read while it is written may return a row twice. Of several rows a sound one counts: the events of
    the object do not change a row at a wrong place.
    """
    best = F.max(F.struct("sound", "sequencer", "time", "name", "etag", "size", "version"))
    chosen = one_per_key(parsed(rows, bucket), best).select(KEY_HASH, "key", "chosen.*")
    return chosen.select(KEY_HASH, *NAMESPACE.names)


def parsed(rows: DataFrame, bucket: str) -> DataFrame:
    """Return each of the ROWS as a row of a NAMESPACE. Some frontends quote ETags as S3's headers do."""
    sound = F.col("name").isNotNull() & (F.col("bucket") == bucket) & is_encoded(F.col("object"), F.col("key"))
    return rows.select(
        "key",
        F.coalesce(sound, F.lit(False)).alias("sound"),
        "name",
        etag(F.col("etag")).alias("etag"),
        integer(F.col("size")).alias("size"),
        version(F.col("version")).alias("version"),
        "sequencer",
        milliseconds(F.col("time")).alias("time"),
    )


def compare(
    listing: DataFrame, rows: DataFrame, *, bucket: str, rules: Iterable[Rule], policy: str, versioned: bool,
    clock_skew: int = CLOCK_SKEW, sizes: Sizes | None = None,
) -> DataFrame:  # fmt: skip
    """Return the DIFFERENCES between a LISTING and a NAMESPACE by the target's rules and policy.

    Each side has a key once. If that is not certain, `sizes` says so for keys of both sides when the frame has been
    written; the frame then has every row without an object, so that rows which repeat are in it: those that are no
    difference have no `kind`.
    """
    objects = by_key(listing).select(*(F.col(name).alias(f"l_{name}") for name in (KEY_HASH, *LISTING.names)))
    # The conditions below are repeated in the plan: what they all ask of the name is found out once, before the join.
    rows = by_key(rows).withColumn("change", change_of(F.col("name")))
    rows = rows.select(*(F.col(name).alias(f"n_{name}") for name in (KEY_HASH, *NAMESPACE.names, "change")))
    same = (F.col(f"l_{KEY_HASH}") == F.col(f"n_{KEY_HASH}")) & (F.col("l_key") == F.col("n_key"))
    if sizes is not None:
        objects, rows = sizes.of_objects(objects), sizes.of_rows(rows)
    # Both sides are sorted, or spill while they are: a side that is hashed has to fit into memory.
    both = objects.hint("merge").join(rows, same, "full_outer")
    if sizes is not None:
        both = sizes.of_pairs(both)
    both = both.withColumn("key", F.coalesce("l_key", "n_key"))
    differs = _differs(versioned=versioned, policy=policy, clock_skew=clock_skew)
    is_stale = reduce(operator.or_, differs.values())
    classified = both.withColumn("kind", _kind(list(rules), bucket, is_stale, versioned=versioned, policy=policy))
    named = [F.when(is_different, name) for name, is_different in differs.items()]
    is_kept = F.col("kind").isNotNull()
    if sizes is not None:
        is_kept |= F.col("l_key").isNull()
    return classified.where(is_kept).select(
        "key",
        "kind",
        F.when(F.col("kind") == DriftKind.STALE, F.concat_ws(",", *named)).otherwise("").alias("differs"),
        *(F.col(f"l_{name}").alias(name) for name in ("etag", "size", "modified", "version")),
        *(F.col(f"n_{name}").alias(f"row_{name}") for name in ("name", "etag", "size", "version", "sequencer", "time")),
    ).select(*DIFFERENCES.names)  # fmt: skip


def mark_in_flight(differences: DataFrame, in_flight: DataFrame | None, *, young: int) -> DataFrame:
    """Return the FINDINGS of DIFFERENCES.

    `in_flight` has the keys (`key`) whose events are on their way, None for no keys; objects that were modified, and
    rows whose event is from, at or after `young` (ms) are in flight as well. Findings about them are marked, and are no
    drift: a row that is newer than the listing is never replaced by it.
    """
    is_young = F.coalesce(F.greatest("modified", "row_time") >= young, F.lit(False))
    if in_flight is None:
        return differences.withColumn("in_flight", is_young)
    moving = in_flight.select(F.col("key").alias("moving")).distinct()
    joined = differences.join(moving, F.col("key") == F.col("moving"), "left")
    return joined.withColumn("in_flight", F.col("moving").isNotNull() | is_young).select(*FINDINGS.names)


def count_findings(findings: DataFrame) -> dict[str, int]:
    """Return the number of findings of each kind; those in flight count as `in_flight` only."""
    kind = F.when(F.col("in_flight") & (F.col("kind") != UNMATCHED), "in_flight").otherwise(F.col("kind")).alias("kind")
    counts = {row["kind"]: int(row["count"]) for row in findings.groupBy(kind).count().collect()}
    return {name: counts.get(name, 0) for name in (*DRIFT_KINDS, UNMATCHED, "in_flight")}


def is_encoded(encoded: Column, key: Column) -> Column:
    """Return whether `encoded` is the key as events have it, with percent signs; null if it is not encoded text."""
    decoded = F.try_url_decode(encoded)  # type: ignore[attr-defined, unused-ignore]  # younger than the stubs
    # Most keys have slashes and nothing else that is encoded; to replace these takes less time than to decode.
    unslashed = F.replace(encoded, F.lit("%2F"), F.lit("/"))
    is_plain = ~unslashed.contains("%") & ~unslashed.contains("+")
    return F.when(is_plain, unslashed == key).otherwise(decoded == key)


def _kind(rules: Sequence[Rule], bucket: str, is_stale: Column, *, versioned: bool, policy: str) -> Column:
    predicates = rule_predicates(rules, bucket, F.col("key"), versioned=versioned)
    has_object, has_row = F.col("l_key").isNotNull(), F.col("n_key").isNotNull()
    orphaned, missing = predicates.removable, predicates.expected
    if policy == "compatible":
        # MinIO leaves rows of delete markers and of removals without effect by design (§1.11), and in a versioned
        # bucket the removal of an old version removes the current object's row.
        orphaned &= ~(_is_change(*REMOVALS) | F.coalesce(F.col("n_name") == _NOOP_REMOVAL, F.lit(False)))
        if versioned:
            missing = F.lit(False)
    return (
        F.when(has_row & ~predicates.possible, UNMATCHED)
        .when(has_row & ~F.col("n_sound"), DriftKind.MALFORMED)
        .when(has_object & has_row & predicates.expected & is_stale, DriftKind.STALE)
        .when(has_object & ~has_row & missing, DriftKind.MISSING)
        .when(~has_object & has_row & orphaned, DriftKind.ORPHANED)
    )


def _differs(*, versioned: bool, policy: str, clock_skew: int) -> Mapping[str, Column]:
    """Return for each name in `differs` whether that differs between an object and its row; never null."""
    created = _is_change(ContentChange.CREATED)
    etag = F.when(F.col("n_etag").isNotNull(), F.col("n_etag") != F.col("l_etag")).otherwise(created)
    # A row that a mirror would not have written, and that lacks the content's ETag too, has to be sent again.
    event = _is_change(*REMOVALS) | (F.lit(policy == "mirror") & ~created & F.col("n_etag").isNull())
    differences = {
        "event": event,
        "etag": etag & ~event,
        "size": created & (F.coalesce("n_size", F.lit(0)) != F.col("l_size")),  # MinIO leaves a size of 0 out
        "version": created & F.lit(versioned) & (F.col("n_version") != F.col("l_version")),
        "time": created & (F.col("n_time") < F.col("l_modified") - clock_skew),
    }
    return {name: F.coalesce(differs, F.lit(False)) for name, differs in differences.items()}


def _is_change(*changes: ContentChange) -> Column:
    return is_change(F.col("n_change"), *changes)
