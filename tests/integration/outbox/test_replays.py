"""Replays: begun at once whatever they select, counted as they advance, and without a cost for live events."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.delivery import partition_reader
from app.outbox.delivery.counters import TargetCounters, read_counters
from app.outbox.delivery.dead_letters import DeadLetters, Filter
from app.outbox.delivery.replays import Replays, Selection
from app.outbox.engine.database import Database
from app.outbox.log.append import Log, Receipt
from app.outbox.log.retention import purge
from tests.support.builders import add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected
from workers.delivery.retry import RetrySchedule

_LONG = RetrySchedule(base=3_600_000, cap=3_600_000)


def _record(database: Database, events: Sequence[Event]) -> Receipt:
    [receipt] = Log(database).append([events])
    assert isinstance(receipt, Receipt)
    return receipt


def _counters(database: Database) -> TargetCounters:
    with database.reading() as connection:
        [counters] = read_counters(connection)
    return counters


@pytest.mark.parametrize("outbox_url", ["postgresql", "mysql", "mariadb"], indirect=True)
def test_a_replay_begins_while_somebody_holds_the_head_of_the_log(database: Database) -> None:
    courier = Courier(database, add_target(database))
    _record(database, [event("a"), event("b")])
    courier.run()
    with ThreadPoolExecutor(1) as thread, database.writing() as connection:
        connection.execute(tables.log_head.update().values(version=tables.log_head.c.version + 1))
        begun = thread.submit(Replays(database).begin, courier.target, Selection()).result(10)
    assert not begun.finished
    assert courier.run().counts == {"delivered": 2}


@pytest.mark.parametrize("outbox_url", ["postgresql", "mysql", "mariadb"], indirect=True)
def test_events_are_recorded_while_a_replay_waits_for_a_settlement(database: Database) -> None:
    courier = Courier(database, add_target(database))
    _record(database, [event("a")])
    courier.run()
    with ThreadPoolExecutor(1) as thread:
        with database.writing() as connection:
            connection.execute(tables.cursors.update().values(leased_until=0))
            beginning = thread.submit(Replays(database).begin, courier.target, Selection())
            with pytest.raises(TimeoutError):
                beginning.result(0.5)
            assert _record(Database(database.url.render_as_string(hide_password=False)), [event("b")]).recorded == 1
        assert not beginning.result(10).finished


def test_the_counters_balance_at_each_step_of_a_replay(database: Database) -> None:
    courier = Courier(database, add_target(database), schedule=_LONG, batch=2)
    events = [event(f"k{number}") for number in range(12)]
    _record(database, events)
    courier.run()
    answers: dict[str, Outcome] = {events[3].id: Failed("later"), events[7].id: Rejected("no")}
    courier.scripted.script = lambda one: answers.get(one.id, DELIVERED)
    begun = Replays(database).begin(courier.target, Selection())
    assert (begun.replayed, begun.progress, begun.finished) == (0, 0, False)
    assert (_counters(database).recorded, _counters(database).pending) == (12, 0)
    seen = []
    while not Replays(database).get(begun.replay_id).finished:
        courier.run(turns=0)
        assert_counters_balance(database)
        assert _counters(database).pending == 0
        replay = Replays(database).get(begun.replay_id)
        assert _counters(database).recorded == 12 + replay.replayed
        seen.append((replay.replayed, replay.progress))
    assert len(seen) > 1
    assert seen == sorted(seen)
    assert seen[-1] == (12, 1)
    counters = _counters(database)
    assert (counters.delivered, counters.parked, counters.dead) == (22, 1, 1)
    assert Replays(database).list() == [Replays(database).get(begun.replay_id)]


def test_no_live_event_is_discarded_for_those_of_a_replay(database: Database) -> None:
    courier = Courier(database, add_target(database, queue_limit=4), schedule=_LONG)
    _record(database, [event(f"old-{number}") for number in range(3)])
    courier.run()
    courier.scripted.script = lambda one: Failed("later") if one.key.startswith("old") else DELIVERED
    Replays(database).begin(courier.target, Selection())
    assert not _record(database, [event(f"first-{number}") for number in range(4)]).discarded
    assert _record(database, [event("one too many")]).discarded == {courier.target: 1}
    while not Replays(database).list()[0].finished or _counters(database).pending:
        courier.run()
    assert (_counters(database).parked, _counters(database).delivered) == (3, 3 + 4)
    assert not _record(database, [event(f"second-{number}") for number in range(4)]).discarded
    assert _record(database, [event("one too many")]).discarded == {courier.target: 1}
    assert_counters_balance(database)


def test_a_live_event_that_is_parked_takes_room_and_gives_it_back(database: Database) -> None:
    courier = Courier(database, add_target(database, queue_limit=2), ScriptedTarget(lambda one: Failed("later")))
    courier.schedule = _LONG
    _record(database, [event("a"), event("b")])
    courier.run()
    assert _record(database, [event("c")]).discarded == {courier.target: 1}
    with database.writing() as connection:
        connection.execute(tables.parked.update().values(not_before=0))
    courier.scripted.script = lambda one: DELIVERED
    courier.run()
    assert not _record(database, [event("d"), event("e")]).discarded


def test_a_replay_passes_over_what_it_does_not_select_in_short_looks(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reader, "_WINDOW", 3)
    courier = Courier(database, add_target(database))
    _record(database, [event(f"k{number}") for number in range(60)] + [event("wanted"), event("k")])
    courier.run(turns=1000)
    courier.scripted.got.clear()
    replays = Replays(database)
    replays.begin(courier.target, Selection(prefix="wanted"))
    courier.run(turns=0)
    [replay] = replays.list()
    assert not replay.finished
    assert 0 < replay.progress < 1
    assert replay.replayed == 0
    courier.run(turns=1000)
    assert courier.scripted.keys() == ["wanted"]
    assert (replays.list()[0].finished, replays.list()[0].replayed) == (True, 1)
    assert_counters_balance(database)


def test_a_replay_begins_behind_what_was_purged(database: Database) -> None:
    courier = Courier(database, add_target(database))
    _record(database, [event(f"k{number}") for number in range(40)])
    courier.run(turns=1000)
    purge(database, 1 << 60)
    assert Replays(database).begin(courier.target, Selection()).finished
    _record(database, [event(f"k{number}") for number in range(40)])
    courier.run(turns=1000)
    begun = Replays(database).begin(courier.target, Selection())
    assert begun.length <= 40 * 4, "the 40 seqs of each partition that were purged are none of its way"
    assert courier.run(turns=1000).counts == {"delivered": 40}


def test_a_replay_finds_a_dead_letter_also_while_that_is_replayed(database: Database) -> None:
    courier = Courier(database, add_target(database), ScriptedTarget(lambda one: Rejected("no")))
    _record(database, [event("k")])
    courier.run()
    [letter] = DeadLetters(database).list(Filter())
    lease = courier.leases.claim(registry(database).target(courier.target).row_id, range(4), "token", 1)
    assert lease is not None
    with database.reading() as connection:
        place = tuple(connection.execute(sa.select(tables.events.c.partition, tables.events.c.seq)).one())
    replayed = []

    def meanwhile(*_: object) -> None:
        if not replayed:
            replayed.append(letter.letter_id)
            DeadLetters(database).replay(Filter())

    with courier.store.reading(lease) as reader:
        sa.event.listen(database._reader, "after_cursor_execute", meanwhile)
        assert reader.standing([place]) == {place}
        sa.event.remove(database._reader, "after_cursor_execute", meanwhile)
    assert replayed


def test_a_purge_passes_over_events_that_are_still_needed(database: Database) -> None:
    courier = Courier(database, add_target(database))
    courier.scripted.script = lambda one: Rejected("no") if one.key.startswith("bad") else DELIVERED
    _record(database, [event(f"bad-{number}") for number in range(40)] + [event(f"k{number}") for number in range(9)])
    courier.run(turns=1000)
    assert purge(database, 1 << 60, batch=3) == 9
    assert DeadLetters(database).purge(Filter()) == 40
    removed = purge(database, 1 << 60, batch=3, most=7)
    assert 7 <= removed <= 9, "whole batches"
    assert purge(database, 1 << 60, batch=3) == 40 - removed
    assert_counters_balance(database)
