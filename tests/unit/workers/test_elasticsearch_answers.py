"""What the answers of Elasticsearch mean, without a server."""

from __future__ import annotations

from typing import Any

import pytest

from workers.systems.elasticsearch import answers
from workers.targets.http_pool import retry_after

NAMED = "Elasticsearch"


def version(number: str, **more: str) -> dict[str, Any]:
    return {"version": {"number": number} | more}


@pytest.mark.parametrize(
    ("body", "product", "opensearch", "problem"),
    [
        (version("8.19.3"), NAMED, False, ""),
        (version("9.1.0"), NAMED, True, ""),
        (version("7.10.2"), None, True, ""),
        (version("2.19.5", distribution="opensearch"), None, True, ""),
        (version("7.10.2"), None, False, "version 7.10.2 of an unnamed server; set opensearch=on"),
        (version("2.19.5", distribution="opensearch"), NAMED, False, "this is OpenSearch 2.19.5; set opensearch=on"),
        (version("6.8.23"), NAMED, False, "version 6.8.23 is too old"),
        (version("x"), NAMED, False, "version x is too old"),
        *((body, NAMED, True, "is not Elasticsearch") for body in (None, [], "x", {}, {"version": 8}, version(""))),
    ],
)
def test_a_server_is_judged_by_its_version_and_its_name(
    body: Any, product: str | None, opensearch: bool, problem: str
) -> None:
    found = answers.problem_of_server(body, product, opensearch=opensearch)
    assert problem in found
    assert bool(problem) == bool(found)


def resolved(**kinds: Any) -> dict[str, Any]:
    return {"indices": [], "aliases": [], "data_streams": []} | kinds


@pytest.mark.parametrize(
    ("found", "mirror", "journal"),
    [
        (resolved(), None, None),
        (resolved(indices=[{"name": "another"}]), None, None),
        (resolved(indices=[{"name": "events"}]), "", ""),
        (resolved(aliases=[{"name": "events", "indices": ["a"]}]), "", ""),
        (resolved(aliases=[{"name": "events", "indices": ["a", "b"]}]), "needs an alias of one", ""),
        (resolved(data_streams=[{"name": "events"}]), "needs an index", ""),
        ({}, None, None),
    ],
)
def test_an_index_an_alias_and_a_stream_are_fit_for_what_they_can_do(
    found: dict[str, Any], mirror: str | None, journal: str | None
) -> None:
    for expected, is_mirror in ((mirror, True), (journal, False)):
        problem = answers.problem_of_index(found, "events", is_mirror=is_mirror)
        assert (problem is None) == (expected is None)
        assert (expected or "") in (problem or "")
        assert bool(problem) == bool(expected)


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (200, {}, ""),
        (404, None, ""),
        (413, None, ""),
        (200, None, "answered 200: the server is not Elasticsearch"),
        (302, {}, "answered 302: the server is not Elasticsearch"),
        (401, {"error": {"type": "security_exception", "reason": "no"}}, "security_exception: no (check the login)"),
        (401, None, "answered 401: Unauthorized (check the login)"),
    ],
)
def test_an_answer_that_every_request_would_get_is_named(status: int, body: Any, problem: str) -> None:
    found = answers.problem_of_answer(status, body)
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7),
        ("-7", None),
        ("soon", None),
        ("9" * 5000, None),
        ("Sat, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Sat, 01 Jan 2000 00:00:00 GMT", 0),
    ],
)
def test_a_retry_after_that_means_nothing_is_ignored(text: str, seconds: float | None) -> None:
    assert retry_after({"Retry-After": text}) == seconds
