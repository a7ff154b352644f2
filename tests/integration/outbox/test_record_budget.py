"""What is read at once is bounded in bytes, not only in events, and nothing is left out for that."""

from collections.abc import Callable, Sequence

import pytest

from app.events.model import Event
from app.outbox.admin.event_states import object_history
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.database import Database
from app.outbox.log import reading
from app.outbox.log.append import Log
from app.outbox.log.reading import LogReader
from app.resources.undelivered import DeadLetterFilter
from tests.support import builders, databases
from tests.support.builders import add_target, event
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance, assert_in_order
from tests.support.tuning import tune
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected
from workers.targets.base import NO_LEASE, LeaseCheck

pytestmark = databases.TWO

_BUDGET = 200_000
_LONG = 90_000  # two of them are within the budget, three are not


@pytest.fixture(autouse=True)
def _small_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    tune(monkeypatch, reading, "READ", batch_bytes=_BUDGET)


class _Measured(ScriptedTarget):
    """Keeps the bytes of the records of each call."""

    def __init__(self, script: Callable[[Event], Outcome] = lambda one: DELIVERED) -> None:
        super().__init__(script)
        self.sizes: list[list[int]] = []

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:
        self.sizes.append([len(one.record) for one in events])
        return super().deliver(events, window, lease)

    def assert_bounded(self) -> None:
        assert max(map(len, self.sizes)) > 1, "an event at a time would be a bound, too"
        assert [sizes for sizes in self.sizes if sum(sizes) > _BUDGET and len(sizes) > 1] == []
        self.sizes.clear()


def long_event(key: str, size: int = _LONG, version: str = "") -> Event:
    return builders.long_event(key, size, version)


def _mixed() -> list[Event]:
    """Short and long events of many objects, and one that exceeds the budget by itself."""
    return [
        *(long_event(f"k{number % 7}") if number % 3 else event(f"k{number % 7}") for number in range(40)),
        long_event("k1", 3 * _BUDGET),
        *(long_event(f"k{number % 7}") for number in range(10)),
    ]


def test_a_batch_is_bounded_in_bytes(database: Database) -> None:
    courier = Courier(database, add_target(database), target := _Measured(), batch=100)
    recorded = _mixed()
    Log(database).append([recorded])
    courier.run()
    target.assert_bounded()
    assert_in_order(recorded, target.got)
    assert {one.id: one.record for one in target.got} == {one.id: one.record for one in recorded}
    assert len(target.got) == len(recorded)
    assert_counters_balance(database)


@databases.ONE
def test_a_replay_is_bounded_in_bytes(database: Database) -> None:
    courier = Courier(database, add_target(database), target := _Measured(), batch=100)
    recorded = _mixed()
    Log(database).append([recorded])
    courier.run()
    target.sizes.clear(), target.got.clear()
    Replays(database).begin(courier.target, Selection())
    courier.run()
    target.assert_bounded()
    assert_in_order(recorded, target.got)
    assert {one.id: one.record for one in target.got} == {one.id: one.record for one in recorded}
    assert len(target.got) == len(recorded)
    assert Replays(database).list()[0].finished
    assert_counters_balance(database)


def test_the_rows_that_a_mirror_restores_are_bounded_in_bytes(database: Database) -> None:
    target = _Measured()
    courier = Courier(database, add_target(database), target, Policy.MIRROR, batch=100)
    log = Log(database)
    older = [long_event(f"k{number}", version="old") for number in range(20)]
    older += [long_event("k20", 3 * _BUDGET, version="old")]
    log.append([older])
    courier.run()
    newer = [event(f"k{number}", version="new") for number in range(21)]
    gone = [event(f"k{number}", name="s3:ObjectRemoved:Delete", version="new") for number in range(21)]
    log.append([newer, gone])
    target.sizes.clear(), target.got.clear()
    courier.run()
    target.assert_bounded()
    assert sorted((one.path, one.record) for one in target.got) == sorted((one.path, one.record) for one in older)
    assert_counters_balance(database)


def test_retries_are_bounded_in_bytes(database: Database) -> None:
    failing = True
    target = _Measured(lambda one: Failed("later") if failing and one.key != "fine" else DELIVERED)
    courier = Courier(database, add_target(database), target, batch=100)
    recorded = [*_mixed(), event("fine")]
    Log(database).append([recorded])
    courier.run(turns=5)
    target.sizes.clear()
    failing = False
    courier.run(turns=1000)
    target.assert_bounded()
    assert_in_order(recorded, target.got)
    assert len(target.got) == len(recorded)
    assert_counters_balance(database)


@databases.THREE
def test_a_history_has_pages_of_bytes(database: Database) -> None:
    recorded = [long_event("k") for _ in range(5)] + [long_event("k", 3 * _BUDGET)] + [event("k") for _ in range(5)]
    Log(database).append([[*recorded, event("other")]])
    pages, after = [], 0
    while True:
        page = object_history(database, "images", "k", after=after)
        pages.append([one.record for one in page.events])
        assert len(page.events) == 1 or sum(map(len, pages[-1])) <= _BUDGET
        if page.next is None:
            break
        after = page.next
    assert [len(page) for page in pages] == [5, 1, 2, 2, 1]
    assert [record for page in reversed(pages) for record in page] == [one.record for one in recorded]
    brief = object_history(database, "images", "k", records=False)
    assert ([one.event_id for one in brief.events], brief.next) == ([one.id for one in recorded], None)
    assert {one.record for one in brief.events} == {""}
    assert len(object_history(database, "images", "k", limit=3).events) == 3


@databases.ONE
def test_the_log_is_read_for_streams_in_rounds_of_bytes(database: Database) -> None:
    reader = LogReader(database)
    recorded = _mixed()
    Log(database).append([recorded])
    rounds = list(iter(reader.read, ()))
    assert len(rounds) > 10
    assert all(len(some) == 1 or sum(len(one.record) for one in some) <= _BUDGET for some in rounds)
    assert [(one.id, one.record) for some in rounds for one in some] == [(one.id, one.record) for one in recorded]


@databases.ONE
def test_dead_letters_have_pages_of_bytes(database: Database) -> None:
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: Rejected("no")), batch=100)
    recorded = _mixed()
    Log(database).append([recorded])
    courier.run()
    letters, after, pages = [], 0, []
    while after is not None:
        page = DeadLetters(database).page(DeadLetterFilter(), after=after)
        letters, after = [*letters, *page.dead_letters], page.next
        pages.append([len(bytes(letter.record).decode()) for letter in page.dead_letters])
    assert len(pages) > 10
    assert [sizes for sizes in pages if sum(sizes) > _BUDGET and len(sizes) > 1] == []
    assert {one.event_id: bytes(one.record).decode() for one in letters} == {one.id: one.record for one in recorded}
    assert DeadLetters(database).list(DeadLetterFilter()) == letters
