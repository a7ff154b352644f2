"""The plan by which a bucket and a target's rows are compared: each side is read, shuffled and sorted once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.names import KNOWN, ContentChange, content_change
from spark_jobs.folders import Folder
from spark_jobs.frames import DIFFERENCES, KEY_HASH, LISTING, NAMESPACE, ROWS, has_change
from spark_jobs.jobs.comparison import Sizes, compare, documents, is_encoded, mark_in_flight, namespace_by_key, parsed
from spark_jobs.jobs.reconcile import has_repeated_keys, write_differences
from spark_jobs.listings.listing import Listing, from_parquet, newest
from spark_jobs.reports import write_parquet
from spark_jobs.scratch import frame_of_keys, write_keys
from tests.support.comparison import PUT, T, kinds, row, rule, thing
from tests.support.frames import frame_of
from tests.support.hostile_names import BUCKETS

ENTRIES = "key string, etag string, size bigint, modified bigint, version string, marker boolean, ordinal bigint"
TIME = "2026-11-18T09:06:40.123Z"


STATIC = pytest.mark.nightly("adaptive execution, which every run has unless an operator has Spark do without")


@pytest.fixture(params=[pytest.param(False, id="static", marks=STATIC), pytest.param(True, id="adaptive")])
def planned(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    """Plan for two partitions; as the tests' session otherwise does, and as a run does."""
    settings = {"spark.sql.adaptive.enabled": str(request.param).lower(), "spark.sql.shuffle.partitions": "2"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield spark
    for name, value in before.items():
        spark.conf.set(name, value or "")


def entry(key: str, etag: str = "e1", *, ordinal: int = 1, marker: bool = False) -> tuple[Any, ...]:
    return key, etag, 5, 1_794_992_800_123, "", marker, ordinal


def stored(key: str, etag: str = "e1", sequencer: str = "18E9", bucket: str = "b") -> tuple[Any, ...]:
    return key, PUT, bucket, quote(key, safe=""), etag, "5", "", sequencer, TIME


def compared(listing: DataFrame, rows: DataFrame, sizes: Sizes | None = None, **more: Any) -> DataFrame:
    options = {"bucket": "b", "rules": [rule()], "policy": "mirror", "versioned": False} | more
    return compare(listing, rows, sizes=sizes, **options)


def listed(spark: SparkSession, entries: Sequence[tuple[Any, ...]]) -> Listing:
    """Return a listing of entries whose keys somebody may have listed twice."""
    frame = frame_of(spark, entries, ENTRIES)
    unreadable, single = spark.range(0).select(F.lit("").alias("line")), frame.where("not marker").drop("marker")
    return Listing(newest(frame), False, unreadable, single=single.select(*LISTING.names))


@pytest.mark.parametrize("is_chosen", [False, True], ids=["single", "chosen"])
def test_each_side_is_shuffled_and_sorted_once(planned: SparkSession, is_chosen: bool) -> None:
    listing, rows = listed(planned, [entry("k")]), frame_of(planned, [stored("k")], ROWS)
    assert listing.single is not None
    sides = (listing.objects, namespace_by_key(rows, "b")) if is_chosen else (listing.single, parsed(rows, "b"))
    plan = compared(*sides, Sizes())._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    nodes = [line.lstrip(" :+-*()0123456789") for line in plan.splitlines()]
    count = {name: sum(node.startswith(name) for node in nodes) for name in ("Exchange", "Sort ", "SortMergeJoin")}
    assert count == {"Exchange": 2, "Sort ": 2, "SortMergeJoin": 1}, plan


KEYS = [f"data/2026/{number:03}" for number in range(100)]
REPEATED: dict[str, tuple[list[Any], list[Any], dict[str, str]]] = {  # more entries, more rows, differences
    "nothing": ([], [], {}),
    "an entry with a row": ([entry(KEYS[7], "older", ordinal=0)], [], {}),
    "a row with an entry": ([], [stored(KEYS[7], "older", "17")], {}),
    "a newer row": ([], [stored(KEYS[7], "newer", "18EA")], {KEYS[7]: "stale"}),
    "a row of another bucket": ([], [stored(KEYS[7], bucket="other")], {}),
    "both": ([entry(KEYS[7], "older", ordinal=0)], [stored(KEYS[7], "older", "17")], {}),
    "an entry without a row": ([entry("new"), entry("new", "older", ordinal=0)], [], {"new": "missing"}),
    "a row without an entry": ([], [stored("gone"), stored("gone", "older", "17")], {"gone": "orphaned"}),
    "a row that only seems malformed": ([], [stored("z"), stored("z", bucket="other")], {"z": "orphaned"}),
}
ALIKE = {  # those that one aggregate, or one count, decides as the others
    ("a row of another bucket", True), ("a row that only seems malformed", True), ("a row with an entry", True),
    ("both", True), ("a row without an entry", False), ("nothing", True), ("an entry with a row", True),
}  # fmt: skip


@pytest.mark.nightly(
    "a newer row, several entries or rows with the other side and without: one aggregate chooses",
    when=lambda repeated, has_single_rows: (repeated, has_single_rows) in ALIKE,
)
@pytest.mark.parametrize("planned", [True], indirect=True)
@pytest.mark.parametrize(
    ("repeated", "has_single_rows"),
    [*((name, True) for name in REPEATED), ("both", False), ("a row without an entry", False)],
)
def test_of_several_entries_and_rows_of_a_key_one_counts(
    planned: SparkSession, tmp_path: Path, repeated: str, has_single_rows: bool
) -> None:
    entries, rows, expected = REPEATED[repeated]
    listing = listed(planned, [*map(entry, KEYS), *entries])
    found, sizes = write_differences(
        listing, frame_of(planned, [*map(stored, KEYS), *rows], ROWS), Folder.of(tmp_path),
        has_single_rows=has_single_rows, bucket="b", rules=[rule()], policy="mirror",
    )  # fmt: skip
    assert sorted((one["key"], one["kind"]) for one in found.collect()) == sorted(expected.items())
    assert sizes == {
        "objects": len(KEYS) + any(each[0] == "new" for each in entries),
        "target_rows": len(KEYS) + any(each[0] in ("gone", "z") for each in rows),
    }
    assert (tmp_path / "chosen.parquet").exists() == bool(entries or (has_single_rows and rows))


@pytest.mark.parametrize("planned", [True], indirect=True)
def test_a_row_that_a_better_one_excuses_is_no_difference(planned: SparkSession, tmp_path: Path) -> None:
    """Without a rule for removals a row without an object is none, but if its document is of another object."""
    rows = frame_of(planned, [stored("z"), stored("z", bucket="other"), stored("y", bucket="other")], ROWS)
    found, sizes = write_differences(
        listed(planned, []), rows, Folder.of(tmp_path),
        has_single_rows=True, bucket="b", rules=[rule(events=["s3:ObjectCreated:*"])], policy="mirror",
    )  # fmt: skip
    assert [(one["key"], one["kind"]) for one in found.collect()] == [("y", "malformed")]
    assert sizes == {"objects": 0, "target_rows": 2}


def test_keys_with_the_same_hash_are_different_keys(planned: SparkSession) -> None:
    same = F.lit(1).cast("bigint").alias(KEY_HASH)
    listing = frame_of(planned, [thing(key) for key in "abc"], LISTING).select(same, "*")
    rows = frame_of(planned, [row("b"), row("c", etag="e2"), row("d")], NAMESPACE).select(same, "*")
    found = mark_in_flight(compared(listing, rows), None, young=T + 1_000_000)
    assert kinds(found) == {"a": "missing", "c": "stale:etag", "d": "orphaned"}


@pytest.mark.nightly(
    "the target's side as the larger, and one of the two empty: one count, whichever side has it",
    when=lambda objects, target_rows: (objects, target_rows) in {(7, 3), (0, 0)},
)
@pytest.mark.parametrize(
    ("objects", "target_rows", "prefix"), [(0, 0, ""), (3, 0, ""), (0, 3, ""), (7, 3, "no/key/"), (3, 7, "no/key/")]
)
def test_both_sides_are_counted_to_their_ends(
    planned: SparkSession, tmp_path: Path, objects: int, target_rows: int, prefix: str
) -> None:
    listing = frame_of(planned, [thing(f"k{number}") for number in range(objects)], LISTING)
    rows, sizes = frame_of(planned, [row(f"k{number}") for number in range(target_rows)], NAMESPACE), Sizes()
    folder = Folder.of(tmp_path / "differences")
    differences = write_parquet(compared(listing, rows, sizes, rules=[rule(prefix)]), folder)
    assert sizes.counts == {"objects": objects, "target_rows": target_rows}
    assert not has_repeated_keys(differences, sizes)


def test_keys_in_flight_are_found_whatever_is_in_them(spark: SparkSession, tmp_path: Path) -> None:
    keys = [
        *BUCKETS,
        "a\nb",
        "a\rb",
        "a\u2028b",
        "\ufeffbom",
        "nul\0",
        '{"key": "k"}',
        "%2F",
        " lead",
        "trail ",
        "🎉" * 250,
    ]
    found = [(key, "missing", "", "e", 1, T, "", *[None] * 6) for key in [*keys, "other"]]
    differences = frame_of(spark, found, DIFFERENCES)
    folder, none = Folder.of(tmp_path / "keys"), Folder.of(tmp_path / "none")
    write_keys(folder, "some", keys[:3])
    write_keys(folder, "others", [*keys[3:], "elsewhere", "\ud800"])
    in_flight = frame_of_keys(spark, folder)
    marked = {one["key"]: one["in_flight"] for one in mark_in_flight(differences, in_flight, young=T + 1).collect()}
    assert marked == dict.fromkeys(keys, True) | {"other": False}
    write_keys(none, "keys", [])
    assert frame_of_keys(spark, none) is None
    assert not any(one["in_flight"] for one in mark_in_flight(differences, None, young=T + 1).collect())
    assert all(one["in_flight"] for one in mark_in_flight(differences, None, young=T).collect())


def test_a_row_that_is_newer_than_the_listing_is_in_flight(spark: SparkSession) -> None:
    rows = [("n", T), ("o", T - 1), ("u", None)]
    found = [(key, "orphaned", "", None, None, None, None, PUT, "e", 1, "", "18E9", time) for key, time in rows]
    marked = mark_in_flight(frame_of(spark, found, DIFFERENCES), None, young=T).collect()
    assert {one["key"]: one["in_flight"] for one in marked} == {"n": True, "o": False, "u": False}


def test_a_row_is_sound_if_its_event_names_its_key_in_any_encoding(spark: SparkSession) -> None:
    keys = ["a/b", "a b", "a+b", "a%2Fb", "%2F", "ü/🎉", "~", "plain", "%"]
    encoded = [*((key, quote(key, safe="")) for key in keys), *((key, quote_plus(key)) for key in keys)]
    encoded += [*((key, quote(key, safe="/")) for key in keys), ("a/b", "a%2fb"), ("ü", "ü")]
    wrong = [("a/b", "a%252Fb"), ("a%2Fb", "a%2Fb"), ("a+b", "a+b"), ("a b", "a%2Bb"), ("a", "%zz"), ("a", None)]
    frame = frame_of(spark, [*encoded, *wrong], "key string, object string")
    found = [one[0] or False for one in frame.select(is_encoded(F.col("object"), F.col("key"))).collect()]
    assert found == [True] * len(encoded) + [False] * len(wrong)


def test_a_document_is_read_as_its_members_are_written(spark: SparkSession) -> None:
    def document(**members: Any) -> str:
        return orjson.dumps({"Records": [members]}).decode()

    texts = {
        "number": document(eventName=5, s3={"object": {"size": "12", "eTag": 1.5}}),
        "no object": document(eventName=PUT, s3="text"),
        "null": document(eventName=PUT, s3={"bucket": None, "object": {"versionId": None, "size": 0}}),
        "several": orjson.dumps({"Records": [{"eventName": "a"}, {"eventName": "b"}], "Key": "x"}).decode(),
        "none": '{"Records":[]}',
        "cut": document(eventName=PUT)[:-2],
        "empty": "",
    }
    frame = documents(frame_of(spark, list(texts.items()), "key string, document string"))
    found = {
        one["key"]: {name: text for name, text in one.asDict().items() if text is not None} for one in frame.collect()
    }
    assert found == {
        "number": {"key": "number", "name": "5", "size": "12", "etag": "1.5"},
        "no object": {"key": "no object", "name": PUT},
        "null": {"key": "null", "name": PUT, "size": "0"},
        "several": {"key": "several", "name": "a"},
        "none": {"key": "none"},
        "cut": {"key": "cut"},
        "empty": {"key": "empty"},
    }


def test_entries_that_parquet_lacks_are_unreadable_whatever_the_types(spark: SparkSession, tmp_path: Path) -> None:
    """Typed columns are filtered by the file's statistics, texts are parsed; both find the same entries."""
    time = "timestamp'2026-11-18 09:06:40.123'"
    good = [("k", "e", "5", time)]
    bad = [
        ("NULL", "'e'", "5", time),
        ("'a'", "NULL", "5", time),
        ("'b'", "'e'", "NULL", time),
        ("'c'", "'e'", "5", "NULL"),
    ]
    values = ", ".join(f"({', '.join(each)})" for each in [*((f"'{k}'", f"'{e}'", s, t) for k, e, s, t in good), *bad])
    typed = spark.sql(f"SELECT * FROM VALUES {values} AS t(key, e_tag, size, last_modified_date)")
    iso = F.date_format("last_modified_date", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'")
    texts = typed.select("key", "e_tag", F.col("size").cast("string"), iso.alias("last_modified_date"))
    for number, frame in enumerate((typed, texts)):
        path = str(tmp_path / str(number))
        frame.coalesce(1).write.parquet(path)
        listing = from_parquet(spark, path, "images", versioned=False)
        assert [tuple(one) for one in listing.frame.collect()] == [("k", "e", 5, 1_794_992_800_123, "")]
        lines = [orjson.loads(one["line"]) for one in listing.unreadable.collect()]
        assert sorted(one.get("key", "") for one in lines) == ["", "a", "b", "c"]
        assert listing.unreadable_count == 4


def test_a_name_known_or_not_means_in_a_frame_what_it_means_to_a_mirror(spark: SparkSession) -> None:
    families = ("s3:ObjectCreated:", "s3:ObjectRemoved:", "s3:LifecycleExpiration:", "s3:ObjectAccessed:", "s3:New:")
    unknown = [family + member for family in families for member in ("", "*", "New", "NewMarkerMade", "put")]
    events = [*sorted(KNOWN), *unknown, "", "*"]
    frame = spark.createDataFrame([(name,) for name in events], "name string")
    every = [change for change in ContentChange if change is not ContentChange.NOTHING]
    columns = [has_change(F.col("name"), change).alias(change.value) for change in every]
    both = has_change(F.col("name"), ContentChange.CREATED, ContentChange.DELETE_MARKER).alias("both")
    for found in frame.select("name", *columns, both).collect():
        assert [change for change in every if found[change.value]] == [
            change for change in every if change is content_change(found["name"])
        ]
        assert found["both"] == (found["created"] or found["marked"])
