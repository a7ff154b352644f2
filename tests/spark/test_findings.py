"""Differences between a bucket and a target's rows, on frames of a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import orjson
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.testing import assertDataFrameEqual

from app.config.arn import TargetId
from app.resources.reconciliation import COUNTS, FORMATS, finding_line
from app.rules.filters import Filters, Pairs
from app.rules.model import Rule
from spark_jobs import reports
from spark_jobs.folders import Folder, NotShared
from spark_jobs.frames import FINDINGS, LISTING, NAMESPACE, ROWS
from spark_jobs.jobs.comparison import count_findings, documents, namespace_by_key
from spark_jobs.reports import FINDINGS as FOLDER
from spark_jobs.reports import (
    LINES,
    PAGE,
    ReportHeader,
    by_folder_and_age,
    check_complete,
    write_findings,
    write_lines,
    write_page,
    write_parquet,
)
from spark_jobs.rule_predicates import rule_predicates
from spark_jobs.session import is_local
from tests.services import until
from tests.support.comparison import HEAD, MARKER, PUT, T, find_drift, kinds, row, rule, thing
from tests.support.frames import frame_of
from tests.support.hostile_names import BUCKETS
from tests.support.properties import times


def findings_of(
    spark: SparkSession, listing: Sequence[tuple[Any, ...]], rows: Sequence[tuple[Any, ...]], *,
    rules: Sequence[Rule] = (rule(),), moving: Sequence[str] = (), **options: Any,
) -> DataFrame:  # fmt: skip
    chosen = {"bucket": "b", "policy": "mirror", "versioned": False, "young": T + 1_000_000} | options
    in_flight = frame_of(spark, [(key,) for key in moving], "key string")
    frames = frame_of(spark, listing, LISTING), frame_of(spark, rows, NAMESPACE)
    return find_drift(*frames, in_flight, rules=rules, **chosen)


def test_every_kind_of_drift_is_found_and_nothing_else(spark: SparkSession) -> None:
    listing = [
        thing("same"), thing("odd +%é🎉"), thing("gone"), thing("etag"), thing("size"),
        thing("time", modified=T + 61_000),
        thing("clocks", modified=T + 59_000), thing("garbage"),
    ]  # fmt: skip
    rows = [
        row("same"), row("odd +%é🎉"), row("etag", etag="e0"), row("size", size=6), row("time"), row("clocks"),
        row("orphan"), row("garbage", sound=False), row("garbage of nothing", sound=False),
    ]  # fmt: skip
    findings = findings_of(spark, listing, rows)
    assert kinds(findings) == {
        "gone": "missing",
        "etag": "stale:etag",
        "size": "stale:size",
        "time": "stale:time",
        "orphan": "orphaned",
        "garbage": "malformed",
        "garbage of nothing": "malformed",
    }
    assert count_findings(findings) == {
        "missing": 1, "stale": 3, "orphaned": 1, "malformed": 2, "unmatched": 0, "in_flight": 0,
    }  # fmt: skip


def test_a_finding_has_the_object_and_the_row(spark: SparkSession) -> None:
    listing = [thing("k", "e2", 7, T + 5, "v2")]
    rows = [("k", True, PUT, "e1", 5, "v1", "18E9", T)]
    expected = [("k", "stale", "etag,size,version", "e2", 7, T + 5, "v2", PUT, "e1", 5, "v1", "18E9", T, False)]
    assertDataFrameEqual(
        findings_of(spark, listing, rows, versioned=True), frame_of(spark, expected, FINDINGS), checkRowOrder=True
    )


def test_what_is_in_flight_is_no_drift(spark: SparkSession) -> None:
    listing, rows = [thing("moving"), thing("young", modified=T + 9), thing("missing")], [row("going")]
    findings = findings_of(spark, listing, rows, moving=["moving", "going", "going", "elsewhere"], young=T + 9)
    assert kinds(findings) == {
        "moving": "~missing", "going": "~orphaned", "young": "~missing", "missing": "missing",
    }  # fmt: skip
    assert count_findings(findings)["in_flight"] == 3


def test_rules_decide_which_keys_a_target_should_have(spark: SparkSession) -> None:
    keys = frame_of(spark, [("a/b.jpg",), ("a/c.txt",), ("z",)], "key string")
    cases: list[tuple[list[Rule], str, str]] = [  # rules, keys whose creations are sent, keys whose removals are sent
        ([], "", ""),
        ([rule(bucket="other")], "", ""),
        ([rule(bucket="*")], "a/b.jpg a/c.txt z", "a/b.jpg a/c.txt z"),
        ([rule("a/", ".jpg")], "a/b.jpg", "a/b.jpg"),
        ([rule("a/"), rule("z")], "a/b.jpg a/c.txt z", "a/b.jpg a/c.txt z"),
        ([rule("a/b.jp", "jpg")], "", ""),  # prefix and suffix must not overlap
        ([rule("a/?.t")], "a/c.txt", "a/c.txt"),
        ([rule("*/", "b.*")], "a/b.jpg", "a/b.jpg"),
        ([rule(events=["s3:ObjectCreated:*"])], "a/b.jpg a/c.txt z", ""),
        ([rule(events=["s3:ObjectRemoved:*"])], "", "a/b.jpg a/c.txt z"),
        ([rule(events=[PUT])], "", ""),  # a listing does not show whether an object was put or copied
        ([rule(events=["*"])], "a/b.jpg a/c.txt z", "a/b.jpg a/c.txt z"),
        ([rule(filters=Filters(regex="a/.*|z"))], "a/b.jpg a/c.txt z", "a/b.jpg a/c.txt z"),
        ([rule("a/", filters=Filters(regex=".*t"))], "a/c.txt", "a/c.txt"),
        ([rule("a/", filters=Filters(regex="b"))], "", ""),
        # A row may be of another content than the one that is listed, and a removal has neither size nor tags.
        ([rule(filters=Filters(min_size=1)), rule("z")], "z", "z"),
        ([rule(filters=Filters(tags=Pairs(a="1")))], "", ""),
    ]
    columns = []
    for number, (rules, _, _) in enumerate(cases):
        predicates = rule_predicates(rules, "b", F.col("key"), versioned=False)
        columns += [predicates.expected.alias(f"e{number}"), predicates.removable.alias(f"r{number}")]
    rows = keys.select("key", *columns).collect()
    matched = [
        tuple(" ".join(one["key"] for one in rows if one[f"{kind}{number}"]) for kind in "er")
        for number in range(len(cases))
    ]
    assert matched == [case[1:] for case in cases]


def test_rows_that_no_rule_matches_are_reported_and_are_no_drift(spark: SparkSession) -> None:
    listing, rows = [thing("a/b"), thing("z")], [row("a/x"), row("y"), row("z", etag="other")]
    assert kinds(findings_of(spark, listing, rows, rules=[rule("a/")])) == {
        "a/b": "missing", "a/x": "orphaned", "y": "unmatched", "z": "unmatched",
    }  # fmt: skip
    assert kinds(findings_of(spark, listing, rows, rules=[rule(events=[PUT])])) == {}
    assert kinds(findings_of(spark, listing, rows, rules=[rule("a/", filters=Filters(min_size=1))])) == {
        "y": "unmatched", "z": "unmatched",
    }  # fmt: skip


def test_versions_count_only_where_the_listing_has_them(spark: SparkSession) -> None:
    listing, rows = [thing("k", version="v2"), thing("null")], [row("k", version="v1"), row("null")]
    assert kinds(findings_of(spark, listing, rows, versioned=True)) == {"k": "stale:version"}
    assert kinds(findings_of(spark, listing, rows)) == {}


def test_policy_compatible_accepts_what_minio_does(spark: SparkSession) -> None:
    listing = [thing("read"), thing("read of other"), thing("lost"), thing("alive")]
    rows = [
        row("read", name=HEAD, size=None), row("read of other", name=HEAD, etag="e0"),
        row("marked", name=MARKER, etag=None),
        row("never", name="s3:ObjectRemoved:NoOP", etag=None), row("alive", name=MARKER, etag=None), row("orphan"),
    ]  # fmt: skip
    common = {"read of other": "stale:etag", "alive": "stale:event", "orphan": "orphaned"}
    assert kinds(findings_of(spark, listing, rows, policy="compatible")) == common | {"lost": "missing"}
    assert kinds(findings_of(spark, listing, rows, policy="compatible", versioned=True)) == common
    assert kinds(findings_of(spark, listing, rows)) == common | {
        "lost": "missing", "marked": "orphaned", "never": "orphaned",
    }  # fmt: skip


def test_a_row_is_read_from_its_document(spark: SparkSession) -> None:
    def document(key: str, bucket: str = "b", **more: object) -> str:
        s3 = {"bucket": {"name": bucket}, "object": {"key": key} | more}
        return orjson.dumps(
            {"Records": [{"eventName": PUT, "eventTime": "2026-11-18T09:06:40.123Z", "s3": s3}]}
        ).decode()

    texts = [
        ("dir a/ü+🎉", document("dir+a%2F%C3%BC%2B%F0%9F%8E%89", eTag="e", size=12, versionId="v", sequencer="18E9")),
        ("plain", document("plain", versionId="null")),
        ("twice", document("twice")),
        ("twice", document("twice")),
        ("other", document("another")),
        ("elsewhere", document("elsewhere", bucket="c")),
        ("stray", document("%zz", size="many")),
        ("no json", "{"),
        ("no event", "[]"),
        ("null", None),
    ]
    rows = documents(frame_of(spark, texts, "key string, document string"))
    assert rows.schema.names == ROWS.names
    time = 1_794_992_800_123
    nothing = (False, None, None, None, "", None, None)
    expected = [
        ("dir a/ü+🎉", True, PUT, "e", 12, "v", "18E9", time),
        ("plain", True, PUT, None, None, "", None, time),
        ("twice", True, PUT, None, None, "", None, time),
        ("other", False, PUT, None, None, "", None, time),
        ("elsewhere", False, PUT, None, None, "", None, time),
        ("stray", False, PUT, None, None, "", None, time),
        ("no json", *nothing),
        ("no event", *nothing),
        ("null", *nothing),
    ]
    assertDataFrameEqual(namespace_by_key(rows, "b").select(*NAMESPACE.names), frame_of(spark, expected, NAMESPACE))


def test_findings_that_are_lost_are_not_taken_for_less_drift(spark: SparkSession, tmp_path: Path) -> None:
    listing = frame_of(spark, [thing("a"), thing("b"), thing("c")], LISTING)
    rows, moving = frame_of(spark, [], NAMESPACE), frame_of(spark, [], "key string")
    compared = find_drift(
        listing, rows, moving, bucket="b", rules=[rule()], policy="mirror", versioned=False, young=T + 1_000_000
    )
    written = write_findings(compared.repartition(3, "key"), Folder.of(tmp_path))
    assert written.count() == 3
    parts = sorted((tmp_path / FOLDER).glob("part-*"), key=lambda part: part.stat().st_size)
    parts[-1].unlink()  # as if an executor had written it on its own machine
    left = spark.read.schema(FINDINGS).parquet(str(tmp_path / FOLDER))
    with pytest.raises(NotShared, match="use a folder that all machines share"):
        check_complete(left, 3, str(tmp_path / FOLDER))


@pytest.mark.nightly(
    "what executors wrote: it costs a job, and finds no less", when=lambda has_executors: not has_executors
)
@pytest.mark.parametrize(("has_executors", "jobs"), [(False, 1), (True, 2)])
def test_what_is_written_is_counted_again_only_if_executors_may_have_written_it_elsewhere(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_executors: bool, jobs: int
) -> None:
    assert is_local(spark)
    if has_executors:
        monkeypatch.setattr(reports, "is_local", lambda _: False)
    group = f"written-{has_executors}"
    spark.sparkContext.setJobGroup(group, "")
    try:
        written = write_parquet(spark.range(5), Folder.of(tmp_path / FOLDER))
    finally:
        spark.sparkContext._jsc.sc().clearJobGroup()  # an empty one is a group, too
    tracker = spark.sparkContext.statusTracker()
    until(lambda: len(tracker.getJobIdsForGroup(group)) >= jobs, 30, what=f"{jobs} jobs")
    assert written.count() == 5
    assert len(tracker.getJobIdsForGroup(group)) == jobs


NAMES = ("<script>alert(1)</script>", "../../x", "new\nline\x1b[31m", "🎉" * 250)[:: times(2, 1)]  # each is a page


def test_findings_are_lines_for_other_programs(spark: SparkSession, tmp_path: Path) -> None:
    keys = ["a b/+%é", "line\nfeed\x7f", "~*'(quoted)", "gone"]
    facts = [("missing", 1, "v1"), ("stale", 2, ""), ("malformed", 3, "v3"), ("orphaned", None, None)]
    rows = [
        Row(**dict.fromkeys(FINDINGS.names) | {"key": key, "kind": kind, "modified": modified, "version": version,
            "in_flight": False}) for key, (kind, modified, version) in zip(keys, facts, strict=True)
    ]  # fmt: skip
    moving = Row(**rows[0].asDict() | {"key": "moving", "in_flight": True})
    unmatched = Row(**rows[0].asDict() | {"key": "unmatched", "kind": "unmatched"})
    frame = spark.createDataFrame([*rows, moving, unmatched], FINDINGS)
    for form in FORMATS:
        write_lines(frame, Folder.of(tmp_path), form, "images")
        files = (tmp_path / f"findings.{form}").glob("part-*")
        found = [line for file in files for line in file.read_text().split("\n") if line]
        expected = [finding_line(form, "images", row.asDict()) for row in rows]
        assert sorted(map(unquote, found)) == sorted(map(unquote, filter(None, expected))), form


def test_a_report_shows_hostile_names_as_names(spark: SparkSession, tmp_path: Path) -> None:
    hostile = NAMES[0]
    listing = frame_of(spark, [thing(f"{name}/{hostile}") for name in BUCKETS], LISTING)
    rows, moving = frame_of(spark, [], NAMESPACE), frame_of(spark, [], "key string")
    every = Rule(bucket="*", events=("*",), target=TargetId("redis", "x"))
    compared = find_drift(listing, rows, moving, bucket=hostile, rules=[every], policy="mirror", versioned=False)
    findings = write_findings(compared, Folder.of(tmp_path))
    counts = dict.fromkeys(COUNTS, 0) | {"missing": len(BUCKETS)}
    for number, name in enumerate(NAMES):
        folder = tmp_path / str(number)
        header = ReportHeader("r" * 32, name, "redis:x", "mirror", False, T, counts, f"it is {name}")
        write_page(findings, header, Folder.of(folder))
        page = (folder / PAGE).read_text()
        assert "&lt;script&gt;" in page
        assert "<script" not in page
    for in_flight, verdict in ((0, "the target&#39;s rows match"), (3, "3 keys with events in flight are left to the")):
        of_none = dict.fromkeys(COUNTS, 0) | {"in_flight": in_flight}
        folder = tmp_path / "0" / str(in_flight)
        write_page(findings, ReportHeader("r" * 32, "b", "redis:x", "mirror", False, T, of_none, ""), Folder.of(folder))
        assert verdict in (folder / PAGE).read_text()
    assert {path.name for path in tmp_path.iterdir()} == {*map(str, range(len(NAMES))), FOLDER, LINES}


@pytest.mark.nightly("a report of hostile names")
def test_a_report_has_bars_of_the_largest_folders_and_of_all_ages(spark: SparkSession) -> None:
    day = 86_400_000
    folders = [(f"f{number:02}/{each}", T) for number in range(14) for each in range(number + 1)]
    listing = [thing(key, modified=at) for key, at in [*folders, ("top", T - 6 * day), ("f13/old", T - 400 * day)]]
    rows = [row("f13/gone", time=T - 20 * day), row("f13/0", etag="other"), row("f13/odd", sound=False)]
    drift = findings_of(spark, listing, rows).withColumn(
        "row_time", F.when(F.col("key") != "f13/odd", F.col("row_time"))
    )
    by_folder, by_age = by_folder_and_age(drift, T)
    assert [name for name, _ in by_folder] == [*(f"f{number:02}/" for number in range(13, 1, -1)), "all others"]
    assert by_folder[0] == ("f13/", {"missing": 14, "stale": 1, "orphaned": 1, "malformed": 1})
    assert by_folder[-1] == ("all others", {"missing": 1 + 2 + 1})  # f00, f01 and what is in no folder
    assert by_age == [
        ("under a day", {"missing": 104, "stale": 1}),
        ("under a week", {"missing": 1}),
        ("under a month", {"orphaned": 1}),
        ("under a year", {}),
        ("older", {"missing": 1}),
        ("unknown", {"malformed": 1}),
    ]
