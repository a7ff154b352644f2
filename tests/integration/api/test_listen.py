"""ListenNotification: what arrives, where, when, and what it costs; `mc watch` and minio-py as they are."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from queue import Queue
from typing import Any
from urllib.parse import quote

import httpx
import orjson
import psutil
import pytest
import sqlalchemy as sa

from app.api.listen import broadcaster
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from app.outbox.log_head import begin_epoch
from tests import services
from tests.integration.api.conftest import S3, Mc, Start, records, url_of
from tests.services import speed, until
from tests.support.api_requests import EVENTS, Listener, body, code, key_of
from tests.support.builders import DELETE, PUT, event
from tests.support.older_state import older_state
from tests.support.properties import times

NIGHTLY = pytest.mark.nightly("a reader that is too slow, listeners of all processes, `mc watch`")


@contextmanager
def listening(s3: S3, query: str = EVENTS, bucket: str = "images", timeout: float = 10) -> Iterator[Listener]:
    """A stream of which the headers have come: from here on it misses nothing."""
    with httpx.Client(timeout=timeout, trust_env=False) as client:
        response = client.send(s3.sign("GET", f"/{bucket}?{query}"), stream=True)
        with closing(response):
            assert response.status_code == 200, response.read()
            yield Listener(response)


@pytest.fixture
def ready(s3: S3) -> S3:
    """With the bucket `images`."""
    assert s3.ask("PUT", "/images").status_code == 200
    return s3


def post(s3: S3, *names: str) -> None:
    s3.api.post(body(*names)).raise_for_status()


def send(s3: S3, *events: Any) -> None:
    s3.api.post(b'{"Records":[%s]}' % b",".join(each.record.encode() for each in events)).raise_for_status()


# --- what arrives


def test_headers_come_at_once_and_events_as_they_are_recorded(ready: S3) -> None:
    began = time.monotonic()
    with listening(ready, f"{EVENTS}&ping=60") as stream:
        assert time.monotonic() - began < 2
        headers = stream.response.headers
        assert headers["content-type"] == "text/event-stream"
        assert headers["cache-control"] == "no-cache"
        assert headers["x-accel-buffering"] == "no"
        odd = "dir a/+%&<é>🎉.txt"
        send(ready, event(quote(odd, safe="")), event("b"))
        [line, _] = [next(stream), next(stream)]
        assert key_of(line) == odd
        assert list(line) == ["Records", "EventId"]
        assert time.monotonic() - began < 3


def test_a_stream_has_the_events_it_asks_for_and_no_others(ready: S3) -> None:
    others = [event("a/1.jpg", bucket="docs"), event("a/1.jpg", name="s3:ObjectAccessed:Head"), event("b/1.jpg"),
              event("a/1.JPG")]  # fmt: skip
    with (
        listening(ready, "events=s3:ObjectCreated:Put&prefix=a%2F&suffix=.jpg") as narrow,
        listening(ready, "events=%2A", bucket="") as wide,
    ):
        send(ready, *others, event("a/2.jpg", name=DELETE), event("a/3.jpg", name=PUT), event("a/4.jpg"))
        assert narrow.keys(2) == ["a/3.jpg", "a/4.jpg"]
        # As below, the making of the bucket `images` may be repeated.
        lines = (line for line in iter(wide.__next__, None) if line["Records"][0]["s3"]["object"]["key"])
        keys = [key_of(line) for line in islice(lines, 7)]
        assert keys == ["a/1.jpg", "a/1.jpg", "b/1.jpg", "a/1.JPG", "a/2.jpg", "a/3.jpg", "a/4.jpg"]


def test_making_and_removing_buckets_is_told_to_who_listens_to_all(ready: S3) -> None:
    query = "events=s3:BucketCreated:*&events=s3:BucketRemoved:*"
    with listening(ready, query, bucket="") as stream:
        ready.ask("PUT", "/new-one").raise_for_status()
        ready.ask("DELETE", "/new-one").raise_for_status()
        # The log was emptied for this test, which is an older state to the API: so the bucket `images` may be repeated.
        records = (next(stream)["Records"][0] for _ in range(3))
        told = list(islice((one for one in records if one["s3"]["bucket"]["name"] == "new-one"), 2))
    assert [one["eventName"] for one in told] == ["s3:BucketCreated:*", "s3:BucketRemoved:*"]


def test_a_stream_pings_as_often_as_it_is_asked_to_or_sends_blanks(ready: S3) -> None:
    with listening(ready, f"{EVENTS}&ping=1") as stream, listening(ready) as old:
        raw = old.response.iter_raw()
        assert b"".join(next(raw) for _ in range(3)) == b"   "
        until(lambda: _ping(stream), 6)


def _ping(stream: Listener) -> bool:
    return next(stream.response.iter_raw()).startswith(b'{"Records":null}\n')


def test_to_a_client_of_http_1_0_a_stream_comes_without_chunks(ready: S3) -> None:
    request = ready.sign("GET", f"/images?{EVENTS}&ping=1")
    with socket.create_connection((services.LOOPBACK, ready.api.port), 10) as connection:
        lines = [f"GET {request.url.raw_path.decode()} HTTP/1.0", *(f"{n}: {v}" for n, v in request.headers.items())]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        received = b""
        while b'{"Records":null}\n' not in received:
            received += connection.recv(4096)
    head, _, rest = received.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower()
    assert rest == b'{"Records":null}\n'


# --- every process, every listener


def test_listeners_of_all_processes_have_every_event_once_and_in_order(ready: S3) -> None:
    """The posts go to whichever process takes them, and so do the streams."""
    with ExitStack() as stack:
        streams = [stack.enter_context(listening(ready)) for _ in range(12)]
        for number in range(20):
            httpx.post(f"{ready.api.url}/v1/events", content=body(f"{number}-a", f"{number}-b")).raise_for_status()
        wanted = [orjson.loads(record)["s3"]["object"]["key"] for record in records(ready.database)][1:]
        assert len(wanted) == 40
        for stream in streams:
            assert stream.keys(40) == wanted
        workers = psutil.Process(ready.api.pid).children()
        taken = [sum(c.status == "ESTABLISHED" for c in worker.net_connections()) for worker in workers]
        assert all(taken), "one process took every stream, so this shows nothing"


def test_who_resumes_has_what_it_missed_and_then_what_is_new(ready: S3) -> None:
    with listening(ready) as stream:
        post(ready, "before", "last")
        last = [next(stream) for _ in range(2)][-1]["EventId"]
    missed = [f"missed/{number}" for number in range(350)]  # more than is read at once
    post(ready, *missed)
    send(ready, event("x", bucket="docs"))
    with listening(ready, f"{EVENTS}&resume-after={last}") as stream:
        assert stream.keys(350) == missed
        post(ready, "new")
        assert stream.keys(1) == ["new"]


def test_a_stream_that_loses_its_database_goes_on_where_it_was(log: Database, start: Start) -> None:
    alone = S3(start(url_of(log), access_key=S3.access_key, secret_key=S3.secret_key), log)
    with listening(alone, bucket="") as stream:
        post(alone, "a")
        assert stream.keys(1) == ["a"]
        _cut_connections(log)
        until(lambda: alone.api.post(body("b")).is_success)
        assert stream.keys(1) == ["b"]


def test_after_a_failover_new_events_at_positions_that_were_read_before_are_streamed(ready: S3) -> None:
    """The older state had forgotten the last events, and its next ones got their positions."""
    with listening(ready) as stream:
        post(ready, "kept")
        assert stream.keys(1) == ["kept"]
        with older_state(ready.database):
            post(ready, "lost/1", "lost/2")
            assert stream.keys(2) == ["lost/1", "lost/2"]
        new = ["new/1", "new/2", "new/3"]
        post(ready, *new)
        with ready.database.writing() as connection:
            begin_epoch(connection, "restored")
        post(ready, "end")
        seen = list[str]()
        while "end" not in seen:
            seen += stream.keys(1)
        assert set(seen) >= set(new)


def _cut_connections(database: Database) -> None:
    database.close()
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"
    with database.reading() as connection:
        connection.execute(sa.text(cut))


# --- what it costs


def test_a_reader_that_is_too_slow_is_told_and_costs_no_memory(ready: S3) -> None:
    log, size = Log(ready.database), 4000
    record = event("x").record
    with slow_reader(ready) as (connection, request), listening(ready, "events=s3:ObjectRemoved:*") as quick:
        connection.sendall(request)
        until(lambda: b"\r\n\r\n" in connection.recv(4096, socket.MSG_PEEK))
        before = memory(ready)
        padded = record.replace('"eventVersion":"2.0"', f'"eventVersion":"{"2" * size}"')
        for start in range(0, broadcaster.MAX_SEQS_BEHIND + 3000, 1000):
            log.append([[event(f"{start + n}")._replace(record=padded) for n in range(1000)]])
        send(ready, event("end", name=DELETE))
        assert quick.keys(1) == ["end"]
        assert memory(ready) - before < 24 << 20
        received, deadline = b"", speed.deadline(20)
        while b'"Dropped"' not in received[-70_000:] and time.monotonic() < deadline:
            received += connection.recv(65536)
    assert b'{"Records":null,"Dropped":{"atMost":' in received
    assert b'"resumeAfter":"' in received


@contextmanager
def slow_reader(s3: S3) -> Iterator[tuple[socket.socket, bytes]]:
    """A connection that takes little before it is read from, and what to send on it."""
    request = s3.sign("GET", f"/images?{EVENTS}")
    lines = [f"GET {request.url.raw_path.decode()} HTTP/1.1", *(f"{n}: {v}" for n, v in request.headers.items())]
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(10)
        connection.connect((services.LOOPBACK, s3.api.port))
        yield connection, "\r\n".join([*lines, "", ""]).encode()


def memory(s3: S3) -> int:
    """Bytes that the API's processes hold."""
    return sum(worker.memory_info().rss for worker in psutil.Process(s3.api.pid).children())


