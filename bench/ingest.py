"""Taking events: single posts and batches over HTTP, beside what the database itself can take.

    python -m bench.ingest [--seconds 8]

The API runs as in production: gunicorn, 2 processes of 32 threads, on loopback, over a PostgreSQL that waits for its
disk. Events are MinIO's, 1.1 KB each, none like another; one target with a rule for everything. `one commit each` is
the same API with a transaction for each request. The raw inserts write the rows of the same events, 1,000 for each
commit, into a table with the same indexes, from ready-made tuples: no HTTP, no parsing, no rules, no counting.
"""

import argparse
import io
import itertools
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import psycopg2.extras

from bench.report import show
from tests import services
from tests.builders import add_target, migrated
from tests.services.child import Server

FIXTURE = Path(__file__).parents[1] / "tests/fixtures/minio_webhook_events.jsonl"
BATCH = 1000
_numbers = itertools.count(1)


class Api(Server):
    """The API as gunicorn serves it; `app` is the module that holds it."""

    name = "api"

    def __init__(self, database_url: str, app: str) -> None:
        self.database_url, self.app = database_url, app
        super().__init__()

    def check(self) -> None:
        """It is ours."""

    def argv(self) -> Sequence[str]:
        return [sys.executable, "-m", "gunicorn", "--config", "python:app.api.gunicorn_conf", self.app]

    def env(self) -> dict[str, str]:
        return {
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "BUCKETWIRE_DATABASE_URL": self.database_url,
            "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/0",
            "BUCKETWIRE_LISTEN": f"127.0.0.1:{self.port}",
            "BUCKETWIRE_VAR": str(self.folder),
        }

    def ping(self) -> None:
        httpx.get(f"http://127.0.0.1:{self.port}/healthz").raise_for_status()


def envelope() -> tuple[bytes, bytes, bytes]:
    """A real event, cut where its number goes: the request's id makes it unlike any other."""
    line = FIXTURE.read_bytes().splitlines()[0]
    mark = b'"x-amz-request-id":"'
    at = line.index(mark) + len(mark)
    return line[:at], line[at + 16 :], line


def single(head: bytes, tail: bytes) -> bytes:
    number = next(_numbers)
    return (head + b"%016X" % number + tail).replace(b"a.txt", b"dir/%08d.bin" % (number % 100_000))


def record(body: bytes) -> bytes:
    return body[body.index(b'"Records":[') + 11 : -2]


def request(body: bytes, kind: bytes = b"application/json") -> bytes:
    start = b"POST /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: " + kind
    return start + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def drive(port: int, connections: int, make: Callable[[], bytes], seconds: float) -> tuple[int, float, list[float]]:
    """Keep `connections` busy, each sending its next request when it has its answer: requests, seconds, latencies.

    One thread with bare sockets, because a client that works as hard as the server would be measured with it.
    """
    chooser = selectors.DefaultSelector()
    waiting: dict[socket.socket, float] = {}
    answers: dict[socket.socket, bytes] = {}
    for _ in range(connections):
        opened = socket.create_connection(("127.0.0.1", port))
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        chooser.register(opened, selectors.EVENT_READ)
        opened.sendall(make())
        waiting[opened] = time.perf_counter()
    began, latencies = time.perf_counter(), []
    while waiting:
        for key, _ in chooser.select(30):
            connection: Any = key.fileobj
            answers[connection] = answer = answers.get(connection, b"") + connection.recv(65536)
            if not _whole(answer):
                continue
            now = time.perf_counter()
            assert answer.startswith(b"HTTP/1.1 202"), answer
            latencies.append(now - waiting.pop(connection))
            del answers[connection]
            if now - began < seconds:
                connection.sendall(make())
                waiting[connection] = now
            else:
                connection.close()
                chooser.unregister(connection)
    return len(latencies), time.perf_counter() - began, sorted(latencies)


