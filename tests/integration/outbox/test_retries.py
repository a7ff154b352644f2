"""Retried events are listed, tried at once and given up, and the counters balance all the time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from app.config.arn import TargetId
from app.manifest.document import parse_manifest
from app.manifest.plan import apply
from app.outbox.admin import undelivered
from app.outbox.admin.counters import read_counters
from app.outbox.admin.undelivered import DeadLetters, Retries
from app.outbox.delivery.leases import LeaseLost
from app.outbox.delivery.settlement_store import Settlement
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.policies import RetryListPolicy
from app.outbox.registry import Registry
from app.resources.undelivered import DeadLetterFilter, RetryFilter
from tests.support import databases
from tests.support.builders import event, registry
from tests.support.delivery import failing
from tests.support.parked_rows import due_times, parked_rows
from tests.support.scripted_target import assert_counters_balance
from workers.delivery.outcomes import DELIVERED, Unavailable

pytestmark = databases.TWO


def counters(database: Database, target: TargetId) -> tuple[int, int, int]:
    """Parked, dead and delivered events."""
    with database.reading() as connection:
        [found] = [one for one in read_counters(connection) if one.target == target]
    return found.parked, found.dead, found.delivered


@databases.THREE
def test_heads_are_listed_by_page_and_filter(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undelivered, "RETRIES", RetryListPolicy(batch_heads=3))
    courier = failing(database, 20)
    listing = Retries(database)
    whole = listing.page(RetryFilter(), limit=100)
    assert whole.next is None
    assert sorted(retry.key for retry in whole.retries) == sorted(f"k{number}" for number in range(20))
    assert {(retry.attempts, retry.history[-1][1]) for retry in whole.retries} == {(1, "500 broken")}
    assert all(retry.next_try > retry.last_tried for retry in whole.retries)
    paged, after = [], None
    while True:
        page = listing.page(RetryFilter(), limit=7, after=after)
        paged += page.retries
        after = page.next
        if after is None:
            break
    assert paged == list(whole.retries)
    assert {retry.key for retry in listing.page(RetryFilter(prefix="k1", bucket="images")).retries} == {
        "k1", *(f"k{number}" for number in range(10, 20))
    }  # fmt: skip
    one = whole.retries[5]
    assert listing.page(RetryFilter(ids=[one.event_id, "none"])).retries == [one]
    assert listing.page(RetryFilter(target=courier.target, ids=[one.event_id])).retries == [one]
    assert listing.page(RetryFilter(target=TargetId("webhook", "none"))).retries == []
    monkeypatch.setattr(undelivered, "RETRIES", RetryListPolicy(batch_heads=3, max_heads=5))
    bounded = listing.page(RetryFilter(prefix="nothing"))
    assert (list(bounded.retries), bounded.next is not None) == ([], True)


@databases.THREE
def test_what_is_tried_now_is_due_at_once_and_keeps_its_attempts(database: Database) -> None:
    courier = failing(database, 3)
    courier.scripted.script = lambda _: DELIVERED
    courier.run(now=now_ms())
    assert counters(database, courier.target) == (6, 0, 0), "nothing is due yet"
    assert Retries(database).try_now(RetryFilter(prefix="k1")) == 1
    assert min(due_times(database).values()) == 0
    [first] = Retries(database).page(RetryFilter(prefix="k1")).retries
    assert (first.next_try, first.attempts) == (0, 1)
    courier.run(now=now_ms())
    assert courier.scripted.keys() == ["k1", "k1"]
    assert_counters_balance(database)


def _resumed(registry: Registry, target: TargetId) -> None:
    registry.resume(target)


def _set(registry: Registry, target: TargetId) -> None:
    registry.put(target, {"endpoint": "http://127.0.0.1:10/"})


def _disabled_and_enabled(registry: Registry, target: TargetId) -> None:
    for enable in ("off", "on"):
        registry.put(target, {"endpoint": "http://127.0.0.1:9/", "enable": enable})


def _applied(registry: Registry, target: TargetId) -> None:
    document = parse_manifest({"targets": {str(target): {"endpoint": "http://127.0.0.1:10/"}}})
    assert apply(registry, document).changes


def _of_the_environment(registry: Registry, target: TargetId) -> None:
    registry.sync_environment({target: {"endpoint": "http://127.0.0.1:10/"}}, {})


@pytest.mark.parametrize("change", [_resumed, _set, _disabled_and_enabled, _applied, _of_the_environment])
def test_a_target_that_is_resumed_or_changed_is_tried_at_once_whatever_it_asked_for_before(
    database: Database, monkeypatch: pytest.MonkeyPatch, change: Callable[[Registry, TargetId], None]
) -> None:
    monkeypatch.setattr(undelivered, "RETRIES", RetryListPolicy(batch_heads=2))
    other = failing(database, 2, name="other")
    courier = failing(database, 12)
    courier.scripted.script = lambda one: Unavailable("429", retry_after=900) if one.key == "refused" else DELIVERED
    Log(database).append([[event("refused"), event("taken")]])
    courier.run(turns=1, now=now_ms())
    waits = [row for row in parked_rows(database) if row.target_id == 1]
    courier.scripted.script = lambda _: DELIVERED
    change(registry(database), courier.target)
    courier.run(now=now_ms())
    assert set(courier.scripted.keys()) == {"taken", "refused", *(f"k{number}" for number in range(12))}
    assert [one.target for one in Retries(database).page(RetryFilter()).retries] == [other.target] * 2
    assert [row for row in parked_rows(database) if row.target_id == 1] == waits, "of another target nothing changes"
    assert_counters_balance(database)


def test_what_is_given_up_is_a_dead_letter_and_its_successor_goes_on(database: Database) -> None:
    courier = failing(database, 3)
    assert Retries(database).give_up(RetryFilter(target=courier.target, prefix="k2")) == 1
    assert counters(database, courier.target) == (5, 1, 0)
    [letter] = DeadLetters(database).list(DeadLetterFilter())
    assert (letter.key, letter.reason, letter.attempts) == ("k2", "given up: 500 broken", 1)
    due_times(database)
    courier.scripted.script = lambda _: DELIVERED
    courier.run(now=now_ms())
    assert courier.scripted.keys() == ["k2"], "the one behind it"
    assert_counters_balance(database)
    assert DeadLetters(database).replay(DeadLetterFilter()) == 1
    assert Retries(database).give_up(RetryFilter()) == 3
    assert Retries(database).give_up(RetryFilter(prefix="nothing")) == 0
    assert_counters_balance(database)


@databases.ALL
def test_a_worker_that_is_sending_what_is_given_up_settles_nothing(database: Database) -> None:
    """Otherwise the event would count as delivered and as dead."""
    courier = failing(database, 1, events=1)
    row_id = Retries(database).page(RetryFilter()).retries[0].place.target_id
    lease = courier.leases.claim(row_id, range(4), "worker", now_ms())
    assert lease is not None
    assert Retries(database).give_up(RetryFilter()) == 1
    settlement = Settlement()
    for number in range(4):
        settlement.partition(number).delivered = 1
    with pytest.raises(LeaseLost):
        courier.store.settle(lease, settlement, now_ms())
    assert counters(database, courier.target) == (0, 1, 0)
    assert_counters_balance(database)


def test_a_resumed_target_s_events_are_tried_at_once_whatever_the_clock_of_the_host(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their times are the database's; with those of a host that is an hour behind none of them seemed to be due."""
    if database.dialect == "sqlite":
        pytest.skip("SQLite has no other clock than the host's")
    courier = failing(database, 3)
    assert all(due > 0 for due in due_times(database).values())
    before = now_ms()
    for module in ("app.outbox.delivery.transitions", "app.outbox.engine.clock"):
        monkeypatch.setattr(f"{module}.now_ms", lambda: before - 3_600_000, raising=False)
    registry(database).pause(courier.target, "")
    registry(database).resume(courier.target)
    assert set(due_times(database).values()) == {0}