@NIGHTLY
def test_idle_listeners_hold_no_thread_and_little_memory(ready: S3) -> None:
    count = times(250, 1000)
    workers = psutil.Process(ready.api.pid).children()
    with listening(ready):  # the threads are there now
        threads, before = [worker.num_threads() for worker in workers], memory(ready)
    request = ready.sign("GET", f"/images?{EVENTS}&ping=10")
    lines = [f"GET {request.url.raw_path.decode()} HTTP/1.1", *(f"{n}: {v}" for n, v in request.headers.items())]
    with ExitStack() as stack:
        streams = []
        for _ in range(count):
            streams.append(stack.enter_context(socket.create_connection((services.LOOPBACK, ready.api.port), 10)))
            streams[-1].sendall("\r\n".join([*lines, "", ""]).encode())
        for stream in streams:
            assert stream.recv(12) == b"HTTP/1.1 200"
        assert memory(ready) - before < (6 << 20) + count * (30 << 10)
        # Of its 32 threads and what looks into the log a process may have begun none yet.
        assert all(worker.num_threads() <= had + 40 for worker, had in zip(workers, threads, strict=True))
        used = sum(sum(worker.cpu_times()[:2]) for worker in workers)
        time.sleep(1)  # not waiting for anything: the time over which it is measured
        used = sum(sum(worker.cpu_times()[:2]) for worker in workers) - used
        assert used < 0.3
        post(ready, "to all")
        for stream in streams:
            received = b""
            while b"to all" not in received:
                received += stream.recv(65536)
        assert ready.api.client.get("/healthz").status_code == 200


