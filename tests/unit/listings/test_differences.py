"""What is decided about one key, case by case; the model bucket beside it lives whole lives."""

from __future__ import annotations

import orjson
import pytest

from app.events.order import Entry as LogEntry
from app.events.order import comparable, from_time
from app.events.own_events import DELETE, MARKED, MULTIPART, PUT
from app.listings.differences import Content, Decided, Entry, Listed, LoggedEvent, Pending, Run, decide, differs

BEGAN = 1_790_000_000_000
GRACE = 60_000
A = Content("a", 1, BEGAN - 3_600_000)
B = Content("b", 2, BEGAN - 1_800_000)


def run(*, began: int = BEGAN, seq: int = 5, grace: int = 0, versioned: bool = False, first: bool = False) -> Run:
    return Run("images", "bucket:x", began, began + 10, seq, grace, versioned=versioned, is_first=first)


def logged(seq: int, name: str, at: int, version: str = "", content: Content | None = None) -> LoggedEvent:
    entry = LogEntry(seq, name, version, from_time(at * 1_000_000))
    return LoggedEvent(entry, at, content and content.etag, content and content.size)


def listed(content: Content, version: str = "", *, latest: bool = True) -> Listed:
    return Listed("k", version, content, latest)


def names(decided: Decided) -> list[str]:
    return [event.name for event in decided.events]


def test_nothing_is_decided_by_a_listing_that_may_be_older_than_an_event() -> None:
    known = [Entry("k", "", A)]
    later = logged(6, PUT, BEGAN, content=Content("c", 3, BEGAN))
    decided = decide("k", known, [listed(B)], [later], run(seq=5))
    assert (decided.entries, decided.events) == (known, [])
    assert names(decide("k", known, [listed(B)], [later], run(seq=6))) == [PUT]


def test_what_differs_waits_for_the_grace_and_is_then_recorded_once() -> None:
    first = decide("k", [Entry("k", "", A)], [listed(B)], [], run(grace=GRACE))
    assert first.events == []
    assert first.entries == [Entry("k", "", A, Pending(B, BEGAN, BEGAN + 10, 5))]
    assert differs(first.entries, [listed(B)])
    early = decide("k", first.entries, [listed(B)], [], run(began=BEGAN + GRACE, grace=GRACE))
    assert (early.entries, early.events) == (first.entries, [])
    late = decide("k", first.entries, [listed(B)], [], run(began=BEGAN + GRACE + 10, grace=GRACE))
    assert names(late) == [PUT]
    assert late.entries == [Entry("k", "", B)]
    assert not differs(late.entries, [listed(B)])
    explained = decide(
        "k", first.entries, [listed(B)], [logged(6, PUT, B.modified, content=B)], run(began=BEGAN + 2 * GRACE)
    )
    assert (explained.events, explained.counts.explained, explained.entries) == ([], 1, [Entry("k", "", B)])


def test_an_object_that_changes_all_the_time_is_recorded_in_its_earlier_state() -> None:
    pending = [Entry("k", "", None, Pending(A, BEGAN - 2 * GRACE, BEGAN - 2 * GRACE, 3))]
    decided = decide("k", pending, [listed(B)], [], run(grace=GRACE))
    assert [orjson.loads(event.record)["s3"]["object"]["eTag"] for event in decided.events] == ["a"]
    assert decided.entries == [Entry("k", "", A, Pending(B, BEGAN, BEGAN + 10, 5))]
    newer = logged(4, DELETE, A.modified + 1)
    decided = decide("k", pending, [listed(B)], [newer], run(grace=GRACE))
    assert decided.events == []
    assert decided.entries == [Entry("k", "", None, Pending(B, BEGAN, BEGAN + 10, 5))]


def test_a_version_that_was_reported_and_is_gone_is_not_found_but_its_removal_is() -> None:
    pending = [Entry("k", "v1", None, Pending(A, BEGAN - 2 * GRACE, BEGAN - 2 * GRACE, 3))]
    created = logged(4, PUT, A.modified, "v1", A)
    decided = decide("k", pending, [], [created], run(grace=GRACE, versioned=True))
    assert decided.events == []
    assert decided.entries == [Entry("k", "v1", A, Pending(None, BEGAN, BEGAN + 10, 5))]
    decided = decide("k", decided.entries, [], [created], run(began=BEGAN + 2 * GRACE, grace=GRACE, versioned=True))
    assert [(event.name, event.version) for event in decided.events] == [(DELETE, "v1")]


