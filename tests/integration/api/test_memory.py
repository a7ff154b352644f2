"""What requests cost in memory: bounded for each, and for all of a process together."""

from __future__ import annotations

import gzip
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.api.request_body import LARGE, Pool
from app.api.routes import events
from app.console.views.exports import MAX_BYTES
from app.events.limits import MAX_EVENT_BYTES
from app.events.parsing import Parsed, parse
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.server.application import create_app
from tests import services
from tests.integration.api.conftest import Api, Start, keys, problem, settings, url_of
from tests.support.builders import event, long_event, migrated
from tests.support.growing_bodies import bodies_that_grow, growing
from tests.support.process_memory import growth
from tests.support.pulled_events import Sources, reject

LOW = "16MiB"  # limit of a body: a process then holds 256 MiB for requests


def body(key: str) -> bytes:
    """A body of one event."""
    return event(key).record.encode()


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
    for content, headers in bodies_that_grow():
        assert httpx.post(f"{api.url}/v1/events", content=content, headers=headers, timeout=60).status_code == 413
    assert keys(log) == ["beside", "long"]


def test_bodies_that_unpack_at_the_same_time_share_a_bounded_memory(log: Database, start: Start) -> None:
    api = start(url_of(log), processes=1, body_limit=LOW)
    assert api.post(body("first")).status_code == 202
    bomb = gzip.compress(growing("x", 15_000_000))

    def send(_: int) -> httpx.Response:
        return httpx.post(f"{api.url}/v1/events", content=bomb, headers={"content-encoding": "gzip"}, timeout=60)

    with growth(api.pid) as held, ThreadPoolExecutor(40) as threads:
        large = [threads.submit(send, number) for number in range(40)]
        small = [api.post(body(f"small-{number}")).status_code for number in range(20)]
        answers = [each.result() for each in large]
    assert small == [202] * 20  # they never wait for memory
    assert {answer.status_code for answer in answers} <= {202, 503}
    for answer in answers:
        if answer.status_code == 503:
            assert problem(answer, 503, "overloaded")
            assert int(answer.headers["retry-after"]) > 0
    assert held.grown < 400
    assert api.post(bomb, content_encoding="gzip").status_code == 202
    # It is given back, too.
    with growth(api.pid) as after:
        pass
    assert (after.before - held.before) >> 20 < 100


def test_rejected_messages_that_grow_are_tried_again_one_at_a_time(log: Database, start: Start) -> None:
    Sources(log).put("kafka", {"brokers": "127.0.0.1:9", "topic": "events"}, name="minio")
    reject(log, *[gzip.compress(growing("<", 60_000_000))] * 8)
    api = start(url_of(log), processes=1)
    assert api.post(body("first")).status_code == 202

    def retry(number: int) -> int:
        path = f"/v1/sources/kafka/minio/rejected/{number}/retry"
        return httpx.post(f"{api.url}{path}", json={}, timeout=60).status_code

    with growth(api.pid) as held, ThreadPoolExecutor(8) as threads:
        statuses = list(threads.map(retry, range(1, 9)))
    assert set(statuses) <= {409, 503}
    assert 409 in statuses
    assert held.grown < 500


def test_one_large_body_is_parsed_at_a_time_and_small_ones_overtake_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/outbox.db"
    log = migrated(database)
    app = create_app(settings(database))
    large, begun, go_on, at_once = growing("x", LARGE), list[int](), threading.Event(), threading.Semaphore(1)

    def parsed(body: bytes, *arguments: Any, **more: Any) -> Parsed:
        if len(body) > LARGE:
            assert at_once.acquire(blocking=False), "another large body is being parsed"
            begun.append(len(body))
            assert go_on.wait(60)
            at_once.release()
        return parse(body, *arguments, **more)

    monkeypatch.setattr(events, "parse", parsed)

    def post(content: bytes, **headers: str) -> int:
        return app.test_client().post("/v1/events", data=content, headers=headers).status_code

    with ThreadPoolExecutor(4) as threads:
        packed = gzip.compress(large)
        answers = [threads.submit(post, large) for _ in range(2)]
        answers += [threads.submit(post, packed, **{"Content-Encoding": "gzip"}) for _ in range(2)]
        try:
            services.until(lambda: begun)
            usual = b"\n".join([long_event(f"batch-{number}", 1000).record.encode() for number in range(1000)])
            assert post(usual) == 202
            assert post(gzip.compress(usual), **{"Content-Encoding": "gzip"}) == 202
            assert post(body("small")) == 202
            assert begun == [len(large)]
            assert not any(answer.done() and answer.result() == 202 for answer in answers)
        finally:
            go_on.set()
        statuses = [answer.result() for answer in answers]
    assert set(statuses) <= {202, 503}, "one that waits for too long is refused"
    assert (statuses.count(202), 202 in statuses) == (len(begun), True)
    assert post(large) == 202
    log.close()


