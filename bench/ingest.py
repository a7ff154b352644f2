"""Measure intake: single posts and batches over HTTP, each beside its baseline.

    python -m bench.ingest [--seconds 3] [--rounds 5]

The API runs as in production: gunicorn with its own options, on loopback, over a PostgreSQL that waits for its disk.
Events are MinIO's, 1.1 KB each, all different; one target has a rule for everything. The baselines:

- INSERT + COMMIT: a psycopg2 loop that inserts the row of one such event and commits, into a table with the same
  indexes, from tuples in memory: no HTTP, no parsing, no rules, no counters;
- a bare view: Flask reads the body and answers, under gunicorn with the same options;
- a commit for each request: the same API without group commit;
- COPY and `execute_values` of 1,000 such rows and a commit, into that table.

The two sides of a pair are measured one after the other, several times; a row has the medians of its rounds.
"""

import argparse
import io
import itertools
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Result:
    """One measurement: events per second, and the sorted latencies of the requests."""

    rate: float
    latencies: Sequence[float] = ()

    def quantile(self, part: float) -> float | None:
        """Return a latency in milliseconds."""
        return self.latencies[int(len(self.latencies) * part)] * 1000 if self.latencies else None


class RawInserts:
    """Insert the rows of the log into a copy of the table with the driver alone."""

    def __init__(self, dsn: str) -> None:
        self.connection = psycopg2.connect(dsn)
        with self.connection, self.connection.cursor() as cursor:
            cursor.execute("SELECT * FROM events ORDER BY seq LIMIT 40000")
            self.rows = cursor.fetchall()

    def run(self, write: Callable[[Any, Sequence[Any]], None], size: int, seconds: float) -> Result:
        """Write and commit `size` rows at a time."""
        with self.connection.cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS raw; CREATE TABLE raw (LIKE events INCLUDING ALL)")
            self.connection.commit()
            began, count = time.perf_counter(), 0
            for start in range(0, len(self.rows) - size + 1, size):
                write(cursor, self.rows[start : start + size])
                self.connection.commit()
                count += 1
                if time.perf_counter() - began > seconds:
                    break
            return Result(count * size / (time.perf_counter() - began))


def insert(cursor: Any, rows: Sequence[Any]) -> None:
    cursor.execute(f"INSERT INTO raw VALUES ({', '.join(['%s'] * len(rows[0]))})", rows[0])


def values(cursor: Any, rows: Sequence[Any]) -> None:
    psycopg2.extras.execute_values(cursor, "INSERT INTO raw VALUES %s", rows, page_size=500)


def copy(cursor: Any, rows: Sequence[Any]) -> None:
    lines = ("\t".join(str(value).replace("\\", "\\\\") for value in row) + "\n" for row in rows)
    cursor.copy_expert("COPY raw FROM STDIN", io.StringIO("".join(lines)))


@dataclass(frozen=True)
class Pair:
    """What is measured, its baseline, and the ratio of their rates that is wanted (0: none)."""

    what: str
    beside: str
    aim: float
    ours: Callable[[], Result]
    baseline: Callable[[], Result]

    def row(self, rounds: int) -> dict[str, Any]:
        """Measure both sides so many times, and return the medians."""
        results = [(self.ours(), self.baseline()) for _ in range(rounds)]
        ratio = statistics.median(ours.rate / baseline.rate for ours, baseline in results)
        ours = sorted((ours for ours, _ in results), key=lambda result: result.rate)[rounds // 2]
        return {
            "ratio": f"{ratio:.0%}",
            "aim": f"{self.aim:.0%}" if self.aim else "",
            "met": ("yes" if ratio >= self.aim else "NO") if self.aim else "",
            "what": self.what,
            "of the rate of": self.beside,
            "events/s": ours.rate,
            "its events/s": statistics.median(baseline.rate for _, baseline in results),
            "p50 ms": ours.quantile(0.5),
            "p99 ms": ours.quantile(0.99),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of each pair")
    options = parser.parse_args()
    post, post_batch, size = makers()

    def driven(api: Api, connections: int, make: Callable[[], bytes], events: int = 1) -> Callable[[], Result]:
        def run() -> Result:
            count, took, latencies = drive(api.port, connections, make, options.seconds)
            return Result(count * events / took, latencies)

        return run

    with ExitStack() as stack:
        server = stack.enter_context(services.postgres(durable=True))
        api, each, bare = (
            start(stack, server, app)
            for app in ("app.api.server.wsgi:app", "bench.baseline_single_commit:app", "bench.bare_view:app")
        )
        for one in (api, each, bare):
            drive(one.port, 32, post, 1)
        drive(api.port, 4, post_batch, 4)
        raw = RawInserts(server.dsn(api.database_url.rpartition("/")[2]))
        stack.callback(raw.connection.close)

        def raw_run(write: Callable[[Any, Sequence[Any]], None], size: int) -> Callable[[], Result]:
            return lambda: raw.run(write, size, options.seconds)

        one, many = "single posts, {} connection{}".format, f"NDJSON of {BATCH:,}, {{}} connections".format
        pairs = [
            Pair(one(1, ""), "INSERT + COMMIT", 0.5, driven(api, 1, post), raw_run(insert, 1)),
            Pair(one(32, "s"), "a bare Flask view", 0.6, driven(api, 32, post), driven(bare, 32, post)),
            Pair(many(4), "COPY", 0.6, driven(api, 4, post_batch, BATCH), raw_run(copy, BATCH)),
            Pair(many(4), "execute_values", 0, driven(api, 4, post_batch, BATCH), raw_run(values, BATCH)),
            Pair(one(1, ""), "a bare Flask view", 0, driven(api, 1, post), driven(bare, 1, post)),
            Pair(one(32, "s"), "a commit for each request", 0, driven(api, 32, post), driven(each, 32, post)),
        ]
        table = [pair.row(options.rounds) for pair in pairs]
    note = f"Events of {size} bytes; medians of {options.rounds} rounds of {options.seconds:g} s."
    show("ingest", "Recording events (PostgreSQL, fsync on)", table, note)


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
