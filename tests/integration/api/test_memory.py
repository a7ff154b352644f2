"""What requests cost in memory: bounded for each, and for all of a process together."""

from __future__ import annotations

import gzip

import orjson

from app.events.limits import MAX_EVENT_BYTES
from app.outbox.engine.database import Database
from tests.integration.api.conftest import Start, keys, problem, url_of
from tests.support.builders import event
from tests.support.process_memory import growth


def growing(letter: str, size: int) -> bytes:
    """A body of two events, one of which holds a letter so often."""
    record = orjson.loads(event("long").record) | {"pad": letter * size}
    return orjson.dumps({"Records": [orjson.loads(event("beside").record), record]})


def test_a_small_body_that_grows_when_it_is_written_is_refused_for_little(log: Database, start: Start) -> None:
    """Of 58 kB, which unpack to 60 million letters, each of which is written as six."""
    api = start(url_of(log), processes=1)
    assert api.post(growing("x", 1000)).json()["recorded"] == 2
    bomb = gzip.compress(growing("<", 60_000_000))
    assert len(bomb) < 60_000
    with growth(api.pid) as held:
        refused = problem(api.post(bomb, content_encoding="gzip"), 413, "bad-events")
    assert (refused["index"], refused["field"], refused["limit"]) == (1, "Records[1].pad", MAX_EVENT_BYTES)
    assert held.grown < 500
    assert keys(log) == ["beside", "long"]
