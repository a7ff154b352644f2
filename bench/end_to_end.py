"""Measure the way from a full outbox through beat, broker and workers to the target, beside one Celery task per event.

    python -m bench.end_to_end [--events 50000] [--tasks 4000] [--backlog 1000000]

Both sides have two pool processes, PostgreSQL with fsync, a Redis as broker and one as target. --backlog also compares
the rate of a backlog of that many events with the rate of 10,000, both delivered by one worker.
"""

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg2
import redis
import sqlalchemy as sa

from app.outbox import tables
from bench.deliver import Deliverer, fill, rewind, timed
from bench.report import show
from tests import services
from tests.support.builders import add_target, migrated
from tests.support.service_processes import system


def service_rate(stack: ExitStack, events: int) -> float:
    """Return events per second from the workers' start to the last settlement."""
    outbox, broker, target = (
        stack.enter_context(services.postgres(durable=True)),
        stack.enter_context(services.redis()),
        stack.enter_context(services.redis()),
    )
    url = outbox.create_database("outbox")
    service = stack.enter_context(system(url, broker.url, start=False))
    values = {"address": f"127.0.0.1:{target.port}", "key": "log", "format": "access"}
    add_target(service.database, type_name="redis", values=values)
    fill(service.database, events)
    for role in (service.drain, *service.workers):
        role.start()
    client = redis.Redis(port=target.port)

    def run() -> None:
        service.beat.start()
        services.until(lambda: client.llen("log") >= events and service.settled(), 600, what="everything delivered")

    return events / timed(run)


def baseline_rate(stack: ExitStack, events: int) -> float:
    """Return events per second from the workers' start to the last delivery; the messages are queued before."""
    outbox, broker, target = (
        stack.enter_context(services.postgres(durable=True)),
        stack.enter_context(services.redis()),
        stack.enter_context(services.redis()),
    )
    database = migrated(outbox.create_database("outbox"))
    stack.callback(database.close)
    fill(database, events)
    with psycopg2.connect(outbox.dsn("outbox")) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE delivered (partition int, seq bigint)")
    environment = {
        "BENCH_BROKER": broker.url,
        "BENCH_TARGET": f"redis://127.0.0.1:{target.port}/0",
        "BENCH_DATABASE": outbox.dsn("outbox"),
    }
    os.environ.update(environment)
    from bench import baseline_task_per_event

    with database.reading() as connection:
        positions = connection.execute(sa.select(tables.events.c.partition, tables.events.c.seq)).all()
    for position in positions:
        baseline_task_per_event.app.send_task("deliver", args=list(position))
    client = redis.Redis(port=target.port)
    celery = [
        str(Path(sys.executable).with_name("celery")),
        "-A",
        "bench.baseline_task_per_event",
        "worker",
        "-c",
        "2",
        "-l",
        "ERROR",
    ]
    started = time.perf_counter()
    worker = subprocess.Popen(celery, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    stack.callback(worker.wait)
    stack.callback(worker.terminate)
    services.until(lambda: client.llen("task-per-event") > 0, 60)
    first_delivery, delivered = time.perf_counter(), client.llen("task-per-event")
    services.until(lambda: client.llen("task-per-event") >= events, 600, what="all tasks done")
    assert first_delivery >= started
    return (events - delivered) / (time.perf_counter() - first_delivery)


def backlogs(stack: ExitStack, sizes: tuple[int, ...]) -> dict[int, float]:
    """Return one worker's events per second for backlogs of different sizes, on one server."""
    outbox, target = stack.enter_context(services.postgres(durable=True)), stack.enter_context(services.redis())
    rates = {}
    for size in sizes:
        database = migrated(outbox.create_database(f"backlog_{size}"))
        values = {
            "address": f"127.0.0.1:{target.port}",
            "key": f"log{size}",
            "format": "access",
            "queue_limit": str(size),
        }
        name = add_target(database, type_name="redis", values=values)
        for start in range(0, size, 50_000):
            fill(database, min(50_000, size - start), start)
        deliverer = Deliverer(database, name)
        best = 0.0
        for _ in range(2):
            rewind(database, name)
            started = time.perf_counter()
            delivered = deliverer.run()
            best = max(best, size / (time.perf_counter() - started))
            if delivered != size:
                raise RuntimeError(f"only {delivered:,} of {size:,} events were delivered")
            redis.Redis(port=target.port).flushall()
        rates[size] = best
        deliverer.adapter.close()
        database.close()
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--tasks", type=int, default=4_000)
    parser.add_argument("--backlog", type=int, default=0)
    options = parser.parse_args()
    with ExitStack() as stack:
        ours = service_rate(stack, options.events)
    with ExitStack() as stack:
        baseline = baseline_rate(stack, options.tasks)
    show(
        "end_to_end",
        "From the outbox to a Redis list, two pool processes, Redis broker, durable PostgreSQL",
        [
            {
                "design": "log, partitions and cursors",
                "events": options.events,
                "events/s": ours,
                "multiple": ours / baseline,
            },
            {"design": "one task per event", "events": options.tasks, "events/s": baseline, "multiple": 1.0},
        ],
    )
    if options.backlog:
        with ExitStack() as stack:
            rates = backlogs(stack, (10_000, 100_000, options.backlog))
        small = rates[10_000]
        show(
            "backlog",
            "Rate by size of the backlog, one worker's partitions into a Redis list",
            [{"backlog": size, "events/s": rate, "share, %": 100 * rate / small} for size, rate in rates.items()],
        )


if __name__ == "__main__":
    main()