# --- clients as they are


def test_mc_watch_shows_what_happens(ready: S3) -> None:
    for arguments in (("bw/images", "--events", "put,delete", "--suffix", ".jpg"), ("bw",)):
        seen = watched(ready, ready.mc("watch", "--json", *arguments))
        assert seen["events"]["path"].endswith("/images/a.jpg")
        assert seen["events"]["type"] == "s3:ObjectCreated:Put"


def watched(s3: S3, mc: Mc) -> dict[str, Any]:
    """The first event that it shows; nobody says when it has begun to listen, so events come until then."""
    lines: Queue[str] = Queue()
    stdout = mc.child.stdout
    assert stdout is not None
    reader = threading.Thread(target=lambda: [lines.put(line) for line in stdout], daemon=True)
    reader.start()
    try:
        until(lambda: send(s3, event("a.jpg")) or time.sleep(0.1) or not lines.empty(), 20, what="a line of mc watch")
        return dict(orjson.loads(lines.get()))
    finally:
        mc.child.kill()
        reader.join(10)
        mc.stop()


@NIGHTLY
def test_minio_py_listens(ready: S3) -> None:
    found: Queue[dict[str, Any]] = Queue()

    def listen() -> None:
        with ready.minio().listen_bucket_notification("images", prefix="a/", events=["s3:ObjectCreated:*"]) as events:
            found.put(next(events))

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    until(lambda: send(ready, event("b"), event("a/x y")) or time.sleep(0.1) or not found.empty(), 20)
    thread.join(10)
    assert key_of(found.get()) == "a/x y"


# --- what is refused


@pytest.mark.parametrize(
    ("query", "refused", "status"),
    [
        ("events=s3:Nothing", "InvalidArgument", 400),
        ("events=", "InvalidArgument", 400),
        (f"{EVENTS}&prefix=a&prefix=b", "InvalidArgument", 400),
        (f"{EVENTS}&suffix=a&suffix=b", "InvalidArgument", 400),
        (f"{EVENTS}&prefix={'a' * 1025}", "InvalidArgument", 400),
        (f"{EVENTS}&prefix=a%5Cb", "InvalidArgument", 400),
        (f"{EVENTS}&prefix=a%2F..%2Fb", "XMinioInvalidResourceName", 400),
        (f"{EVENTS}&ping=0", "AuthorizationQueryParametersError", 400),
        (f"{EVENTS}&ping=1.5", "AuthorizationQueryParametersError", 400),
        (f"{EVENTS}&resume-after={'0' * 32}", "InvalidArgument", 400),
        (f"{EVENTS}&resume-after=%00", "InvalidArgument", 400),
    ],
)
def test_what_minio_refuses_is_refused(ready: S3, query: str, refused: str, status: int) -> None:
    assert code(ready.ask("GET", f"/images?{query}"), status) == refused


def test_a_bucket_that_is_not_there_cannot_be_listened_to(ready: S3) -> None:
    assert code(ready.ask("GET", f"/nowhere?{EVENTS}"), 404) == "NoSuchBucket"
    for name in ("a" * 300, "a%00b", "%FF", "%2A"):
        assert code(ready.ask("GET", f"/{name}?{EVENTS}"), 400) == "InvalidBucketName"
