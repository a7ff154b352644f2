"""Measure intake: single posts and batches over HTTP, beside raw inserts into the same database.

    python -m bench.ingest [--seconds 4] [--rounds 3]

The API runs as in production: gunicorn, 2 processes of 32 threads, on loopback, over a PostgreSQL that waits for its
disk. Events are MinIO's, 1.1 KB each, all different; one target has a rule for everything. `single commit` is the same
API with one transaction per request. The raw inserts write the rows of the same events, 1,000 per commit, into a table
with the same indexes, from tuples in memory: no HTTP, no parsing, no rules, no counters.
"""

import argparse
import io
import itertools
import selectors
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import psycopg2.extras

from bench.report import show
from tests import services
from tests.services.server_process import Server
from tests.support.builders import add_target, migrated

FIXTURE = Path(__file__).parents[1] / "tests/fixtures/minio_webhook_events.jsonl"
BATCH = 1000
_numbers = itertools.count(1)


class Api(Server):
    """The API, served by gunicorn; `app` is its module."""

    name = "api"

    def __init__(self, database_url: str, app: str) -> None:
        self.database_url, self.app = database_url, app
        super().__init__()

    def check(self) -> None:
        """Nothing to check: the server is part of the project."""

    def argv(self) -> Sequence[str]:
        return [sys.executable, "-m", "gunicorn", "--config", "python:app.api.server.gunicorn_conf", self.app]

    def env(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "BUCKETWIRE_DATABASE_URL": self.database_url,
            "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0",
            "BUCKETWIRE_LISTEN": f"127.0.0.1:{self.port}",
            "BUCKETWIRE_DATA_DIR": str(self.folder),
        }

    def ping(self) -> None:
        httpx.get(f"http://127.0.0.1:{self.port}/healthz").raise_for_status()


def envelope() -> tuple[bytes, bytes, int]:
    """Return a real event in two parts, between which a unique request id goes, and its size."""
    line = FIXTURE.read_bytes().splitlines()[0]
    mark = b'"x-amz-request-id":"'
    at = line.index(mark) + len(mark)
    return line[:at], line[at + 16 :], len(line)


def single(head: bytes, tail: bytes) -> bytes:
    number = next(_numbers)
    return (head + b"%016X" % number + tail).replace(b"a.txt", b"dir/%08d.bin" % (number % 100_000))


def record(body: bytes) -> bytes:
    return body[body.index(b'"Records":[') + 11 : -2]


def request(body: bytes, kind: bytes = b"application/json") -> bytes:
    start = b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: " + kind
    return start + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def makers() -> tuple[Callable[[], bytes], Callable[[], bytes], int]:
    """Return functions that make a request of one event and of `BATCH` events in lines, and an event's size."""
    head, tail, size = envelope()

    def post() -> bytes:
        return request(single(head, tail))

    def post_batch() -> bytes:
        lines = b"\n".join(record(single(head, tail)) for _ in range(BATCH))
        return request(lines, b"application/x-ndjson")

    return post, post_batch, size


def drive(port: int, connections: int, make: Callable[[], bytes], seconds: float) -> tuple[int, float, list[float]]:
    """Keep connections busy, one request at a time each; return requests, seconds and sorted latencies.

    One thread with bare sockets, because the cost of a heavy client would be measured too.
    """
    selector = selectors.DefaultSelector()
    waiting: dict[socket.socket, float] = {}
    responses: dict[socket.socket, bytes] = {}
    for _ in range(connections):
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(client, selectors.EVENT_READ)
        client.sendall(make())
        waiting[client] = time.perf_counter()
    began, latencies = time.perf_counter(), []
    while waiting:
        for key, _ in selector.select(30):
            connection: Any = key.fileobj
            responses[connection] = response = responses.get(connection, b"") + connection.recv(65536)
            if not _is_complete(response):
                continue
            now = time.perf_counter()
            assert response.startswith(b"HTTP/1.1 202"), response
            latencies.append(now - waiting.pop(connection))
            del responses[connection]
            if now - began < seconds:
                connection.sendall(make())
                waiting[connection] = now
            else:
                connection.close()
                selector.unregister(connection)
    return len(latencies), time.perf_counter() - began, sorted(latencies)


def _is_complete(response: bytes) -> bool:
    head, divider, body = response.partition(b"\r\n\r\n")
    assert divider or not response.startswith(b"HTTP/1.1 5"), response
    _, _, length = head.lower().partition(b"content-length: ")
    return bool(divider) and len(body) >= int(length.partition(b"\r\n")[0])


