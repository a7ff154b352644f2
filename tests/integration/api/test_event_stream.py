"""The stream of events for browsers: what arrives, after what it resumes, who may open it, and that it ends."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import orjson
import pytest

from app.api.listen import broadcaster
from app.api.listen.broadcaster import Broadcaster
from app.api.listen.stream import (
    MAX_BUFFERED_BYTES,
    NO_TARGET,
    SERVER_SENT_EVENTS,
    ServerSentEvents,
    Stream,
    StreamQuery,
)
from app.api.s3.errors import S3Error
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.tokens import Tokens
from app.rules.model import Rule
from tests import services
from tests.integration.api.conftest import Api, Start, problem, url_of
from tests.services import until
from tests.support.builders import DELETE, add_target, event, migrated

URL = "/v1/events/stream"
OF_IMAGES = {"bucket": "images"}


@contextmanager
def listening(api: Api, headers: dict[str, str] | None = None, **params: str) -> Iterator[Iterator[tuple[str, str]]]:
    """A stream whose headers have come: the ids and keys of its events."""
    with (
        httpx.Client(base_url=api.url, timeout=60, trust_env=False) as client,
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


def test_a_stream_may_be_of_one_target(plain: Api, plain_log: Database) -> None:
    add_target(plain_log, "streamed", bucket="streamed-films")
    problem(plain.client.get(URL, params={"target": "webhook:none"}), 404, "unknown-target")
    problem(plain.client.get(URL, params={"target": "nonsense"}), 400, "bad-value")
    made = [event("other", bucket="streamed-images"), event("mine", bucket="streamed-films")]
    with listening(plain, target="webhook:streamed") as stream:
        Log(plain_log).append([made])
        assert next(stream) == (made[1].id, "mine")
    Log(plain_log).append([[event("other", bucket="streamed-images"), event("late", bucket="streamed-films")]])
    with listening(plain, target="webhook:streamed", after=made[0].id) as stream:
        assert [key for _, key in (next(stream), next(stream))] == ["mine", "late"]


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_a_stream_ends_with_its_token(log: Database, start: Start, end: str) -> None:
    Tokens(log).create("kept", ["read"])
    headers = {"Authorization": f"Bearer {Tokens(log).create('lent', ['read'])}"}
    api = start(url_of(log))
    until(lambda: all(api.client.head(URL, headers=headers).status_code == 200 for _ in range(8)), 60)
    with listening(api, headers) as stream:
        Log(log).append([[event("first")]])
        assert next(stream)[1] == "first"
        if end == "revoked":
            Tokens(log).revoke("lent")
        else:
            with log.writing() as connection:
                lent = tables.tokens.update().where(tables.tokens.c.name == "lent")
                connection.execute(lent.values(limits='{"expires_at": 1}'))
        assert next(stream, None) is None
    until(lambda: all(api.client.head(URL, headers=headers).status_code == 401 for _ in range(8)), 60)


def test_a_browser_that_gets_no_event_resumes_where_the_log_was(tmp_path: Path) -> None:
    """A comment has the id of the last event that was looked at: the log is not read again from long ago."""
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    with connected(database, Rule(bucket="none", events=("*",), target=NO_TARGET), ping=1) as (stream, client):
        until(lambda: stream.live, 60)
        other = event("other")
        Log(database).append([[other]])
        received = b""
        while f"id: {other.id}\n\n".encode() not in received:
            part = client.recv(4096)
            assert part, received
            received += part
        assert b"data:" not in received
    database.close()


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


def test_a_stream_limited_to_a_bucket_learns_no_id_of_another_buckets_events(log: Database, start: Start) -> None:
    headers = {"Authorization": f"Bearer {Tokens(log).create('l', ['read'], buckets=['images'])}"}
    mine, other = event("mine"), event("secret", bucket="films")
    api = start(url_of(log))
    until(lambda: all(api.client.head(URL, headers=headers, params=OF_IMAGES).status_code == 200 for _ in range(8)), 60)
    with (
        httpx.Client(base_url=api.url, timeout=60, trust_env=False) as client,
        client.stream("GET", URL, params=OF_IMAGES, headers=headers) as response,
    ):
        Log(log).append([[other]])
        for line in response.iter_lines():
            if line.startswith("id: "):
                last = line.removeprefix("id: ")
                break
    assert other.id not in last
    Log(log).append([[mine]])
    for place, begins in (({"Last-Event-ID": last}, {}), ({}, {"after": last})):
        with listening(api, headers | place, **OF_IMAGES, **begins) as stream:
            assert next(stream) == (mine.id, "mine"), "it resumes after an event that it does not know"
    for unknown in (other.id, "0" * 32):
        refused = problem(api.client.get(URL, headers=headers, params=OF_IMAGES | {"after": unknown}), 400, "bad-value")
        assert "is not in the event log" in refused["detail"], "whether there is such an event is not said either"


def test_a_stream_ends_after_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServerSentEvents, "longest", 0.1)
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    with connected(database, Rule(bucket="*", events=("*",), target=NO_TARGET)) as (_, client):
        received = b""
        while part := client.recv(4096):
            received += part
    assert b"retry: 1000" in received
    assert received.endswith(b"\r\n0\r\n\r\n")
    database.close()


@contextmanager
def connected(database: Database, rule: Rule, ping: int = 15) -> Iterator[tuple[Stream, socket.socket]]:
    """A stream of a broadcaster of its own, and its client's end of the connection."""
    broadcaster = Broadcaster(database)
    stream = broadcaster.stream(StreamQuery(rule, ping, "", SERVER_SENT_EVENTS), 0, chunked=True, number="1")
    with (
        socket.create_server((services.LOOPBACK, 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.settimeout(60)
        broadcaster.admit(server.accept()[0], stream)
        yield stream, client
    until(lambda: len(broadcaster) == 0, 60)


@pytest.mark.slow
@pytest.mark.nightly("a reader that is too slow, listeners of all processes")
def test_a_stream_that_catches_up_buffers_no_more_than_another(tmp_path: Path) -> None:
    database = migrated(f"sqlite:///{tmp_path}/outbox.db")
    made = [event(f"k{number}") for number in range(80)]
    many = [one._replace(record=one.record.replace("{", '{"x":"' + "y" * 100_000 + '",', 1)) for one in made]
    Log(database).append([many])
    broadcaster = Broadcaster(database)
    rule = Rule(bucket="*", events=("*",), target=NO_TARGET)
    query = StreamQuery(rule, 15, many[0].id, SERVER_SENT_EVENTS)
    stream = broadcaster.stream(query, 1, chunked=False, number="1")
    with socket.create_server((services.LOOPBACK, 0)) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)  # else the kernel takes everything at once
        client.settimeout(60)
        client.connect(server.getsockname())
        broadcaster.admit(server.accept()[0], stream)
        until(lambda: stream.waiting > MAX_BUFFERED_BYTES // 4, 60, what="a reader that is too slow")
        assert stream.waiting < MAX_BUFFERED_BYTES + 200_000
        received = b""
        while b'"key":"k79"' not in received:
            assert stream.waiting < MAX_BUFFERED_BYTES + 200_000
            received += client.recv(1 << 20)
    assert [f'"key":"k{number}"'.encode() in received for number in range(1, 80)] == [True] * 79
    database.close()


def test_a_filter_that_no_key_can_match_is_refused(plain: Api) -> None:
    problem(plain.client.get(URL, params={"prefix": "?" * 1025}), 400, "bad-value")


def test_a_clients_header_does_not_change_what_a_path_means(plain: Api) -> None:
    odd = plain.client.get("/v1/events/metrics", headers={"SCRIPT_NAME": "/v1/events"})
    assert "bucketwire_" not in odd.text, "it was answered as /metrics"


def test_a_limited_token_has_a_share_of_the_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(broadcaster, "MAX_STREAMS", 16)
    log = migrated(f"sqlite:///{tmp_path}/outbox.db")
    made = broadcaster.Streams(log)
    tenants = StreamQuery(Rule(bucket="images", events=(), target=NO_TARGET), holder="tenant")
    connections = list[socket.socket]()

    def begin(query: StreamQuery) -> None:
        handed_over = made.begin(query, chunked=False, number="1")
        with socket.create_server((services.LOOPBACK, 0)) as listener:
            connections.append(socket.create_connection(listener.getsockname()))
            handed_over.take(listener.accept()[0])
        connections[-1].settimeout(30)
        assert connections[-1].recv(4) == b"HTTP"

    def begins_again() -> bool:
        try:
            begin(tenants)
        except S3Error:
            return False
        return True

    try:
        begin(tenants)
        begin(tenants)
        with pytest.raises(S3Error, match="SlowDown"):
            begin(tenants)
        for holder in ("", "", "", "another"):
            begin(replace(tenants, holder=holder))
        connections.pop(0).close()
        until(begins_again)
    finally:
        for connection in connections:
            connection.close()
        log.close()
