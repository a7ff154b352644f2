"""Measure the console's pages and the search of the log over a large outbox: server time of each, p50 and p99.

    python -m bench.console [--millions 10] [--rounds 50] [--database URL]

The outbox is a PostgreSQL in a temporary folder with 50 targets, 100,000 dead letters, the time series of 90 days and
the attempts of each target; a fifth of the targets lags. Ten million events take about 8 GB of disk, which is free
again afterwards. With `--database` it is an empty PostgreSQL database of yours (postgresql+psycopg2://…), which is
filled the first time and measured again later, with new samples for its curves. Each page and each search is asked for
in this process, as gunicorn would, `--rounds` times by turns; the first round is not counted. A search page that ends
early says so, and says where it goes on: the column `found`.
"""

import argparse
import math
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from flask.testing import FlaskClient

from app.config.settings import Settings
from app.outbox import upkeep
from app.outbox.engine.database import now_ms
from app.server.application import create_app
from bench import console_data as data
from bench.console_data import Filled, fill
from bench.report import Aim, show
from tests import services
from tests.services.sql import Postgres
from tests.support.builders import migrated

PAGE, SEARCH = 200, 300  # ms


class LargePostgres(Postgres):
    """One with the buffers of a small production server."""

    def argv(self) -> Sequence[str | Path]:
        return [*super().argv(), "-c", "shared_buffers=1GB", "-c", "max_wal_size=8GB", "-c", "work_mem=16MB"]


@dataclass
class Asked:
    """What is asked for, and how long each answer took (ms)."""

    what: str
    path: str
    aim: int
    times: list[float]
    complete: str = ""


