"""The trace context that an event came with, from its way in to the target that gets it."""

from __future__ import annotations

from app.events.model import Event
from app.outbox.admin.event_states import object_history
from app.outbox.admin.replays import Replays, Selection
from app.outbox.admin.undelivered import DeadLetters
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.log.spool import decoded, encoded
from app.resources.undelivered import DeadLetterFilter
from tests.support.builders import add_target, event
from tests.support.scripted_target import Courier
from workers.delivery.outcomes import DELIVERED, Failed, Rejected

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 vendor=a value,other=b"


def _traced(key: str) -> Event:
    return event(key)._replace(trace=TRACE)


def _by_key(events: list[Event]) -> dict[str, str]:
    return {event.key: event.trace for event in events}


def test_a_trace_context_goes_with_its_event_through_retries_and_replays(database: Database) -> None:
    courier = Courier(database, target := add_target(database))
    # Enough of them for COPY, where the database has it.
    Log(database).append([[_traced("traced"), *(event(f"plain-{number}") for number in range(9))]])
    expected = {"traced": TRACE} | {f"plain-{number}": "" for number in range(9)}

    courier.scripted.script = lambda _: Failed("not yet")
    courier.run(turns=1)
    assert courier.scripted.got == []
    courier.scripted.script = lambda one: Rejected("never") if one.key == "traced" else DELIVERED
    courier.run()
    courier.scripted.script = lambda _: DELIVERED
    assert DeadLetters(database).replay(DeadLetterFilter()) == 1
    courier.run()
    assert _by_key(courier.scripted.got) == expected

    courier.scripted.got.clear()
    Replays(database).begin(target, Selection())
    courier.run()
    assert _by_key(courier.scripted.got) == expected
    assert [one.trace for one in object_history(database, "images", "traced").events] == [TRACE]
    assert [one.trace for one in object_history(database, "images", "plain-1").events] == [""]


def test_a_staged_file_keeps_traces_where_a_version_that_knows_none_passes_over_them() -> None:
    events = [_traced("a"), event("b")]
    kept = encoded(events)
    assert list(decoded(kept)) == events
    assert b'"fields":["id","name","bucket","key","version","sequencer","time","record"]' in kept
    assert encoded([event("b")]).count(b"trace") == 0