def _whole(answer: bytes) -> bool:
    head, divider, body = answer.partition(b"\r\n\r\n")
    assert divider or not answer.startswith(b"HTTP/1.1 5"), answer
    _, _, length = head.lower().partition(b"content-length: ")
    return bool(divider) and len(body) >= int(length.partition(b"\r\n")[0])


def raw(dsn: str, seconds: float) -> Iterator[tuple[str, int, float]]:
    """The rows of the log as it is now, inserted into a copy of the table by the driver alone."""
    with psycopg2.connect(dsn) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT * FROM events ORDER BY seq LIMIT 40000")
        rows = cursor.fetchall()
        for name, write in (("execute_values of 500", _values), ("COPY", _copy)):
            cursor.execute("DROP TABLE IF EXISTS raw; CREATE TABLE raw (LIKE events INCLUDING ALL)")
            connection.commit()
            began, count = time.perf_counter(), 0
            for start in range(0, len(rows), BATCH):
                write(cursor, rows[start : start + BATCH])
                connection.commit()
                count += len(rows[start : start + BATCH])
                if time.perf_counter() - began > seconds:
                    break
            yield name, count, time.perf_counter() - began


def _values(cursor: Any, rows: Sequence[Any]) -> None:
    psycopg2.extras.execute_values(cursor, "INSERT INTO raw VALUES %s", rows, page_size=500)


def _copy(cursor: Any, rows: Sequence[Any]) -> None:
    lines = ("\t".join(str(value).replace("\\", "\\\\") for value in row) + "\n" for row in rows)
    cursor.copy_expert("COPY raw FROM STDIN", io.StringIO("".join(lines)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=8)
    seconds = parser.parse_args().seconds
    head, tail, line = envelope()
    table: list[dict[str, Any]] = []

    def row(name: str, connections: int, requests: int, events: int, took: float, latencies: Sequence[float]) -> None:
        at = [latencies[int(len(latencies) * part)] * 1000 for part in (0.5, 0.99)] if latencies else [0.0, 0.0]
        table.append(
            {"what": name, "connections": connections, "requests/s": requests / took, "events/s": events / took,
             "p50 ms": at[0], "p99 ms": at[1]}
        )  # fmt: skip

    def post() -> bytes:
        return request(single(head, tail))

    def post_batch() -> bytes:
        lines = b"\n".join(record(single(head, tail)) for _ in range(BATCH))
        return request(lines, b"application/x-ndjson")

    with services.postgres(durable=True) as server:
        for name, app, connections in (
            ("one commit each", "bench.one_commit_each:app", 32),
            ("group commit", "app.api.wsgi:app", 32),
            ("group commit", "app.api.wsgi:app", 1),
        ):
            with _api(server, app) as api:
                drive(api.port, connections, post, 1)
                count, took, latencies = drive(api.port, connections, post, seconds)
            row(f"single posts, {name}", connections, count, count, took, latencies)
        for connections in (1, 4):
            with _api(server, "app.api.wsgi:app") as api:
                drive(api.port, connections, post_batch, 1)
                count, took, latencies = drive(api.port, connections, post_batch, seconds)
                database = api.database_url.rpartition("/")[2]
            row(f"lines of {BATCH}", connections, count, count * BATCH, took, latencies)
        for name, count, took in raw(server.dsn(database), seconds):
            row(f"raw {name}", 1, count // BATCH, count, took, [])
    rates = [entry["events/s"] for entry in table]
    note = (
        f"group commit / one commit each: {rates[1] / rates[0]:.1f}; batches / raw execute_values: "
        f"{max(rates[3:5]) / rates[5]:.0%}, / raw COPY: {max(rates[3:5]) / rates[6]:.0%}; events of {len(line)} bytes"
    )
    show("ingest", "Taking events (PostgreSQL, fsync on)", table, note)


def _api(server: services.Postgres, app: str) -> Api:
    url = server.create_database(f"ingest_{next(_numbers)}")
    database = migrated(url)
    add_target(database, queue_limit=10**9)
    database.close()
    return Api(url, app).start()


if __name__ == "__main__":
    main()
