"""A search finds what it should, page by page, and never reads more of the log than it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import search as searching
from app.outbox import tables
from app.outbox.admin import undelivered
from app.outbox.admin.event_states import RecordedEvent, find_event
from app.outbox.admin.replays import Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.declared import UnknownTarget
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.policies import DeadLetterPolicy
from app.outbox.search import EventFilter, search
from app.resources.undelivered import DeadLetter, DeadLetterFilter, DeadLetterPage
from tests.support import databases
from tests.support.builders import DELETE, PUT, add_target, event, registry
from tests.support.query_cost import query_cost
from tests.support.scripted_target import Courier, ScriptedTarget
from tests.support.tuning import tune
from workers.delivery.outcomes import DELIVERED, Failed, Rejected

pytestmark = databases.TWO

PARTITIONS, HOUR = 4, 3_600_000
TIME = 1_795_000_000_000  # ms, of the event of seq 0 of `fill`; each later one is a second younger


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a page would be over before it has read what it may."""
    tune(monkeypatch, searching, "SEARCH", max_seconds=600)


def whole(database: Database, *, limit: int = 100, **chosen: Any) -> list[RecordedEvent]:
    """Every page of a search."""
    return [found for page in pages(database, limit=limit, **chosen) for found in page]


def pages(database: Database, *, limit: int = 100, **chosen: Any) -> Iterator[list[RecordedEvent]]:
    target, state = chosen.pop("target", None), chosen.pop("state", "")
    after: int | None = 0
    while after is not None:
        page = search(database, EventFilter(Selection(**chosen), target, state), limit=limit, after=after)
        assert page.next is None or after == 0 or page.next < after
        after = page.next
        yield list(page.events)


def seqs(found: list[RecordedEvent]) -> list[int]:
    return [one.seq for one in found]


def fill(database: Database, target: TargetId, count: int, first: int = 1, **columns: Any) -> range:
    """Put settled events into the log, a second apart."""
    row_id = registry(database).target(target).row_id
    made = range(first, first + count)
    rows: list[dict[str, Any]] = [
        {
            "partition": seq % PARTITIONS, "seq": seq, "id": f"{seq:032d}", "key_hash": seq,
            "received_at": TIME + 1000 * seq, "name": PUT, "bucket": "images", "key": f"k{seq}", "version": "",
            "sequencer": "A", "time": 0, "targets": f",{row_id},", "record": "{}", "trace": "",
        } | columns
        for seq in made
    ]  # fmt: skip
    with database.writing() as connection:
        for start in range(0, count, 5_000):
            connection.execute(tables.events.insert(), rows[start : start + 5_000])
        connection.execute(tables.log_head.update().values(last_seq=made[-1]))
        connection.execute(tables.cursors.update().values(position=made[-1]))
        if database.dialect == "postgresql":
            connection.exec_driver_sql("ANALYZE events")
    return made


def bury(database: Database, target: TargetId, dead: list[int]) -> None:
    row_id = registry(database).target(target).row_id
    letter = {"target_id": row_id, "event_id": "", "reason": "no", "attempts": 1, "history": "[]"}
    rows = [letter | {"partition": seq % PARTITIONS, "seq": seq, "first_tried": 1, "last_tried": 1} for seq in dead]
    with database.writing() as connection:
        connection.execute(tables.dead_letters.insert(), rows)
        if database.dialect == "postgresql":
            connection.exec_driver_sql("ANALYZE dead_letters")


