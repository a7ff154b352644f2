"""The warnings of a scan of a few entries, and their events."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from app.events.minio_json import timestamp
from app.events.parsing import parse
from app.listings.limits import BadListing
from spark_jobs.frames import ENTRIES, WARNINGS
from spark_jobs.jobs.scan import (
    BIG_PREFIX,
    LARGE_VERSIONS,
    MANY_VERSIONS,
    ScanConfig,
    ScanLimits,
    found_warnings,
    warning_event,
    warnings_of,
)
from tests.support.frames import frame_of

DAY = 1_794_960_000_000  # the beginning of 2026-11-18
NOON = DAY + 43_200_000


def test_objects_and_folders_beyond_the_limits_are_found_and_no_others(spark: SparkSession) -> None:
    entries = [("many", 1, False)] * 2 + [("many", 0, True)]  # a marker is a version
    entries += [("few", 1, False)] * 2
    entries += [("large", 600, False), ("large", 400, False), ("less", 999, False)]
    entries += [("both", 400, False)] * 3
    entries += [(f"big/{name}", 1, False) for name in ("0/x", "1/x", "2/x", "0/y", "0/deep/x")]
    entries += [(f"just/{number}/", 0, False) for number in range(2)] + [("just/0/x", 1, False)]
    entries += [(f"gone/{number}/x\n/é+%", 0, True) for number in range(3)]  # under markers alone
    entries += [(f"flat/{number}", 1, False) for number in range(9)]  # objects are no folders
    found = warnings_of(frame_of(spark, entries, ENTRIES), ScanLimits(versions=2, size=1000, folders=2))
    expected = [
        (MANY_VERSIONS, "many", 3, 2, None),
        (LARGE_VERSIONS, "large", 2, 1000, None),
        (MANY_VERSIONS, "both", 3, 1200, None),
        (LARGE_VERSIONS, "both", 3, 1200, None),
        (BIG_PREFIX, "big/", None, None, 3),
        (BIG_PREFIX, "gone/", None, None, 3),
        (BIG_PREFIX, "", None, None, 4),
    ]
    assertDataFrameEqual(found, frame_of(spark, expected, WARNINGS))


def test_an_old_listing_is_refused(spark: SparkSession) -> None:
    config = ScanConfig(bucket="b", listing="/nowhere", listed_at=1)
    with pytest.raises(BadListing, match="events since then may have left the log"), found_warnings(spark, config):
        pass


def test_nothing_is_found_where_there_is_nothing(spark: SparkSession) -> None:
    assert warnings_of(frame_of(spark, [], ENTRIES), ScanLimits()).collect() == []


def warning(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "key": "dir a/ü+", "versions": 1000, "size": 1 << 40, "folders": 50_001} | more


@pytest.mark.parametrize(
    ("name", "numbers", "size"),
    [
        (MANY_VERSIONS, {"x-minio-versions": "1000"}, None),
        (LARGE_VERSIONS, {"x-minio-versions-count": "1000", "x-minio-versions-size": "1099511627776"}, None),
        (BIG_PREFIX, {}, 50_001),
    ],
)
def test_a_warning_has_the_shape_of_minios(name: str, numbers: dict[str, str], size: int | None) -> None:
    event_json = warning_event(warning(name), "images", NOON)
    [event] = parse(orjson.dumps({"Records": [event_json]}), {}, now_ms=0).events
    assert (event.name, event.path, event.version, event.time) == (name, "images/dir a/ü+", "", DAY)
    assert event_json["requestParameters"] is None
    assert event_json["responseElements"] == numbers
    assert event_json["s3"]["object"].get("size") == size
    assert event_json["source"] == {"host": "", "port": "", "userAgent": "Scanner"}
    assert event_json["eventTime"] == timestamp(DAY) == "2026-11-18T00:00:00.000Z"


def test_the_root_folder_has_an_empty_key() -> None:
    [event] = parse(orjson.dumps(warning_event(warning(BIG_PREFIX, key=""), "images", NOON)), {}, now_ms=0).events
    assert (event.key, event.path) == ("", "images/")


def test_a_warning_is_the_same_event_all_day_while_its_numbers_are_the_same() -> None:
    def id_of(listed_at: int, **more: Any) -> str:
        [event] = parse(
            orjson.dumps(warning_event(warning(MANY_VERSIONS, **more), "images", listed_at)), {}, now_ms=0
        ).events
        return event.id

    assert id_of(DAY) == id_of(DAY + 86_399_999) == id_of(NOON, folders=7)
    assert len({id_of(DAY), id_of(DAY + 86_400_000), id_of(NOON, versions=1001), id_of(NOON, key="other")}) == 4
