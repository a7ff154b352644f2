"""Measure what exporting traces, metrics and logs costs a delivery, in pairs: a round without, a round with.

    python -m bench.telemetry [--events 64000] [--times 4] [--pairs 5]

One process delivers from a durable PostgreSQL outbox, as a worker does, and exports to a real HTTP server. Each event
has a trace of its own, so that the spans have as many links as there may be. The rounds without do what a worker does
by default, and every other pair begins with the round with. A round delivers the log several times, and ends when
everything is exported: its fixed cost (an export of each signal over a new connection; a worker makes one every 5 s)
has to be small beside it. The processor time is that of the whole process, with the threads that export; the wall-clock
time, by which the aim is judged, also has that of the servers, which share the machine. One pair varies by a tenth.
"""

import argparse
import gc
import logging
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from app import logs, telemetry
from app.config.arn import TargetId
from app.events.model import Event
from app.outbox.engine.database import Database
from app.outbox.log.append import Log
from bench.deliver import BATCH, Deliverer, rewind
from bench.report import Aim, show
from tests import services
from tests.support.builders import add_target, event, migrated
from workers.telemetry import metrics

MAX_RATIO = 1.05  # of the time of a delivery without


@dataclass(frozen=True)
class Case:
    """A kind of target, its settings, and the partitions that a round delivers."""

    name: str
    type_name: str
    values: Mapping[str, object]
    partitions: int


@dataclass(frozen=True)
class Round:
    """The microseconds for an event."""

    processor: float
    wall: float


def fill(database: Database, count: int) -> None:
    """Record events of about a kilobyte, each with its own object and trace."""
    log = Log(database)
    for start in range(0, count, 1000):
        events = [event(f"dir/{start + number:07d}/{'x' * 560}") for number in range(min(1000, count - start))]
        log.append([[_traced(each) for each in events]])


def _traced(each: Event) -> Event:
    return each._replace(trace=f"00-{uuid4().hex}-{uuid4().hex[:16]}-01")


def measure(deliver: Callable[[], int], times: int) -> Round:
    """Deliver so many times, and export what is to be exported."""
    processor, wall = time.process_time(), time.perf_counter()
    delivered = sum(deliver() for _ in range(times))
    telemetry.stop()
    wall = time.perf_counter() - wall
    return Round((time.process_time() - processor) / delivered * 1e6, wall / delivered * 1e6)


def start() -> None:
    """Export everything from here on, as a worker process does."""
    telemetry.start("bench")
    telemetry.send_metrics(metrics.pool_registry(os.environ[metrics.FOLDER]).collect)


def prepare(stack: ExitStack) -> logging.Handler:
    """Set up what a worker process has: metrics, log lines (which go nowhere), the address of a collector.

    What is imported by now is kept out of collections of garbage, as in the processes that `bucketwire up` forks.
    """
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = stack.enter_context(services.receiver()).url
    os.environ[metrics.FOLDER] = stack.enter_context(tempfile.TemporaryDirectory())
    metrics.begin(0)
    logs.configure("text")
    lines = logging.getLogger().handlers[0]
    assert isinstance(lines, logging.StreamHandler)
    lines.setStream(stack.enter_context(Path(os.devnull).open("w")))  # noqa: SIM115 - the stack closes it
    telemetry.prepare()
    gc.collect()
    gc.freeze()
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=64_000)
    parser.add_argument("--times", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    rows, aims = [], []
    with ExitStack() as stack:
        outbox = stack.enter_context(services.postgres(durable=True))
        database = migrated(outbox.create_database("outbox"))
        stack.callback(database.close)
        redis, hook = stack.enter_context(services.redis()), stack.enter_context(services.receiver())
        address = {"address": f"127.0.0.1:{redis.port}", "key": "log", "format": "access"}
        cases = [
            Case(f"Redis list, batches of {BATCH}", "redis", address, 16),
            Case("Webhook, one at a time", "webhook", {"endpoint": hook.url, "allow_private": "on", "sync": "on"}, 1),
        ]
        targets = [
            add_target(database, f"t{n}", type_name=case.type_name, values=case.values) for n, case in enumerate(cases)
        ]
        fill(database, options.events)
        with database.engine.begin() as connection:
            connection.execute(sa.text("ANALYZE events"))
        lines = prepare(stack)
        for case, target in zip(cases, targets, strict=True):
            pairs: list[tuple[Round, Round]] = []
            for number in range(options.pairs + 1):
                rounds = {}
                for traced in (False, True) if number % 2 else (True, False):
                    lines.filters = []  # that of the round before
                    if traced:
                        start()
                    deliverer = Deliverer(database, target)

                    def deliver(case: Case = case, target: TargetId = target, by: Deliverer = deliverer) -> int:
                        rewind(database, target)
                        with redis.client() as client:
                            client.flushall()
                        return by.run(range(case.partitions))

                    rounds[traced] = measure(deliver, options.times)
                    deliverer.close()
                pairs.append((rounds[False], rounds[True]))
            pairs = pairs[1:]  # the first warms everything up
            processor = statistics.median(on.processor / off.processor for off, on in pairs)
            wall = statistics.median(on.wall / off.wall for off, on in pairs)
            rows.append(
                {
                    "target": case.name,
                    "off, µs of processor/event": statistics.median(off.processor for off, _ in pairs),
                    "on": statistics.median(on.processor for _, on in pairs),
                    "on / off": processor,
                    "off, µs/event": statistics.median(off.wall for off, _ in pairs),
                    "on, µs/event": statistics.median(on.wall for _, on in pairs),
                    "on / off, wall clock": wall,
                }
            )
            aims.append(Aim(wall, MAX_RATIO, f"time of a delivery that exports everything: {case.name}",
                            beside="the same without, in pairs", unit="x", most=True))  # fmt: skip
    note = f"medians of {options.pairs} pairs; the processor time is that of the delivering process"
    show("telemetry", "What exporting to OpenTelemetry costs a delivery", rows, note, aims=aims)


if __name__ == "__main__":
    main()
