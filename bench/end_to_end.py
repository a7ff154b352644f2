"""From a full outbox to the target through beat, broker and workers; and one Celery task for each event beside it.

    python -m bench.end_to_end [--events 50000] [--tasks 4000] [--backlog 1000000]

Two pool processes on both sides, PostgreSQL with fsync, a Redis as broker and one as target. With --backlog, also the
rate of a backlog of that many events beside one of 10,000, both through one worker's partitions.
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


def through_the_service(stack: ExitStack, events: int) -> float:
    """Events per second from the workers' start to the last settlement."""
    outbox, broker, target = (
        stack.enter_context(services.postgres(durable=True)),
        stack.enter_context(services.redis()),
        stack.enter_context(services.redis()),
    )
    url = outbox.create_database("outbox")
    whole = stack.enter_context(system(url, broker.url, start=False))
    values = {"address": f"127.0.0.1:{target.port}", "key": "log", "format": "access"}
    add_target(whole.database, type_name="redis", values=values)
    fill(whole.database, events)
    for role in (whole.drain, *whole.workers):
        role.start()
    client = redis.Redis(port=target.port)

    def run() -> None:
        whole.beat.start()
        services.until(lambda: client.llen("log") >= events and whole.settled(), 600, what="everything delivered")

    return events / timed(run)


def one_task_per_event(stack: ExitStack, events: int) -> float:
    """Events per second from the workers' start to the last delivery; the messages are queued before."""
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
    from bench import per_event

    with database.reading() as connection:
        places = connection.execute(sa.select(tables.events.c.partition, tables.events.c.seq)).all()
    for place in places:
        per_event.app.send_task("one", args=list(place))
    client = redis.Redis(port=target.port)
    celery = [
        str(Path(sys.executable).with_name("celery")),
        "-A",
        "bench.per_event",
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
    services.until(lambda: client.llen("per-event") > 0, 60)
    began, already = time.perf_counter(), client.llen("per-event")
    services.until(lambda: client.llen("per-event") >= events, 600, what="every task done")
    assert began >= started
    return (events - already) / (time.perf_counter() - began)


def backlogs(stack: ExitStack, sizes: tuple[int, ...]) -> dict[int, float]:
    """Events per second of one worker's partitions for backlogs of different sizes, on one server."""
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
        ours = through_the_service(stack, options.events)
    with ExitStack() as stack:
        naive = one_task_per_event(stack, options.tasks)
    show(
        "end_to_end",
        "From the outbox to a Redis list, two pool processes, Redis broker, durable PostgreSQL",
        [
            {
                "design": "log, partitions and cursors",
                "events": options.events,
                "events/s": ours,
                "multiple": ours / naive,
            },
            {"design": "one task per event", "events": options.tasks, "events/s": naive, "multiple": 1.0},
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
