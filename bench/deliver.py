"""Measure one worker's delivery to each target, beside a loop over the raw driver on the same server.

    python -m bench.deliver [--events 20000] [--rounds 3]

The raw loop has its bodies in memory and sends them in batches of the same size by the same bulk operation; the worker
reads the events from a durable PostgreSQL outbox, delivers and settles them. Both alternate, and the best round of each
counts.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg2
import psycopg2.extras
import redis
import sqlalchemy as sa
import urllib3

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox import tables
from app.outbox.delivery.leases import Lease, Leases
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from bench.report import show
from tests import services
from tests.support.builders import add_target, event, migrated, registry
from workers.delivery.partition_worker import PartitionWorker
from workers.delivery.pooled_target import BatchSizer, PooledTarget, observers, policy, schedule, window
from workers.targets import create
from workers.targets.payloads import log as log_envelope
from workers.targets.payloads import records, redis_access
from workers.telemetry.attempt_recorder import AttemptRecorder

BATCH = 500


@dataclass(frozen=True)
class Case:
    """One target, and the raw driver's loop that is its limit."""

    name: str
    type_name: str
    values: Mapping[str, object]
    raw: Callable[[Sequence[Event]], None] | None


def batches(events: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (events[start : start + BATCH] for start in range(0, len(events), BATCH))


def redis_cases(server: services.Redis) -> Iterable[Case]:
    client = redis.Redis(port=server.port)

    def hset(events: Sequence[Event]) -> None:
        for batch in batches([(sent.path, records(sent)) for sent in events]):
            client.hset("raw:hash", mapping=dict(batch))

    def rpush(events: Sequence[Event]) -> None:
        for batch in batches([redis_access(sent) for sent in events]):
            client.rpush("raw:list", *batch)

    address = {"address": f"127.0.0.1:{server.port}"}
    yield Case("Redis hash", "redis", {**address, "key": "hash"}, hset)
    yield Case("Redis list", "redis", {**address, "key": "list", "format": "access"}, rpush)


def postgres_cases(server: services.Postgres) -> Iterable[Case]:
    server.create_database("target")
    dsn = server.dsn("target")
    connection = psycopg2.connect(dsn)
    with connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE raw_ns (key varchar PRIMARY KEY, value jsonb)")
        cursor.execute("CREATE TABLE raw_log (event_time timestamptz NOT NULL, event_data jsonb)")
    upsert = "INSERT INTO raw_ns VALUES %s ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value"

    def upserts(events: Sequence[Event]) -> None:
        for batch in batches([(sent.path, records(sent)) for sent in events]):
            with connection, connection.cursor() as cursor:
                psycopg2.extras.execute_values(cursor, upsert, batch, page_size=BATCH)

    def inserts(events: Sequence[Event]) -> None:
        for batch in batches([("2026-11-21T00:33:56.082Z", records(sent)) for sent in events]):
            with connection, connection.cursor() as cursor:
                psycopg2.extras.execute_values(cursor, "INSERT INTO raw_log VALUES %s", batch, page_size=BATCH)

    settings = {"connection_string": dsn}
    yield Case("PostgreSQL namespace", "postgresql", {**settings, "table": "ns"}, upserts)
    yield Case("PostgreSQL access", "postgresql", {**settings, "table": "log", "format": "access"}, inserts)


def webhook_cases(server: services.Receiver) -> Iterable[Case]:
    pool = urllib3.PoolManager()

    def posts(events: Sequence[Event]) -> None:
        for body in [log_envelope(sent) for sent in events]:
            pool.request("POST", server.url, body=body, headers={"Content-Type": "application/json"})

    yield Case(
        "Webhook, one at a time", "webhook", {"endpoint": server.url, "allow_private": "on", "sync": "on"}, posts
    )


class Deliverer:
    """Deliver every partition of one target, as one worker process does."""

    def __init__(self, database: Database, target: TargetId) -> None:
        targets = registry(database)
        settings = targets.settings(targets.target(target))
        self.leases, self.store = Leases(database, 60_000), SettlementStore(database, 60_000)
        self.row_id = targets.target(target).row_id
        self.adapter = create(target.type, settings)
        self.recorder = AttemptRecorder(database)
        self.pooled = PooledTarget(
            str(target), self.adapter, policy(settings), schedule(settings), window(settings, sync_events=False),
            BatchSizer(BATCH, BATCH), observers=tuple(observers(target, target.arn(""))),
        )  # fmt: skip

    def run(self, partitions: Iterable[int] = range(16)) -> int:
        delivered = 0
        for partition in partitions:
            lease = self.leases.claim(self.row_id, [partition], f"bench-{partition}", now_ms())
            assert lease is not None
            delivered += self.worker(lease).work_off(lambda: False).counts["delivered"]
            self.leases.release(lease)
        return delivered

    def worker(self, lease: Lease) -> PartitionWorker:
        """Return a worker of the lease that records its attempts, as in a worker process."""
        return PartitionWorker(self.store, self.pooled, lease, observers=[self.recorder])

    def close(self) -> None:
        """Close the target."""
        self.adapter.close()
        self.recorder.close()


def fill(database: Database, count: int, first: int = 0) -> list[Event]:
    """Record `count` events of about a kilobyte, each of a different object."""
    events = [event(f"dir/{first + number:07d}/{'x' * 560}") for number in range(count)]
    log = Log(database)
    for start in range(0, count, 1000):
        log.append([events[start : start + 1000]])
    return events


def rewind(database: Database, target: TargetId) -> None:
    """Put the target's cursors back to the start of the log."""
    row = registry(database).target(target).row_id
    with database.writing() as connection:
        connection.execute(tables.cursors.update().where(tables.cursors.c.target_id == row).values(position=0))


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        outbox = stack.enter_context(services.postgres(durable=True))
        database = migrated(outbox.create_database("outbox"))
        stack.callback(database.close)
        cases = [
            *redis_cases(stack.enter_context(services.redis())),
            *postgres_cases(stack.enter_context(services.postgres(durable=True))),
            *webhook_cases(stack.enter_context(services.receiver())),
        ]
        targets = [
            add_target(database, f"t{n}", type_name=case.type_name, values=case.values) for n, case in enumerate(cases)
        ]
        events = fill(database, options.events)
        with database.engine.begin() as connection:
            connection.execute(sa.text("ANALYZE events"))
        for case, target in zip(cases, targets, strict=True):
            slow = case.type_name == "webhook"
            sample, partitions = (events[: len(events) // 16], range(1)) if slow else (events, range(16))
            deliverer = Deliverer(database, target)
            raw_loop = case.raw
            assert raw_loop is not None  # only NATS Streaming, in bench.targets, has no raw loop
            raw, ours = [], []
            for _ in range(options.rounds):
                raw.append(timed(partial(raw_loop, sample)) / len(sample))
                rewind(database, target)
                delivered: list[int] = []
                seconds = timed(lambda: delivered.append(deliverer.run(partitions)))  # noqa: B023 - called at once
                ours.append(seconds / delivered[0])
            deliverer.close()
            rows.append(
                {
                    "target": case.name,
                    "raw loop, events/s": 1 / min(raw),
                    "worker, events/s": 1 / min(ours),
                    "share of the raw loop, %": 100 * min(raw) / min(ours),
                    "cost of the outbox, µs/event": (min(ours) - min(raw)) * 1e6,
                }
            )
    show("deliver", f"Drain and deliver, one worker, batches of {BATCH}, 1 KB events", rows)


if __name__ == "__main__":
    main()