class RawInserts:
    """Insert the rows of the log into a copy of the table with the driver alone."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg2.connect(dsn)
        with self.connection, self.connection.cursor() as cursor:
            cursor.execute("SELECT * FROM events ORDER BY seq LIMIT 40000")
            self.rows = cursor.fetchall()

    def run(self, write: Callable[[Any, Sequence[Any]], None], seconds: float) -> tuple[int, float, list[float]]:
        """Return the number of commits and their time."""
        with self.connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS raw; CREATE TABLE raw (LIKE events INCLUDING ALL)")
            self.connection.commit()
            began, count = time.perf_counter(), 0
            for start in range(0, len(self.rows) - BATCH + 1, BATCH):
                write(cursor, self.rows[start : start + BATCH])
                self.connection.commit()
                count += 1
                if time.perf_counter() - began > seconds:
                    break
            return count, time.perf_counter() - began, []


def values(cursor: Any, rows: Sequence[Any]) -> None:
    psycopg2.extras.execute_values(cursor, "INSERT INTO raw VALUES %s", rows, page_size=500)


def copy(cursor: Any, rows: Sequence[Any]) -> None:
    lines = ("\t".join(str(value).replace("\\", "\\\\") for value in row) + "\n" for row in rows)
    cursor.copy_expert("COPY raw FROM STDIN", io.StringIO("".join(lines)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3, help="all sides alternate; the best round of each counts")
    options = parser.parse_args()
    post, post_batch, size = makers()
    with ExitStack() as stack:
        server = stack.enter_context(services.postgres(durable=True))
        single_commit, group_commit = (
            start(stack, server, app) for app in ("bench.baseline_single_commit:app", "app.api.server.wsgi:app")
        )
        for api in (single_commit, group_commit):
            drive(api.port, 32, post, 1)
        drive(group_commit.port, 4, post_batch, 4)
        raw = RawInserts(server.dsn(group_commit.database_url.rpartition("/")[2]))
        stack.callback(raw.connection.close)
        sides: dict[tuple[str, int, int], Callable[[], tuple[int, float, list[float]]]] = {
            ("single posts, single commit", 32, 1): lambda: drive(single_commit.port, 32, post, options.seconds),
            ("single posts, group commit", 32, 1): lambda: drive(group_commit.port, 32, post, options.seconds),
            ("single posts, group commit", 1, 1): lambda: drive(group_commit.port, 1, post, options.seconds),
            (f"lines of {BATCH}", 1, BATCH): lambda: drive(group_commit.port, 1, post_batch, options.seconds),
            (f"lines of {BATCH}", 4, BATCH): lambda: drive(group_commit.port, 4, post_batch, options.seconds),
            ("raw execute_values of 500", 1, BATCH): lambda: raw.run(values, options.seconds),
            ("raw COPY", 1, BATCH): lambda: raw.run(copy, options.seconds),
        }
        rounds = [{side: run() for side, run in sides.items()} for _ in range(options.rounds)]
    table = []
    for name, connections, events in sides:
        results = [sides_of_round[name, connections, events] for sides_of_round in rounds]
        count, took, latencies = max(results, key=lambda result: result[0] / result[1])
        p50, p99 = (latencies[int(len(latencies) * part)] * 1000 if latencies else None for part in (0.5, 0.99))
        row: dict[str, Any] = {"what": name, "connections": connections, "requests/s": count / took}
        table.append(row | {"events/s": count * events / took, "p50 ms": p50, "p99 ms": p99})
    rates = [row["events/s"] for row in table]
    batches = max(rates[3:5])
    note = (
        f"group commit / single commit: {rates[1] / rates[0]:.1f}; batches / raw execute_values: "
        f"{batches / rates[5]:.0%}, / raw COPY: {batches / rates[6]:.0%}; events of {size} bytes; best of "
        f"{options.rounds} rounds"
    )
    show("ingest", "Intake (PostgreSQL, fsync on)", table, note)


def start(stack: ExitStack, server: services.Postgres, app: str) -> Api:
    """Start an API over its own database, with one target that gets every event."""
    url = server.create_database(f"ingest_{next(_numbers)}")
    database = migrated(url)
    add_target(database, queue_limit=10**9)
    database.close()
    api = Api(url, app)
    stack.enter_context(api)
    api.start()
    return api


if __name__ == "__main__":
    main()
