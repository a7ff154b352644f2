"""The size of an event in the database: never below what a driver sends."""

from __future__ import annotations

import pymysql
import pytest
from hypothesis import given, strategies
from pymysql.converters import escape_string

from app.events.errors import BadEvents
from app.events.limits import is_larger, stored_size
from app.events.parsing import Limits, parse
from tests.support.builders import event

TEXT = strategies.text(strategies.characters(exclude_categories=("Cs",)))
JSON = strategies.text("\"\\'aé\U0001f600{}", max_size=400)


@given(TEXT, TEXT, JSON)
def test_what_pymysql_sends_is_never_larger(key: str, version: str, record: str) -> None:
    one = event(key, version=version)._replace(record=record)
    texts = (one.id, one.name, one.bucket, one.key, one.version, one.sequencer, one.record, one.trace)
    sent = ",".join(f"'{escape_string(text)}'" for text in texts)
    assert len(sent.encode()) < stored_size(one)
    assert pymysql.paramstyle == "pyformat"


@given(JSON, strategies.integers(0, 4000))
def test_the_quick_look_and_the_exact_one_agree(record: str, most: int) -> None:
    one = event()._replace(record=record)
    assert is_larger(one, most) == (stored_size(one) > most)


def test_a_record_that_is_too_large_is_refused_by_its_place_and_left_out_where_parts_may_be() -> None:
    small, large = event("small").record, event("large").record[:-1] + ',"pad":"' + '\\"' * 50_000 + '"}'
    body = f"[{small},{large}]".encode()
    limits = Limits(event_bytes=100_000)
    with pytest.raises(BadEvents, match="takes at most 100000") as caught:
        parse(body, {}, now_ms=0, limits=limits)
    assert caught.value.index == 1
    parsed = parse(body, {}, now_ms=0, limits=limits, partial=True)
    assert [one.key for one in parsed.events] == ["small"]
    assert [one.index for one in parsed.refused] == [1]
    assert len(parse(body, {}, now_ms=0, limits=Limits()).events) == 2