@databases.THREE
def test_each_filter_finds_its_events_and_no_others(database: Database) -> None:
    one, two = add_target(database, "one", bucket="images"), add_target(database, "two", bucket="docs")
    keys = ("a/good", "a/bad", "a/slow", "a/slow", "b/good")
    Log(database).append([[event(key) for key in keys], [event("a/x", bucket="docs", name=DELETE)]])
    outcomes = {"a/bad": Rejected("413 too large"), "a/slow": Failed("500 broken", retry_after=60)}
    Courier(database, one, ScriptedTarget(lambda given: outcomes.get(given.key, DELIVERED))).run()
    Log(database).append([[event("b/late")]])

    def found(**chosen: Any) -> list[str]:
        return [each.key for each in whole(database, **chosen)]

    everything = ["b/late", "a/x", "b/good", "a/slow", "a/slow", "a/bad", "a/good"]
    assert found() == everything
    assert found(bucket="docs") == ["a/x"]
    assert found(prefix="b/") == ["b/late", "b/good"]
    assert found(names=(DELETE,)) == ["a/x"]
    assert found(target=two) == ["a/x"]
    assert found(state="dead") == found(state="dead", target=one) == ["a/bad"]
    assert found(state="parked") == found(state="parked", target=one) == ["a/slow", "a/slow"]
    assert found(state="parked", target=two) == found(state="dead", bucket="docs") == []
    assert found(state="pending") == ["b/late", "a/x"]
    assert found(state="pending", target=one) == ["b/late"]
    assert found(state="settled") == ["b/good", "a/good"]
    assert found(limit=1) == found(limit=3) == everything
    with pytest.raises(UnknownTarget):
        found(target=TargetId("webhook", "none"))
    dead, *_ = whole(database, state="dead")
    shown = find_event(database, dead.event_id)
    assert shown is not None
    assert (shown.key, shown.delivery_states[0].attempts) == ("a/bad", 1)
    assert [reason for _, reason in shown.delivery_states[0].history] == ["413 too large"]
    waiting, head = (find_event(database, each.event_id) for each in whole(database, state="parked"))
    assert waiting is not None
    assert head is not None
    assert waiting.delivery_states[0].next_try is None
    assert (head.delivery_states[0].next_try or 0) > 0
    assert find_event(database, "none") is None


@databases.THREE
def test_discarded_events_are_found_by_target_and_bucket(database: Database) -> None:
    # The id of one is the beginning of the other's.
    full = [add_target(database, f"full{number}", queue_limit=1) for number in range(11)]
    free = add_target(database, "free")
    for bucket in ("images", "docs"):
        Log(database).append([[event(bucket=bucket)]])

    def found(**chosen: Any) -> list[str]:
        return [each.bucket for each in whole(database, state="discarded", **chosen)]

    assert found() == found(target=full[0]) == found(target=full[10]) == ["docs"]
    assert found(target=free) == found(bucket="images") == []
    with database.writing() as connection:
        only_last = tables.events.update().where(tables.events.c.bucket == "docs")
        connection.execute(only_last.values(targets=f",-{registry(database).target(full[10]).row_id},"))
    assert (found(target=full[10]), found(target=full[0])) == (["docs"], [])


@databases.THREE
def test_a_time_range_is_exact_and_costs_what_it_has(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, searching, "SEARCH", window_seqs=500)
    target, costs = add_target(database), []
    for first, count in ((1, 1_000), (1_001, 9_000)):
        fill(database, target, count, first)
        with query_cost(database) as cost:
            found = whole(database, since=TIME + 500_000, before=TIME + 520_000)
        assert seqs(found) == list(range(519, 499, -1))
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0] + 500
    assert whole(database, since=TIME + HOUR * 1_000) == whole(database, before=TIME) == []
    assert len(whole(database, since=TIME + 9_990_000)) == 11


def test_a_search_that_finds_little_says_so_and_goes_on_page_by_page(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, searching, "SEARCH", window_seqs=250, max_seqs=1_000)
    target = add_target(database)
    fill(database, target, 1, bucket="rare")
    fill(database, target, 6_000, 2)
    with query_cost(database) as cost:
        first = search(database, EventFilter(Selection(bucket="rare")))
    assert (list(first.events), first.next) == ([], 5_002)
    assert first.searched_to == TIME + 5_002_000
    assert cost.rows < 4 * 1_000
    found = list(pages(database, bucket="rare"))
    assert seqs(found[-1]) == [1]
    assert len(found) == 7


