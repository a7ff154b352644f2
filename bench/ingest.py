"""Measure intake: single posts and batches over HTTP, each beside its baseline.

    python -m bench.ingest [--seconds 3] [--rounds 5] [--beside MySQL,SQLite]

The API runs as in production: gunicorn with its own options, on loopback, over a PostgreSQL that waits for its disk.
Events are MinIO's, 1.1 KB each, all different; one target has a rule for everything. The baselines:

- INSERT + COMMIT: a psycopg2 loop that inserts the row of one such event and commits, into a table with the same
  indexes, from tuples in memory: no HTTP, no parsing, no rules, no counters;
- a bare view: Flask reads the body and answers, under gunicorn with the same options;
- a view with an INSERT: Flask inserts one row and commits before it answers, under gunicorn with the same options. An
  API in Flask that commits before its answer cannot do less;
- a commit for each request: the same API without group commit, one request after the other over one connection;
- COPY and `execute_values` of 1,000 such rows and a commit, into that table.

The same API over MySQL and SQLite, which wait for the disk as well, is measured beside the one over PostgreSQL.

The two sides of a pair are measured one after the other, several times; a row has the medians of its rounds.
"""

import argparse
import io
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import psycopg2.extras

from bench.load import BATCH, Result, drive, makers
from bench.report import Aim, show
from tests import services
from tests.services.server_process import Server
from tests.support.builders import add_target, migrated

APP = "app.server.wsgi:app"
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
        return [sys.executable, "-m", "gunicorn", "--config", "python:app.server.gunicorn_conf", self.app]

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
    """What is measured, its baseline, and the ratio of their rates that is wanted (None: for comparison only)."""

    what: str
    beside: str
    aim: float | None
    ours: Callable[[], Result]
    baseline: Callable[[], Result]

    def measure(self, rounds: int) -> tuple[dict[str, Any], Aim]:
        """Measure both sides so many times; return a row with the medians, and the ratio."""
        results = [(self.ours(), self.baseline()) for _ in range(rounds)]
        ratio = statistics.median(ours.rate / baseline.rate for ours, baseline in results)
        ours = sorted((ours for ours, _ in results), key=lambda result: result.rate)[rounds // 2]
        row = {
            "what": self.what,
            "beside": self.beside,
            "events/s": ours.rate,
            "its events/s": statistics.median(baseline.rate for _, baseline in results),
            "p50 ms": ours.quantile(0.5),
            "p99 ms": ours.quantile(0.99),
        }
        return row, Aim(ratio, self.aim, self.what, self.beside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="of each pair")
    parser.add_argument("--beside", default="MySQL,SQLite", help="databases to measure beside PostgreSQL")
    options = parser.parse_args()
    post, post_batch, size = makers()

    def driven(api: Api, connections: int, make: Callable[[], bytes], events: int = 1) -> Callable[[], Result]:
        def run() -> Result:
            count, took, latencies = drive(api.port, connections, make, options.seconds)
            return Result(count * events / took, latencies)

        return run

    loads: Mapping[str, tuple[int, Callable[[], bytes], int]] = {
        "single posts, 1 connection": (1, post, 1),
        "single posts, 32 connections": (32, post, 1),
        f"NDJSON of {BATCH:,}, 4 connections": (4, post_batch, BATCH),
    }
    one, concurrent, batches = loads
    with ExitStack() as stack:
        server = stack.enter_context(services.postgres(durable=True))
        postgres, each, bare, inserting = (
            start(stack, server.create_database(f"ingest_{next(_numbers)}"), app)
            for app in (APP, "bench.baseline_single_commit:app", "bench.bare_view:app", "bench.insert_view:app")
        )
        apis = {name: start(stack, new_database(stack, name), APP) for name in options.beside.split(",") if name}
        for api in (postgres, each, bare, inserting, *apis.values()):
            drive(api.port, 32, post, 1)
        drive(postgres.port, 4, post_batch, 4)
        raw = RawInserts(server.dsn(postgres.database_url.rpartition("/")[2]))
        stack.callback(raw.connection.close)

        def raw_run(write: Callable[[Any, Sequence[Any]], None], size: int) -> Callable[[], Result]:
            return lambda: raw.run(write, size, options.seconds)

        def over(api: Api, load: str) -> Callable[[], Result]:
            return driven(api, *loads[load])

        pairs = [
            Pair(one, "INSERT + COMMIT", 0.5, over(postgres, one), raw_run(insert, 1)),
            Pair(concurrent, "a bare Flask view", 0.6, over(postgres, concurrent), over(bare, concurrent)),
            Pair(batches, "COPY", 0.6, over(postgres, batches), raw_run(copy, BATCH)),
            Pair(batches, "execute_values", None, over(postgres, batches), raw_run(values, BATCH)),
            Pair(one, "a bare Flask view", None, over(postgres, one), over(bare, one)),
            *(
                Pair(load, "a Flask view with an INSERT", None, over(postgres, load), over(inserting, load))
                for load in (one, concurrent)
            ),
            Pair(concurrent, "a commit for each request", None, over(postgres, concurrent), over(each, concurrent)),
        ]
        pairs += [
            Pair(f"{name}: {load}", "the same on PostgreSQL", None, over(api, load), over(postgres, load))
            for name, api in apis.items()
            for load in loads
        ]
        measured = [pair.measure(options.rounds) for pair in pairs]
    note = f"Events of {size} bytes; medians of {options.rounds} rounds of {options.seconds:g} s."
    rows, aims = zip(*measured, strict=True)
    show("ingest", "Recording events (PostgreSQL with fsync, unless another database is named)", rows, note, aims=aims)


def new_database(stack: ExitStack, name: str) -> str:
    """Return the URL of a new database that waits for the disk at a commit."""
    if name == "SQLite":
        return f"sqlite:///{services.new_folder('sqlite')}/ingest.db"
    return stack.enter_context(services.mysql(durable=True)).create_database("ingest")


def start(stack: ExitStack, url: str, app: str) -> Api:
    """Start an API over an empty database, with one target that gets every event."""
    database = migrated(url)
    add_target(database, queue_limit=10**9)
    database.close()
    api = Api(url, app)
    stack.enter_context(api)
    api.start()
    return api


if __name__ == "__main__":
    main()
