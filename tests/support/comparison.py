"""Entries of a listing, rows of a target and rules, for frames of a few rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame

from app.config.arn import TargetId
from app.rules.filters import NO_FILTERS, Filters
from app.rules.model import Rule
from spark_jobs.jobs.comparison import compare, mark_in_flight

PUT, DELETE, HEAD = "s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete", "s3:ObjectAccessed:Head"
MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"
T = 1_795_000_000_000
EVERYTHING = ("s3:ObjectCreated:*", "s3:ObjectRemoved:*")


def rule(
    prefix: str = "",
    suffix: str = "",
    events: Sequence[str] = EVERYTHING,
    bucket: str = "b",
    filters: Filters = NO_FILTERS,
) -> Rule:
    target = TargetId("redis", "rows")
    return Rule(bucket=bucket, events=tuple(events), prefix=prefix, suffix=suffix, target=target, filters=filters)


def thing(key: str, etag: str = "e1", size: int = 5, modified: int = T, version: str = "") -> tuple[Any, ...]:
    return key, etag, size, modified, version


def row(
    key: str, etag: str | None = "e1", size: int | None = 5, time: int = T, version: str = "", name: str = PUT,
    sound: bool = True,
) -> tuple[Any, ...]:  # fmt: skip
    return key, sound, name, etag, size, version, "18E9", time


def find_drift(
    listing: DataFrame, rows: DataFrame, in_flight: DataFrame, *, young: int = T + 1_000_000, **options: Any
) -> DataFrame:
    """The findings of a listing and a namespace, by the `options` of `compare`."""
    return mark_in_flight(compare(listing, rows, **options), in_flight, young=young)


def kinds(findings: DataFrame) -> dict[str, str]:
    """Map keys to kinds, with the differences behind a colon, and `~` before what is in flight."""
    return {
        one["key"]: "~" * one["in_flight"] + one["kind"] + (f":{one['differs']}" if one["differs"] else "")
        for one in findings.collect()
    }
