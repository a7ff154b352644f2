"""The stream of events for browsers: what arrives, after what it resumes, who may open it, and that it ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import orjson
import pytest

from app.api.listen.broadcaster import Broadcaster
from app.api.listen.query import NO_TARGET, StreamQuery
from app.api.listen.wire_format import SERVER_SENT_EVENTS, ServerSentEvents
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.tokens import Tokens
from app.rules.model import Rule
from tests import services
from tests.integration.api.conftest import Api, Start, problem, url_of
from tests.services import until
from tests.support.builders import DELETE, event, migrated

URL = "/v1/events/stream"


@contextmanager
def listening(api: Api, headers: dict[str, str] | None = None, **params: str) -> Iterator[Iterator[tuple[str, str]]]:
    """A stream whose headers have come: the ids and keys of its events."""
    with (
        httpx.Client(base_url=api.url, timeout=60) as client,
        client.stream("GET", URL, params=params, headers=headers) as response,
    ):
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"] == "text/event-stream"
        yield _events(response.iter_lines())


def _events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        if line:
            found[name] = value
        elif "data" in found:
            data = orjson.loads(found["data"])
            assert data["EventId"] == found["id"]
            yield found["id"], data["Records"][0]["s3"]["object"]["key"]
            found = {}


def test_events_arrive_as_they_are_recorded_and_a_browser_resumes(plain: Api, plain_log: Database) -> None:
    with listening(plain, bucket="images", prefix="a", events="s3:ObjectCreated:*") as stream:
        odd = "a\n\ndata: forged<script>"
        made = [event("a1"), event("b1"), event("a2", bucket="films"), event("a3", name=DELETE), event(odd)]
        Log(plain_log).append([made])
        assert [next(stream), next(stream)] == [(made[0].id, "a1"), (made[4].id, odd)]
    for place in ({"after": made[0].id}, {}):
        last = {} if place else {"Last-Event-ID": made[0].id}
        with listening(plain, last, **place) as stream:
            assert [key for _, key in (next(stream), next(stream))] == ["b1", "a2"]


def test_a_browser_that_was_away_for_too_long_begins_now_and_a_program_is_told(plain: Api, plain_log: Database) -> None:
    gone = "0" * 32
    with listening(plain, {"Last-Event-ID": gone}) as stream:
        Log(plain_log).append([[event("new")]])
        assert next(stream)[1] == "new"
    for params in ({"after": gone}, {"after": "x"}, {"events": "s3:Nothing"}, {"bukcet": "images"}):
        problem(plain.client.get(URL, params=params), 400, "bad-value")
    assert plain.client.head(URL).status_code == 200


def test_a_stream_needs_the_scope_and_the_bucket(log: Database, start: Start) -> None:
    def bearer(name: str, scope: str, *buckets: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {Tokens(log).create(name, [scope], buckets=buckets)}"}

    reader, sender, limited = bearer("r", "read"), bearer("i", "ingest"), bearer("l", "read", "images")
    api = start(url_of(log))
    until(lambda: all(api.client.get(URL).status_code == 401 for _ in range(8)), 60)  # each process knows the tokens
    problem(api.client.get(URL), 401, "unauthorized")
    problem(api.client.get(URL, headers=sender), 403, "forbidden")
    problem(api.client.get(URL, headers=limited), 403, "forbidden")
    problem(api.client.get(URL, headers=limited, params={"bucket": "films"}), 403, "forbidden")
    for headers, params in ((reader, {}), (limited, {"bucket": "images"})):
        with listening(api, headers, **params) as stream:
            Log(log).append([[event("secret", bucket="films"), event("mine")]])
            assert next(stream)[1] == ("mine" if params else "secret")


def test_a_stream_ends_after_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerSentEvents, "longest", 0.1)
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    broadcaster = Broadcaster(database)
    rule = Rule(bucket="*", events=("*",), target=NO_TARGET)
    stream = broadcaster.stream(StreamQuery(rule, 15, "", SERVER_SENT_EVENTS), 0, chunked=True, number="1")
    with (
        socket.create_server((services.LOOPBACK, 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.settimeout(60)
        broadcaster.admit(server.accept()[0], stream)
        received = b""
        while part := client.recv(4096):
            received += part
    assert b"retry: 1000" in received
    assert received.endswith(b"\r\n0\r\n\r\n")
    until(lambda: len(broadcaster) == 0)
    database.close()
