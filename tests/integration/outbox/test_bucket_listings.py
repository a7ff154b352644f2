"""What a worker makes of listings, whatever happens between a listing and the commit of what it found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from app.events.model import Event
from app.events.order import from_time
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from tests.services import until
from tests.support import databases
from tests.support.builders import add_target, event, registry
from tests.support.pulled_events import running
from tests.support.scripted_store import BUCKET, ScriptedStore, scripted_store
from tests.support.watched_bucket import Watch

pytestmark = [databases.TWO, pytest.mark.promise]
PUT, DELETE = "ObjectCreated:Put", "ObjectRemoved:Delete"


@pytest.fixture
def store() -> Iterator[ScriptedStore]:
    with scripted_store() as store:
        yield store


@pytest.fixture
def watch(store: ScriptedStore, database: Database) -> Watch:
    return Watch(database, BUCKET, store.settings)


def reported(key: str, modified: int) -> Event:
    """The event by which the store would report an object."""
    return event(key, sequencer=from_time(modified * 1_000_000))._replace(time=modified)


def test_what_is_reported_while_a_target_has_no_room_is_not_found_afterwards(
    store: ScriptedStore, watch: Watch, database: Database
) -> None:
    target = add_target(database, queue_limit="1", queue_full="reject")
    log = Log(database)
    log.append([[event(bucket="other")]])
    for key in ("a", "b"):
        store.put(key)
    watch.watch(initial="events")
    with running(database):
        until(lambda: "is full" in watch.sources.stored(watch.source).error, what="a source that waits")
        log.append([[reported("a", store.put("a", "b", age=0))]], routed=False)
        registry(database).put(target, {"endpoint": "http://127.0.0.1:9/"})
        watch.listed(1)
        assert watch.events() == [(PUT, "a"), (PUT, "b")]
        watch.list_again()
    assert watch.events() == [(PUT, "a"), (PUT, "b")]
    assert (watch.state.created, watch.state.explained) == (1, 1)
    assert watch.sources.stored(watch.source).recorded == 1


def test_the_clock_of_a_store_that_is_behind_loses_nothing_that_it_sends_afterwards(
    store: ScriptedStore, watch: Watch, database: Database
) -> None:
    store.behind = 3_600_000
    for key in ("a", "z"):
        store.put(key)
    watch.watch()
    with running(database):
        watch.listed(1)
        del store.objects["a"]
        watch.list_again()
        assert watch.events() == [(DELETE, "a")]
        Log(database).append([[reported("a", store.put("a", age=0))]])
        assert watch.mirrored() == {"a"}
        watch.list_again()
    assert watch.events() == [(DELETE, "a"), (PUT, "a")]
    assert watch.state.explained == 1


def test_keys_that_no_event_can_have_are_skipped_counted_and_named(
    store: ScriptedStore, watch: Watch, database: Database
) -> None:
    for key in ("a", "b\0c", "d" * 4097, "e" * 4096):
        store.put(key)
    watch.watch(initial="events")
    with running(database):
        watch.listed(1)
        assert watch.events() == [(PUT, "a"), (PUT, "e" * 4096)]
        assert (watch.state.objects, watch.state.skipped) == (2, 2)
        stored = watch.sources.stored(watch.source)
        assert (watch.sources.state(watch.source), stored.error) == ("running", "")
        assert stored.reason == ("2 objects of its listing skipped, such as the key 'b\\x00c': no event can have it")
        del store.objects["b\0c"], store.objects["d" * 4097]
        watch.list_again()
        assert (watch.state.skipped, watch.sources.stored(watch.source).reason) == (0, "")