def test_the_log_is_corrected_also_where_the_listing_is_as_it_was() -> None:
    known = [Entry("k", "", A)]
    removed = [logged(4, PUT, A.modified, content=A), logged(5, DELETE, A.modified + 10)]
    decided = decide("k", known, [listed(A)], removed, run())
    [event] = decided.events
    assert event.name == PUT
    assert event.sequencer > removed[-1].entry.sequencer
    assert decide("k", known, [listed(A)], removed[:1], run()).events == []


def test_an_object_that_was_reported_and_removed_unseen_is_found_removed() -> None:
    created = logged(4, PUT, A.modified, content=A)
    decided = decide("k", [], [], [created], run())
    [event] = decided.events
    assert event.name == DELETE
    assert event.sequencer > created.entry.sequencer
    assert (decided.counts.removed, decided.counts.unseen, decided.entries) == (1, 1, [])


def test_an_object_that_was_found_removed_is_so_after_the_log_has_forgotten_it() -> None:
    noted = decide("k", [], [], [logged(4, PUT, A.modified, content=A)], run(grace=GRACE))
    assert (names(noted), noted.counts.going) == ([], 1)
    later = run(began=BEGAN + 2 * GRACE, grace=GRACE)
    assert names(decide("k", noted.entries, [], [], later)) == [DELETE]
    removed = logged(6, DELETE, BEGAN)
    assert decide("k", noted.entries, [], [removed], later) == Decided()


@pytest.mark.parametrize("age", [500, 30_000, 3_600_000])
def test_a_removal_is_above_the_late_event_of_what_is_gone_and_below_all_that_follows(age: int) -> None:
    modified = (BEGAN - age) // 1000 * 1000  # as a listing without fractions has it
    decided = decide("k", [Entry("k", "", Content("a", 1, modified))], [], [], run())
    [event] = decided.events
    late = from_time(modified * 1_000_000 + 999_999_999)
    assert comparable(late) < comparable(event.sequencer) < from_time((BEGAN + 1_000) * 1_000_000)
    assert event.time == BEGAN


def test_a_version_is_above_those_beneath_it_though_a_listing_has_no_fractions() -> None:
    second = BEGAN - 3_600_000
    reported = logged(4, PUT, second + 700, "v2", Content("b", 1, second))
    versions = [
        listed(Content("", 0, second, is_marker=True), "v3"),
        listed(Content("b", 1, second), "v2", latest=False),
        listed(Content("a-2", 1, second), "v1", latest=False),
    ]
    decided = decide("k", [], versions, [reported], run(versioned=True))
    assert [(event.name, event.version) for event in decided.events] == [(MULTIPART, "v1"), (MARKED, "v3")]
    oldest, newest = (comparable(event.sequencer) for event in decided.events)
    assert oldest < comparable(reported.entry.sequencer) < newest


def test_a_version_that_the_log_says_is_removed_is_never_found_again() -> None:
    over = [logged(3, PUT, A.modified, "v1", A), logged(4, DELETE, A.modified + 9, "v1")]
    assert decide("k", [], [listed(A, "v1")], over, run(versioned=True)).events == []


def test_a_first_listing_records_old_objects_at_once_and_gives_young_ones_their_time() -> None:
    young = Content("b", 1, BEGAN - 1_000)
    assert names(decide("k", [], [listed(A)], [], run(grace=GRACE, first=True))) == [PUT]
    assert decide("k", [], [listed(young)], [], run(grace=GRACE, first=True)).events == []


def test_the_id_is_that_of_what_was_seen_whenever_it_was() -> None:
    known = [Entry("k", "", A)]
    [one] = decide("k", known, [listed(B)], [], run()).events
    [again] = decide("k", known, [listed(B)], [], run(began=BEGAN + 999_999, seq=8)).events
    [other] = decide("k", known, [listed(B)], [logged(4, DELETE, B.modified - 1)], run()).events
    assert one.id == again.id != other.id


def test_versions_that_begin_are_no_difference() -> None:
    known = [Entry("k", "", A)]
    assert not differs(known, [listed(A, "null")])
    decided = decide("k", known, [listed(B, "v1"), listed(A, "null", latest=False)], [], run(versioned=True))
    assert [(event.name, event.version) for event in decided.events] == [(PUT, "v1")]
    assert [(entry.version, entry.known) for entry in decided.entries] == [("null", A), ("v1", B)]
