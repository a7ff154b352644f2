"""Repair events: they correct the row, and are never newer than the bucket's next event."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config.arn import TargetId
from app.events.model import Event
from app.events.order import MAX_SEQUENCER_CHARACTERS, Absent, Entry, Present, comparable, from_time
from app.events.own_events import CLOCK_SKEW, sequencer
from app.events.parsing import parse
from app.listings.limits import RepairLimits
from spark_jobs.jobs.repair_events import repair_event, request_body
from tests.support.version_history import current

TARGET = TargetId("postgresql", "rows")
T = 1_795_000_000_000
PUT_AT_T = f"{T * 1_000_000 + 123_456:X}"  # as MinIO writes it; a listing cuts off what is below a millisecond
MARKER = "s3:ObjectRemoved:DeleteMarkerCreated"


def finding(**more: Any) -> dict[str, Any]:
    s3_object = {"etag": "e1", "size": 5, "modified": T, "version": ""}
    row = dict.fromkeys(["row_name", "row_etag", "row_size", "row_version", "row_sequencer", "row_time"])
    return {"key": "dir a/ü+🎉", "kind": "missing", "differs": "", "in_flight": False} | s3_object | row | more


def repaired(newest: str = "", target: TargetId = TARGET, listed_at: int = T + 9, **more: Any) -> Event:
    """Return the event as the API parses it."""
    sent = orjson.dumps(request_body([repair_event(finding(**more), "b", target, newest, listed_at)]))
    [event] = parse(sent, {}, now_ms=0).events
    return event


GONE = {"kind": "orphaned", "etag": None, "size": None, "modified": None, "version": None}


def test_a_repair_is_an_ordinary_event_of_the_object() -> None:
    event = repaired(version="v1")
    assert (event.name, event.bucket, event.key, event.version, event.time) == (
        "s3:ObjectCreated:Put", "b", "dir a/ü+🎉", "v1", T,
    )  # fmt: skip
    assert '"eventSource":"bucketwire:reconcile"' in event.record
    assert repaired(etag="abc-2").name == "s3:ObjectCreated:CompleteMultipartUpload"
    gone = repaired(**GONE)
    assert (gone.name, gone.key, gone.version, gone.time) == ("s3:ObjectRemoved:Delete", "dir a/ü+🎉", "", T + 9)


def test_the_same_finding_is_the_same_event_and_another_targets_is_another() -> None:
    assert repaired("18E9").id == repaired("18E9", listed_at=T + 5000).id
    others = [repaired("18EA"), repaired("18E9", target=TargetId("redis", "rows")), repaired("18E9", etag="e2")]
    assert len({repaired("18E9").id, *(other.id for other in others)}) == 4


@pytest.mark.parametrize("known", [PUT_AT_T, f"{(T + 1000) * 1_000_000:X}", "18E9E739033E0000", "0055AED6DCD90281E5"])
def test_a_repair_is_above_what_is_known_and_below_what_comes_next(known: str) -> None:
    for newest, row in ((known, ""), ("", known), (known, known)):
        repair_sequencer = comparable(sequencer(newest, row, T))
        assert comparable(known) < repair_sequencer
        if len(known) == 16:
            following = f"{max(int(known, 16) + 4096, (T + 1) * 1_000_000):X}"
            assert repair_sequencer < comparable(following)


SEQUENCERS = st.one_of(
    st.just(""),
    st.integers(0, 2 * T * 1_000_000).map("{:016X}".format),  # a time, as MinIO's
    st.text("0123456789ABCDEF", min_size=1, max_size=MAX_SEQUENCER_CHARACTERS),  # as of a frontend with any other order
)


@given(SEQUENCERS, SEQUENCERS, st.integers(0, 2 * T), st.booleans())
def test_a_repair_never_makes_a_row_older(newest: str, row: str, listed_at: int, removal: bool) -> None:
    newest, more = comparable(newest), GONE if removal else {"modified": listed_at}
    made = repaired(newest, listed_at=listed_at, row_sequencer=row, **more).sequencer
    assert comparable(made) > newest or newest == "F" * MAX_SEQUENCER_CHARACTERS
    is_of_time = len(row) == 16 and comparable(row) <= comparable(from_time((listed_at + CLOCK_SKEW) * 1_000_000))
    if is_of_time and not newest:
        assert comparable(made) > comparable(row)


def test_a_late_event_of_an_object_that_nobody_knew_wins() -> None:
    assert comparable(sequencer("", "", T)) < comparable(PUT_AT_T)


def test_in_a_versioned_history_the_repair_lies_on_top_until_the_next_event() -> None:
    marked = Entry(1, MARKER, "m", PUT_AT_T)
    restored = repaired(comparable(PUT_AT_T), version="v1", kind="stale")
    history = [marked, Entry(2, restored.name, restored.version, restored.sequencer)]
    assert current(history) == Present(2)
    later = Entry(3, MARKER, "m2", f"{(T + 1) * 1_000_000:X}")
    assert current([*history, later]) == Absent()
    gone = repaired(comparable(PUT_AT_T), **GONE)
    put = Entry(1, "s3:ObjectCreated:Put", "v1", PUT_AT_T)
    assert current([put, Entry(2, gone.name, gone.version, gone.sequencer)]) == Absent()


@pytest.mark.parametrize(
    ("number", "rows", "removals", "creations"),
    [(10, 0, False, False), (11, 0, True, False), (11, 110, False, False), (12, 110, True, False),
     (10_001, 0, True, True), (10_001, 10_001, True, False), (20_000, 19_999, True, True)],
)  # fmt: skip
def test_a_run_changes_a_part_of_the_rows_at_most(number: int, rows: int, removals: bool, creations: bool) -> None:
    limits = RepairLimits()
    assert limits.too_many_removals(number, rows) is removals
    assert limits.too_many_creations(number, rows) is creations


def test_a_limit_of_zero_allows_nothing() -> None:
    limits = RepairLimits(max_removals=0, max_creations=0)
    assert limits.too_many_removals(1, 1_000_000)
    assert limits.too_many_creations(1, 1_000_000)
    assert not limits.too_many_removals(0, 0)
