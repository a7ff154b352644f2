"""By what an event came: kept with it on its way into the log, and counted."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from app.events.model import Event
from app.outbox import log_head
from app.outbox.admin.event_states import find_event, object_history
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.log.spool import decoded, encoded
from app.outbox.search import EventFilter, search
from tests.support.builders import add_target, event

NIGHTLY = pytest.mark.nightly(
    "60 on SQLite and PostgreSQL, which alone copies many, and 2 or 3 on all four",
    when=lambda outbox_url, count: outbox_url in {"mysql", "mariadb"} and count == 60,
)

POSTED, PULLED = "request minio-token minio", "source kafka:minio minio 1235 3"


def _come(key: str, origin: str) -> Event:
    return event(key)._replace(origin=origin)


def _posted(database: Database) -> int:
    with database.reading() as connection:
        return log_head.read_posted(connection)


def _some(count: int, origin: str = POSTED) -> list[Event]:
    return [_come(f"k{number}", origin) for number in range(count)]


@NIGHTLY
@pytest.mark.parametrize("count", [3, 60], ids=["small", "copied"])
def test_each_event_keeps_by_what_it_came(database: Database, count: int) -> None:
    add_target(database)
    log = Log(database)
    log.append([[event("first")]])  # from then on PostgreSQL appends a few in one round trip
    log.append([[_come("posted", POSTED)], [_come("pulled", PULLED), *_some(count - 2)]])
    found = {one.key: one.origin for one in search(database, EventFilter()).events}
    assert (found["first"], found["posted"], found["pulled"], found["k0"]) == ("", POSTED, PULLED, POSTED)
    [pulled] = object_history(database, "images", "pulled").events
    assert pulled.origin == PULLED
    shown = find_event(database, pulled.event_id)
    assert shown is not None
    assert shown.origin == PULLED


@NIGHTLY
@pytest.mark.parametrize("count", [2, 60], ids=["small", "copied"])
def test_what_requests_record_is_counted_once(database: Database, count: int) -> None:
    limited = add_target(database, "limited", values={"queue_limit": str(count + 3), "queue_full": "reject"})
    log, events = Log(database), _some(count)
    log.append([[_come("first", POSTED)]])
    assert _posted(database) == 1
    log.append([events])
    assert _posted(database) == 1 + count
    log.append([events])  # again
    log.append([[*events[:1], _come("new", POSTED)]])
    assert _posted(database) == 2 + count, "what was recorded before is not counted again"
    log.append([[_come("pulled", PULLED), event("unknown")]])
    assert _posted(database) == 2 + count, f"only requests count, whatever {limited} has room for"
    log.append([[_come(f"full-{number}", POSTED) for number in range(9)]])
    assert _posted(database) == 2 + count, "what a full queue refuses is not counted"


def test_a_spooled_file_keeps_origins_where_a_version_that_knows_none_passes_over_them() -> None:
    events: Sequence[Event] = [_come("a", POSTED), event("b")]
    kept = encoded(events)
    assert list(decoded(kept)) == events
    assert b'"fields":["id","name","bucket","key","version","sequencer","time","record"]' in kept
    assert encoded([event("b")]).count(b"origin") == 0