def test_a_declaration_of_very_many_values_is_refused_for_little(plain: Api) -> None:
    """Each list takes 60 bytes once it is parsed."""
    body = b'{"targets":[' + b"[]," * 5_000_000 + b"[]]}"
    with growth(plain.pid) as held:
        refused = plain.client.post("/v1/declaration", content=body, headers={"content-type": "application/json"})
    assert "640000 JSON objects and arrays" in problem(refused, 413, "too-large")["detail"]
    assert held.grown < 150


@contextmanager
def unread(api: Api, path: str, number: int) -> Iterator[list[socket.socket]]:
    """Ask for something over so many connections, and read none of the answers."""
    with ExitStack() as stack:
        connections = []
        for _ in range(number):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(30)
            connection.connect((services.LOOPBACK, api.port))
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {services.LOOPBACK}\r\n\r\n".encode())
            connections.append(connection)
        yield connections


def begins(connection: socket.socket) -> bytes:
    """The status of an answer, which stays unread."""
    head = b""
    while len(head) < 12:
        head = connection.recv(12, socket.MSG_PEEK)
    return head[9:12]


def test_answers_that_nobody_reads_share_a_bounded_memory(log: Database, start: Start) -> None:
    api = start(url_of(log), processes=1, body_limit=LOW)
    Log(log).append([[long_event("k", 1_000_000) for _ in range(15)]])
    history = "/v1/events?bucket=images&key=k"
    assert api.post(body("first")).status_code == 202
    with growth(api.pid) as held:
        with unread(api, history, 40) as connections:
            statuses = [begins(connection) for connection in connections]
            assert set(statuses) == {b"200", b"503"}
            assert api.post(body("beside")).status_code == 202
        services.until(lambda: api.client.get(history).status_code == 200, 30)
    assert held.grown < 400


def test_streams_that_nobody_reads_share_a_bounded_memory_for_large_events(log: Database, start: Start) -> None:
    api = start(url_of(log), processes=1)
    assert api.post(body("first")).status_code == 202
    with growth(api.pid) as held, unread(api, "/v1/events/stream", 25) as connections:
        assert {begins(connection) for connection in connections} == {b"200"}
        with api.client.stream("GET", "/v1/events/stream") as reader:
            Log(log).append([[long_event("large", 18_000_000)]])
            Log(log).append([[event("after")]])
            lines = reader.iter_lines()
            assert '"key":"after"' in next(line for line in lines if '"key":"after"' in line)
    assert held.grown < 350


def test_the_kernel_holds_little_of_pipelined_answers_that_nobody_reads(plain: Api) -> None:
    request = f"GET /openapi.json HTTP/1.1\r\nHost: {services.LOOPBACK}\r\n\r\n".encode()
    with unread(plain, "/openapi.json", 1) as [connection]:
        connection.sendall(request * 200)
        port = connection.getsockname()[1]
        services.until(lambda: _queued(plain.port, port) == _queued(plain.port, port) > 0)
        assert _queued(plain.port, port) < 1 << 20


def _queued(local: int, remote: int) -> int:
    """How many bytes the kernel holds that were sent on a connection of this machine."""
    ends = f":{local:04X} ", f":{remote:04X} "
    for line in Path("/proc/net/tcp").read_text().splitlines():
        if ends[0] in line and line.split()[1].endswith(ends[0].strip()) and line.split()[2].endswith(ends[1].strip()):
            return int(line.split()[4].partition(":")[0], 16)
    return 0


@pytest.mark.parametrize("path", ["/v1/events?bucket=images&key=k&limit=1000", "/v1/dead-letters?limit=1000"])
def test_many_small_lists_at_once_are_all_answered(plain: Api, plain_log: Database, path: str) -> None:
    Log(plain_log).append([[event("k")]])

    def ask(_: int) -> Any:
        return httpx.get(f"{plain.url}{path}", timeout=60).status_code

    with ThreadPoolExecutor(12) as threads:
        assert set(threads.map(ask, range(60))) == {200}


def test_pages_and_exports_of_the_console_have_a_share_of_the_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    database = f"sqlite:///{tmp_path}/outbox.db"
    log = migrated(database)
    Log(log).append([[long_event("k", 1_000_000)]])
    app = create_app(settings(database))
    taken = list[int]()
    monkeypatch.setattr(Pool, "take", lambda _pool, size: taken.append(size))
    monkeypatch.setattr(Pool, "give", lambda _pool, size: taken.append(-size))
    client = app.test_client()
    with client.get("/v1/events?bucket=images&key=k") as history:
        [recorded] = history.get_json()["events"]
    assert sum(taken) == 0
    assert max(taken) >= 5_000_000, "what is read from the database, and the answer"
    for path, least in (
        (f"/console/events/{recorded['id']}", 5_000_000),
        ("/console/export/events.csv", 5 * MAX_BYTES),
        ("/v1/events?limit=1000", 10_000_000),
        ("/v1/audit?limit=1000", 10_000_000),
    ):
        taken.clear()
        with client.get(path) as answer:
            assert answer.status_code == 200, answer.text[:200]
        assert (sum(taken), max(taken) >= least) == (0, True), path
    log.close()
