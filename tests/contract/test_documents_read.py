"""Spark reads no part of an index for the whole of it, whatever the server answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import pytest

from app.config.target_settings import load
from spark_jobs.stores import CannotRead
from spark_jobs.stores.elasticsearch import PointInTime
from tests.support.raw_http import Asked, RawServer, settings, written

HIT = {"_id": "images/a", "_source": {}, "sort": [1]}


def read(answer: Callable[[Asked], Mapping[str, object]], page: int) -> list[object]:
    """The keys that are read of an index from a server with these answers."""
    with RawServer(lambda asked: [written(200, json.dumps(answer(asked)).encode())]) as server:
        chosen = load("elasticsearch", settings("elasticsearch", server.port) | {"id_style": "plain"})
        return [row[0] for row in PointInTime(chosen, "images", "pit", "_doc", 1, page).read(0)]


@pytest.mark.parametrize("others", [{}, {"timed_out": True}, {"timed_out": None}])
@pytest.mark.parametrize("hits", [{}, {"hits": {"hits": [HIT]}}])
def test_an_answer_that_is_not_that_of_a_whole_search_is_refused(
    others: Mapping[str, object], hits: Mapping[str, object]
) -> None:
    with pytest.raises(CannotRead, match="has not searched to the end, or not at all"):
        read(lambda _: {**hits, **others}, 2)


def test_an_index_without_documents_is_empty() -> None:
    assert read(lambda _: {"timed_out": False}, 2) == []


def test_a_page_that_comes_again_is_refused() -> None:
    with pytest.raises(CannotRead, match="the same documents again"):
        read(lambda _: {"timed_out": False, "hits": {"hits": [HIT] * 2}}, 2)


def test_pages_are_read_to_the_last() -> None:
    def answer(asked: Asked) -> Mapping[str, object]:
        (number,) = json.loads(asked.body).get("search_after", [0])
        hits = [HIT | {"_id": f"images/{number + at}", "sort": [number + at]} for at in (1, 2)]
        return {"timed_out": False, "hits": {"hits": hits[: 1 if number else 2]}}

    assert read(answer, 2) == ["1", "2", "3"]
