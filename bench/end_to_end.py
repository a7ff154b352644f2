"""Measure the way through beat, drain, broker and workers to the target: of a backlog, and of a flow of requests.

    python -m bench.end_to_end [--events 100000] [--seconds 10] [--rounds 3] [--base 2604878] [--tasks 4000]
        [--backlog 1000000]

Each side has an API, a worker that drains, one worker of two processes, PostgreSQL with fsync, a Redis as broker and a
Redis list as target; its rate is that of the arrivals in the list. The other sides are the service of an older commit,
used over the same public interfaces, and one Celery task for each event. The flow is NDJSON of 100 events over four
connections, each sending its next request when it has the answer; its first seconds are not counted. The sides
alternate, and the medians count. --backlog also compares the rate of a backlog of that many events with the rate of
10,000, both delivered by one worker.
"""

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg2
import redis
import sqlalchemy as sa

from app.outbox import tables
from bench.deliver import Deliverer, fill, rewind
from bench.load import drive, makers
from bench.report import Aim, show
from bench.service import BASE, Service, arrival_rate, checkout
from tests import services
from tests.support.builders import add_target, migrated

FLOW_BATCH, CONNECTIONS = 100, 4
_WARM = 2.0  # seconds of a flow that are not counted
Rate = Callable[[ExitStack], float]


def backlog_rate(stack: ExitStack, code: Path | None, events: int) -> float:
    """Return the events per second of a backlog that waited before the workers started."""
    outbox = stack.enter_context(services.postgres(durable=True))
    service = Service(stack, outbox.create_database("outbox"), code=code)
    service.post(events)
    return arrival_rate(service.start_delivery, service.taken, events)


def flow_rate(stack: ExitStack, code: Path | None, seconds: float) -> float:
    """Return the events per second that arrive at the target while clients post as fast as they are answered."""
    outbox = stack.enter_context(services.postgres(durable=True))
    service = Service(stack, outbox.create_database("outbox"), code=code)
    service.start_delivery()
    service.post(1000)
    services.until(lambda: service.taken() >= 1000, 60, what="the first events")
    _, post, _ = makers(FLOW_BATCH)
    arguments = (service.apis[0].port, CONNECTIONS, post, _WARM + seconds)
    posting = threading.Thread(target=drive, args=arguments)
    posting.start()
    time.sleep(_WARM)
    first, began = service.taken(), time.perf_counter()
    while posting.is_alive() and time.perf_counter() - began < seconds:
        time.sleep(0.05)
        last, now = service.taken(), time.perf_counter()
    posting.join()
    return (last - first) / (now - began)


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
    with psycopg2.connect(outbox.dsn("outbox")) as raw, raw.cursor() as cursor:
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
        deliverer.close()
        database.close()
    return rates


def compare(rounds: int, *sides: Rate) -> list[list[float]]:
    """Measure the sides in turn, so many times, every other time in reverse; return the rates of each."""
    rates: list[list[float]] = [[] for _ in sides]
    for number in range(rounds):
        for side, measured in list(zip(sides, rates, strict=True))[:: -1 if number % 2 else 1]:
            with ExitStack() as stack:
                measured.append(side(stack))
    return rates


def ratio(rates: list[float], beside: list[float]) -> float:
    """Return the median of the ratios of the rounds, so that other load on the machine slows both sides of each."""
    return statistics.median(rate / other for rate, other in zip(rates, beside, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10, help="of a flow")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--base", default=BASE, help="commit of the service to measure beside; empty for none")
    parser.add_argument("--tasks", type=int, default=4_000, help="0: do not measure one task for each event")
    parser.add_argument("--backlog", type=int, default=0)
    options = parser.parse_args()
    code = checkout(options.base) if options.base else None
    backlog, flow = f"backlog of {options.events:,}", f"NDJSON of {FLOW_BATCH}, {CONNECTIONS} connections"
    measures: dict[str, tuple[Callable[[Path | None], Rate], float]] = {
        backlog: (lambda code: lambda stack: backlog_rate(stack, code, options.events), 1.7),
        flow: (lambda code: lambda stack: flow_rate(stack, code, options.seconds), 3.0),
    }
    rows: list[dict[str, Any]] = []
    aims: list[Aim] = []
    sides = [None, code] if code else [None]
    for what, (measure, aim) in measures.items():
        ours, *others = compare(options.rounds, *map(measure, sides))
        aims += [Aim(ratio(ours, rates), aim, what, f"commit {options.base}", "x") for rates in others]
        base = statistics.median(others[0]) if others else None
        rows.append({"what": what, "events/s": statistics.median(ours), "its, at the base": base})
    if options.tasks:
        [[tasks]] = compare(1, lambda stack: baseline_rate(stack, options.tasks))
        rows.append({"what": "one task for each event", "events/s": tasks, "its, at the base": None})
        aims.append(Aim(rows[0]["events/s"] / tasks, None, backlog, "one task for each event", "x"))
    title = "Through drain, broker and a worker of two processes to a Redis list, durable PostgreSQL, Redis broker"
    show("end_to_end", title, rows, f"medians of {options.rounds} rounds", aims=aims)
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
