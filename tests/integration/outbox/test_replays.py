"""Replays: begun at once whatever they select, counted as they advance, and without a cost for live events."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import orjson
import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.outbox import tables
from app.outbox.admin.counters import TargetCounters, read_counters
from app.outbox.admin.replays import Replay, Replays, Selection, checked
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.delivery import partition_reader
from app.outbox.delivery.leases import LeaseLost
from app.outbox.delivery.partition_reader import PartitionReader
from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import BadSelection, UnknownReplay
from app.outbox.log.append import Log, Receipt
from app.outbox.log.retention import purge
from app.resources.undelivered import DeadLetterFilter
from tests.support import databases
from tests.support.builders import DELETE, add_target, event, registry
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from tests.support.tuning import tune
from workers.delivery.outcomes import DELIVERED, Failed, Outcome, Rejected
from workers.delivery.retry import RetrySchedule

pytestmark = [pytest.mark.promise, databases.TWO]

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


@databases.THREE
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
    tune(monkeypatch, partition_reader, "PARTITION_READS", max_replay_seqs=3)
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
    [letter] = DeadLetters(database).list(DeadLetterFilter())
    lease = courier.leases.claim(registry(database).target(courier.target).row_id, range(4), "token", 1)
    assert lease is not None
    with database.reading() as connection:
        place = tuple(connection.execute(sa.select(tables.events.c.partition, tables.events.c.seq)).one())
    replayed = []

    def meanwhile(*_: object) -> None:
        if not replayed:
            replayed.append(letter.id)
            DeadLetters(database).replay(DeadLetterFilter())

    with courier.store.reading(lease) as reader:
        sa.event.listen(database._reader, "after_cursor_execute", meanwhile)
        assert reader.parked_or_dead([place]) == {place}
        sa.event.remove(database._reader, "after_cursor_execute", meanwhile)
    assert replayed


def test_a_purge_passes_over_events_that_are_still_needed(database: Database) -> None:
    courier = Courier(database, add_target(database))
    courier.scripted.script = lambda one: Rejected("no") if one.key.startswith("bad") else DELIVERED
    _record(database, [event(f"bad-{number}") for number in range(40)] + [event(f"k{number}") for number in range(9)])
    courier.run(turns=1000)
    assert purge(database, 1 << 60, batch_events=3) == 9
    assert DeadLetters(database).purge(DeadLetterFilter()) == 40
    removed = purge(database, 1 << 60, batch_events=3, max_events=7)
    assert 7 <= removed <= 9, "whole batches"
    assert purge(database, 1 << 60, batch_events=3) == 40 - removed
    assert_counters_balance(database)


@pytest.mark.parametrize(
    ("selection", "field", "words"),
    [
        (Selection(names=("s3:ObjectCreated:Put\0",)), "events", "did you mean s3:ObjectCreated:Put?"),
        (Selection(names=("\ud800",)), "events", "is no event"),
        (Selection(names=tuple(f"n{number}" for number in range(260_000))), "events", "at most 1000"),
        (Selection(names=("x" * 1_000_000,)), "events", "is no event"),
        (Selection(bucket="b\0"), "bucket", "up to 255 printable"),
        (Selection(bucket="b" * 256), "bucket", "up to 255 printable"),
        (Selection(bucket="\ud800"), "bucket", "up to 255 printable"),
        (Selection(prefix="\0"), "prefix", "without U+0000"),
        (Selection(prefix="\ud800"), "prefix", "UTF-8"),
        (Selection(prefix="x" * 4097), "prefix", "4096 bytes"),
    ],
)
def test_a_selection_that_no_event_can_meet_is_refused(selection: Selection, field: str, words: str) -> None:
    with pytest.raises(BadSelection) as caught:
        checked(selection)
    assert caught.value.field == field
    assert words in str(caught.value)
    assert len(str(caught.value)) < 400


@databases.THREE
def test_families_of_names_are_replayed_as_their_members(database: Database) -> None:
    courier = Courier(database, add_target(database))
    _record(database, [event("a"), event("b", name="s3:ObjectRemoved:Delete")])
    courier.run()
    begun = Replays(database).begin(courier.target, Selection(names=("s3:ObjectRemoved:*",)))
    assert "s3:ObjectRemoved:Delete" in begun.selection.names
    assert courier.run().counts == {"delivered": 1}
    assert Replays(database).begin(courier.target, Selection(names=("*",))).selection == Selection()


def test_a_cancelled_replay_sends_no_more_and_the_log_goes_on(database: Database) -> None:
    courier = Courier(database, add_target(database), schedule=_LONG, batch=2)
    events = [event(f"k{number}") for number in range(40)]
    _record(database, events)
    courier.run(turns=1000)
    courier.scripted.got.clear()
    courier.scripted.script = lambda one: Failed("later") if one.id == events[0].id else DELIVERED
    replays = Replays(database)
    begun = replays.begin(courier.target, Selection())
    courier.run(turns=0)
    before = replays.get(begun.replay_id)
    assert 0 < before.replayed < 40
    parked, delivered = _counters(database).parked, len(courier.scripted.got)
    cancelled = replays.cancel(begun.replay_id)
    assert (cancelled.finished, cancelled.replayed, cancelled.progress) == (True, before.replayed, 1)
    assert cancelled.cancelled_at > 0
    assert_counters_balance(database)
    _record(database, [event("new")])
    courier.run(turns=1000)
    assert [one.key for one in courier.scripted.got[delivered:]] == ["new"]
    assert _counters(database).parked == parked
    assert _counters(database).recorded == 41 + before.replayed
    assert_counters_balance(database)
    assert replays.cancel(begun.replay_id) == replays.get(begun.replay_id) == cancelled
    with pytest.raises(UnknownReplay):
        replays.cancel(begun.replay_id + 1)


def test_a_worker_that_is_at_a_replay_settles_nothing_for_it_once_it_is_cancelled(database: Database) -> None:
    courier = Courier(database, add_target(database), batch=2)
    _record(database, [event(f"k{number}") for number in range(40)])
    courier.run(turns=1000)
    replays = Replays(database)
    begun = replays.begin(courier.target, Selection())
    worker = courier.partitions()
    assert worker is not None

    def cancel(_: Event) -> Outcome:
        replays.cancel(begun.replay_id)
        return DELIVERED

    courier.scripted.script = cancel
    with pytest.raises(LeaseLost):
        worker.work_off(lambda: False)
    assert replays.get(begun.replay_id).replayed == 0
    assert_counters_balance(database)


def test_a_replay_that_is_over_is_not_cancelled(database: Database) -> None:
    courier = Courier(database, add_target(database))
    _record(database, [event("a")])
    courier.run()
    begun = Replays(database).begin(courier.target, Selection())
    courier.run()
    assert Replays(database).cancel(begun.replay_id).cancelled_at == 0


def _broken(database: Database, replay: Replay, names: Sequence[str]) -> None:
    """Have a replay look for what no database can look for."""
    with database.writing() as connection:
        chosen = tables.replays.update().where(tables.replays.c.id == replay.replay_id)
        connection.execute(chosen.values(events=orjson.dumps(names).decode()))


@pytest.mark.slow
def test_a_replay_that_fails_keeps_no_live_event_from_the_target(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    courier = Courier(database, add_target(database))
    _record(database, [event("a"), event("b"), event("c")])
    courier.run()
    courier.scripted.got.clear()
    begun = Replays(database).begin(courier.target, Selection())
    # SQLite has a limit of parameters, PostgreSQL's driver refuses a NUL, the others take either.
    many = 260_000 if database.dialect == "sqlite" else 0
    _broken(database, begun, ["s3:ObjectCreated:Put\0", *(f"n{number}" for number in range(many))])
    _record(database, [event("a"), event("b"), event("c")])
    courier.run()
    assert {"a", "b", "c"} <= set(courier.scripted.keys())
    sent = len(courier.scripted.got)
    assert_counters_balance(database)
    if database.dialect in ("sqlite", "postgresql"):
        assert f"replay {begun.replay_id} fails in partition" in caplog.text
    Replays(database).cancel(begun.replay_id)
    _record(database, [event("d")])
    courier.run()
    assert courier.scripted.keys()[sent:] == ["d"]


def test_a_replay_that_failed_for_a_while_sends_what_overtook_it_once_more(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    courier = Courier(database, add_target(database))
    _record(database, [event("a")])
    courier.run()
    begun = Replays(database).begin(courier.target, Selection())
    with monkeypatch.context() as patched:

        def fail(*_: object) -> None:
            raise ValueError("unexpected")

        patched.setattr(PartitionReader, "load_replay", fail)
        newer = event("a")
        _record(database, [newer])
        assert courier.run().counts == {"delivered": 1}
    courier.scripted.got.clear()
    while not Replays(database).get(begun.replay_id).finished:
        courier.run(now=now_ms() + 60_000)
    assert courier.scripted.got[-1].id == newer.id
    assert len(courier.scripted.got) == 2
    assert_counters_balance(database)


def test_an_event_of_a_replay_waits_behind_one_of_its_object_that_failed_in_another_replay(database: Database) -> None:
    courier = Courier(database, add_target(database))
    created, removed = event("a"), event("a", name=DELETE)
    _record(database, [created, removed])
    courier.run()
    for one in (created, removed):
        Replays(database).begin(courier.target, Selection(names=(one.name,)))
    answers = iter([Failed("not yet")])
    courier.scripted.script = lambda _: next(answers, DELIVERED)
    courier.scripted.got.clear()
    while not all(replay.finished for replay in Replays(database).list()) or _counters(database).parked:
        courier.run()
    assert [one.id for one in courier.scripted.got] == [created.id, removed.id]
    assert_counters_balance(database)