@databases.THREE
def test_dead_letters_are_found_without_reading_the_log_between_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, searching, "SEARCH", batch_rows=3)
    one, two = add_target(database, "one"), add_target(database, "two")
    ids = [registry(database).target(target).row_id for target in (one, two)]
    costs = []
    for first, count in ((1, 1_000), (1_001, 9_000)):
        fill(database, one, count, first, targets=f",{ids[0]},{ids[1]},")
        if first == 1:
            dead = [3, 7, 8, 9, 10, 11, 12, 400, 401, 990]
            for target in (one, two):
                bury(database, target, dead)
        with query_cost(database) as cost:
            assert seqs(whole(database, state="dead", limit=4)) == dead[::-1]
        assert seqs(whole(database, state="dead", target=two, prefix="k9")) == [990, 9]
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0] + 200


@databases.THREE
def test_what_is_settled_costs_a_search_for_pending_events_nothing(database: Database) -> None:
    target, costs = add_target(database), []
    for first, count in ((1, 1_000), (1_011, 9_000)):
        fill(database, target, count, first)
        Log(database).append([[event(f"late{number}") for number in range(10)]])
        with query_cost(database) as cost:
            assert len(whole(database, state="pending")) == len(whole(database, state="pending", target=target)) == 10
        costs.append(cost.rows)
    assert costs[1] <= 2 * costs[0] + 200


def test_a_page_ends_early_when_it_takes_long(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, searching, "SEARCH", max_seconds=0)
    target = add_target(database)
    fill(database, target, 1, bucket="rare")
    fill(database, target, 6_000, 2)
    first = search(database, EventFilter(Selection(bucket="rare")))
    assert list(first.events) == []
    assert first.next is not None
    assert 0 < first.next < 6_001 - searching.SEARCH.min_seqs + 1
    assert seqs(whole(database, bucket="rare")) == [1]


@databases.THREE
def test_a_page_of_dead_letters_reads_a_bounded_number_of_them(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(undelivered, "DEAD_LETTERS", DeadLetterPolicy(window_letters=20, max_letters=40))
    one, two = add_target(database, "one"), add_target(database, "two")
    fill(database, one, 200)
    bury(database, two, [5])
    bury(database, one, list(range(10, 160)))
    bury(database, two, [190, 191])
    letters = DeadLetters(database)
    [first] = letters.list(DeadLetterFilter(), limit=1)
    for which, number in (
        (DeadLetterFilter(), 153),
        (DeadLetterFilter(target=two), 3),
        (DeadLetterFilter(prefix="k19"), 3),
        (DeadLetterFilter(ids=[first.id]), 1),
    ):
        found, after, read = list[DeadLetter](), 0, 0
        while True:
            page = letters.page(which, limit=7, after=after)
            found += page.dead_letters
            if page.next is None:
                break
            assert page.next > after
            after, read = page.next, read + 1
            assert len(page.dead_letters) <= 7
        assert [each.id for each in found] == [each.id for each in letters.list(which, limit=1000)]
        assert len(found) == number
        assert read > 1
    assert letters.page(DeadLetterFilter(), limit=1000) == DeadLetterPage(
        dead_letters=letters.list(DeadLetterFilter(), limit=1000), next=None
    )


def test_a_page_of_dead_letters_that_ends_with_a_window_has_all_of_them(database: Database) -> None:
    one, two = add_target(database, "one"), add_target(database, "two")
    fill(database, one, 10)
    bury(database, one, [1, 2, 3])
    bury(database, two, [4, 5])
    letters = DeadLetters(database)
    for limit in (4, 5, 6):  # of which one is as many as there are, so that the next query has none
        page = letters.page(DeadLetterFilter(target=two), limit=limit)
        assert (len(page.dead_letters), page.next) == (2, None)


def test_what_was_purged_costs_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parked event from long ago keeps its place, and the log between it and the next was purged."""
    tune(monkeypatch, searching, "SEARCH", window_seqs=100, max_seqs=1_000)
    target = add_target(database)
    fill(database, target, 5)
    fill(database, target, 50, 1_000_000)
    page = search(database, EventFilter(), limit=100)
    assert seqs(list(page.events)) == [*range(1_000_049, 999_999, -1), 5, 4, 3, 2, 1]
    assert page.next is None


def test_an_empty_log_has_nothing(database: Database) -> None:
    for state in ("", "pending", "parked", "dead", "settled"):
        assert whole(database, state=state, since=1, before=2) == []
    with database.reading() as connection:
        assert connection.execute(sa.select(tables.events.c.seq)).all() == []
