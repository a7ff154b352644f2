"""Events that a version without a limit has recorded: they are settled, and their records are never read."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.events import limits
from app.outbox.admin.event_states import find_event, object_history
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.database import Database
from app.outbox.log import reading
from app.outbox.log.append import Log
from app.outbox.log.reading import LogReader, journal_rows
from app.outbox.log.spool import Spool, SpoolFeeder
from app.resources.undelivered import DeadLetterFilter
from tests.support.builders import add_target, event, long_event
from tests.support.pulled_events import recorded
from tests.support.scripted_target import Courier, ScriptedTarget, assert_counters_balance
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Failed

_MOST = 100_000


@pytest.fixture(autouse=True)
def _low_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (limits, reading):
        monkeypatch.setattr(module, "MAX_EVENT_BYTES", _MOST)


def test_an_event_that_is_too_long_becomes_a_dead_letter_and_holds_up_no_other(database: Database) -> None:
    courier = Courier(database, add_target(database), target := ScriptedTarget())
    too_long = [long_event("k", _MOST + 1), long_event("alone", 3 * _MOST)]
    others = [event("k"), long_event("k", _MOST), event("other")]
    reader = LogReader(database)
    Log(database).append([[others[0], too_long[0], others[1], too_long[1], others[2]]])
    courier.run()
    assert {one.id: one.record for one in target.got} == {one.id: one.record for one in others}
    letters = DeadLetters(database).list(DeadLetterFilter())
    assert {letter.event_id for letter in letters} == {one.id for one in too_long}
    assert {bytes(letter.record) for letter in letters} == {b"null"}
    assert all("is longer than the" in letter.reason for letter in letters)
    assert_counters_balance(database)
    # Nobody else reads it either.
    assert [one.id for one in reader.read()] == [one.id for one in others]
    [_, shown, _] = object_history(database, "images", "k").events
    assert (shown.event_id, shown.record) == (too_long[0].id, "null")
    found = find_event(database, too_long[0].id)
    assert found is not None
    assert found.record == "null"
    journal = {row[2]: row[-1] for row in journal_rows(database, 16, 0, 5)}
    assert {event_id for event_id, record in journal.items() if record == "null"} == {one.id for one in too_long}


def test_one_that_was_parked_or_is_replayed_becomes_a_dead_letter_too(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = True
    target = ScriptedTarget(lambda _: Failed("later") if failing else DELIVERED)
    courier = Courier(database, add_target(database), target)
    one = long_event("k", _MOST + 1)
    monkeypatch.setattr(reading, "MAX_EVENT_BYTES", 10 * _MOST)
    Log(database).append([[one, event("k")]])
    courier.run(turns=3)
    failing = False
    monkeypatch.setattr(reading, "MAX_EVENT_BYTES", _MOST)
    target.got.clear()
    courier.run()
    assert [got.key for got in target.got] == ["k"]
    assert len(target.got[0].record) < _MOST
    Replays(database).begin(courier.target, Selection())
    courier.run()
    [letter] = DeadLetters(database).list(DeadLetterFilter())
    assert letter.event_id == one.id
    assert Replays(database).list()[0].finished
    assert_counters_balance(database)


def test_a_mirror_does_not_restore_one(database: Database) -> None:
    target = ScriptedTarget()
    courier = Courier(database, add_target(database), target, Policy.MIRROR)
    older = long_event("k", _MOST + 1, version="old")
    Log(database).append([[older], [event("k", version="new")]])
    courier.run()
    target.got.clear()
    Log(database).append([[event("k", name="s3:ObjectRemoved:Delete", version="new"), event("beside", version="v")]])
    courier.run()
    assert [got.key for got in target.got] == ["beside"]
    assert len(DeadLetters(database).list(DeadLetterFilter())) == 1
    assert_counters_balance(database)


def test_one_in_the_spool_folder_is_quarantined_and_the_rest_is_fed(database: Database, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    before, after = event("before"), event("after")
    for events in ([before, long_event("k", _MOST + 1)], [after]):
        spool.append(events)
    SpoolFeeder(spool, database).feed()
    assert recorded(database) == [before.id, after.id]
    [reason] = spool.quarantined.glob("*.reason")
    assert "bytes that an event may have" in reason.read_text()


def test_a_spool_file_that_would_take_too_much_memory_is_quarantined_unread(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "spool")
    after = event("after")
    for events in ([long_event("k", 2 * _MOST)], [after]):
        spool.append(events)
    large = spool.files()[0]
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("it was read") if path == large else read(path))
    SpoolFeeder(spool, database, max_file_bytes=_MOST).feed()
    assert recorded(database) == [after.id]
    assert spool.damaged() == 1