def at(ms: int) -> str:
    """Write a time as the API takes it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat().replace("+00:00", "Z")


def questions(filled: Filled) -> list[Asked]:
    """Return every page of the console, and the shapes of a search."""
    target = "webhook:t0"
    hour, middle = 3_600_000, (filled.began + filled.ended) // 2
    pages = {
        "overview": "",
        "target, 15 minutes": "targets/webhook/t0",
        "target, 24 hours": "targets/webhook/t0?period=24h",
        "target, 30 days": "targets/webhook/t0?period=30d",
        "target, its live part": "targets/webhook/t0?live=1",
        "events": "events",
        "events, followed": "events?follow=1",
        "events of a target": f"events?target={target}",
        "events, pending at a target": f"events?state=pending&target={target}",
        "an event that is dead": f"events/{filled.dead_id}",
        "an object's history": f"events?bucket=bucket-1&key={data.BUSY_KEY}",
        "dead letters": "dead-letters",
        "dead letters of a target": f"dead-letters?target={target}",
        "dead letters, rare prefix": f"dead-letters?prefix={data.RARE_PREFIX}",
        "dead letters, a reason": "dead-letters?reason=quota",
        "dead letters, last page": "dead-letters?after=99900",
        "retries": "retries",
        "retries of a target": f"retries?target={target}",
        "retries, rare prefix": f"retries?prefix={data.RARE_PREFIX}",
        "rules": "rules",
        "replays": "replays",
        "replays, preview": f"replays?step=preview&target={target}&bucket=bucket-7",
        "reconciliations": "reconciliations",
        "workers": "workers",
        "tokens": "tokens",
        "audit log": "audit",
        "audit log of a target": "audit?resource=target:webhook:t7",
    }
    searches: dict[str, dict[str, Any]] = {
        "newest": {"limit": 100},
        "newest 1,000": {"limit": 1000},
        "a bucket": {"bucket": "bucket-7"},
        "an event name": {"events": "s3:ObjectRemoved:*"},
        "a target": {"target": target},
        "a common prefix": {"prefix": "photos/2026/ab"},
        "a rare prefix": {"prefix": data.RARE_PREFIX},
        "a prefix of nothing": {"prefix": "none/"},
        "a bucket with one event": {"bucket": data.RARE_BUCKET},
        "a bucket with one event, in its minute": {
            "bucket": data.RARE_BUCKET, "since": at(middle - 30_000), "before": at(middle + 30_000),
        },
        "an event name of nothing": {"events": "s3:ObjectRestore:*"},
        "the oldest hour": {"since": at(filled.began), "before": at(filled.began + hour)},
        "an hour in the middle": {"since": at(middle), "before": at(middle + hour)},
        "before the log": {"before": at(filled.began)},
        "after the log": {"since": at(filled.ended + hour)},
        "pending at any target": {"state": "pending"},
        "pending at a target": {"state": "pending", "target": target},
        "pending at a target that has delivered all": {"state": "pending", "target": "webhook:t1"},
        "parked at any target": {"state": "parked"},
        "dead at any target": {"state": "dead"},
        "dead at a target": {"state": "dead", "target": target},
        "dead at a target, rare prefix": {"state": "dead", "target": target, "prefix": data.RARE_PREFIX},
        "dead, in a bucket with none": {"state": "dead", "bucket": data.RARE_BUCKET},
        "settled at a target": {"state": "settled", "target": target},
        "an object's history": {"bucket": "bucket-1", "key": data.BUSY_KEY},
        "the history of no object": {"bucket": "bucket-1", "key": "none"},
    }  # fmt: skip
    asked = [Asked(f"page: {name}", f"/console/{path}", PAGE, []) for name, path in pages.items()]
    asked += [
        Asked(f"search: {name}", f"/v1/events?{urlencode(query)}", SEARCH, []) for name, query in searches.items()
    ]
    asked.append(Asked("an event by its id", f"/v1/events/{filled.dead_id}", SEARCH, []))
    asked.append(Asked("an unknown id", f"/v1/events/{'0' * 32}", SEARCH, []))
    return asked


def ask(client: FlaskClient, one: Asked, *, counted: bool) -> None:
    """Ask for it once."""
    began = time.perf_counter()
    answer = client.get(one.path, base_url="http://localhost")
    content = answer.get_data()
    took = 1000 * (time.perf_counter() - began)
    if answer.status_code not in (200, 404):
        raise RuntimeError(f"{one.path}: {answer.status_code} {content[:500]!r}")
    if counted:
        one.times.append(took)
    if one.path.startswith("/v1/events?"):
        found = answer.get_json()
        one.complete = f"{len(found['events'])} found" + (", to be continued" if found.get("next") else "")


def percentile(times: Sequence[float], share: float) -> float:
    """Return the least of the times within which this share of them is."""
    return sorted(times)[max(0, math.ceil(share * len(times)) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--database", default="", help="an empty PostgreSQL database, or one that this has filled")
    options = parser.parse_args()
    with ExitStack() as stack:
        broker = stack.enter_context(services.redis())
        url = options.database or stack.enter_context(LargePostgres().start()).create_database("outbox")
        database = migrated(url, data.PARTITIONS)
        filled = fill(database, options.millions)
        upkeep.record_heartbeat(database, upkeep.DRAIN, now_ms())
        settings = {
            "BUCKETWIRE_DATABASE_URL": url, "BUCKETWIRE_BROKER_URL": broker.url,
            "BUCKETWIRE_DATA_DIR": str(services.new_folder("console")),
        }  # fmt: skip
        app = create_app(Settings.from_environ(settings))
        client, asked = app.test_client(), questions(filled)
        for number in range(options.rounds + 1):
            for one in asked:
                ask(client, one, counted=number > 0)
        app.extensions["bucketwire"].database.close()
        database.close()
    rows = [
        {
            "what": one.what, "p50, ms": statistics.median(one.times), "p99, ms": percentile(one.times, 0.99),
            "aim, ms": one.aim, "met": "yes" if percentile(one.times, 0.99) <= one.aim else "NO",
            "found": one.complete,
        }
        for one in asked
    ]  # fmt: skip
    worst = {aim: max(percentile(one.times, 0.99) for one in asked if one.aim == aim) for aim in (PAGE, SEARCH)}
    aims = [
        Aim(worst[PAGE], PAGE, "the slowest page of the console, p99", unit="ms", most=True),
        Aim(worst[SEARCH], SEARCH, "the slowest search, p99", unit="ms", most=True),
    ]
    title = f"Server time over {filled.events:,} events, {data.TARGETS} targets, {data.DEAD_LETTERS:,} dead letters"
    show("console", title, rows, f"{options.rounds} rounds", aims=aims)


if __name__ == "__main__":
    main()
