"""`make soak`: the whole service at a steady rate, and whether anything that it uses grows.

    python -m tests.soak --minutes 60 --rate 500 [--source]

PostgreSQL is the outbox, Redis the broker; five targets get everything. Old events are purged, replays begin, and one
target is down for ten minutes of each hour, the first time during the warm-up; a shorter run has all of it in
proportion. At the end a table shows each measure's robust slope (Theil-Sen) over what follows the warm-up. Ends with 1
where a measure has a trend, where the counters do not balance, or where not everything was delivered.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from app.outbox.engine.database import now_ms
from tests import services
from tests.services import until
from tests.soak import pulled
from tests.soak.load import LIST, Latencies, Load
from tests.soak.sampling import LIMITS, NOT_JUDGED, Measure, Sampler, write_samples
from tests.soak.trends import WARM_UP, Sample, Trend, envelope, judged, trend, warm_up
from tests.support.service_processes import System, system

HOUR = 3600
DOWN = (1 / 10, 1 / 10 + 1 / 6)  # of each hour: from the 6th minute for ten minutes
SETTLE_WITHIN = 300  # seconds after the last event
# Each of a worker's 140 threads fills a cache of free memory over hours: some megabytes, which would hide a leak.
ALLOCATOR = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=2"
_LINE = "{:<17}{:<13}{:>15}{:>15}{:>15}{:>16}{:>15}{:>15}  {}"


def write(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


@dataclass
class Scenario:
    """What is done to the service while it runs; an hour of it takes `hour` seconds."""

    whole: System
    down: services.Redis
    hour: float
    _replays: int = 0

    def at(self, seconds: float) -> None:
        """Do what is due so many seconds after the beginning."""
        minute = seconds % self.hour / self.hour
        away = DOWN[0] <= minute < DOWN[1]
        if away and self.down.running:
            self.down.stop()
        elif not away and not self.down.running:
            self.down.start()
        if seconds > self.hour / 12 * (self._replays + 1):
            self._replays += 1
            self._replay()

    def _replay(self) -> None:
        """Deliver the newest events again: of an hour's run those of 25 seconds."""
        target = ("webhook:all", "redis:namespace", "postgresql:namespace")[self._replays % 3]
        since = now_ms() - int(self.hour / 12 / 12 * 1000)
        self.whole.ask("POST", "/v1/replays", json={"target": target, "since": since})


def make_targets(whole: System, log: services.Redis, down: services.Redis, others: Servers) -> None:
    """Five targets that get everything."""
    dsn = others.postgres.dsn("target")
    others.postgres.create_database("target")
    settings: dict[str, dict[str, str]] = {
        "redis:list": {"address": address(log), "key": LIST, "format": "access"},
        "redis:namespace": {"address": address(log), "key": "rows"},
        "redis:down": {"address": address(down), "key": LIST, "format": "access"},
        "postgresql:namespace": {"connection_string": dsn, "table": "rows"},
        "webhook:all": {"endpoint": others.receiver.url},
    }
    for name, each in settings.items():
        whole.add_target(name, **each)


@dataclass
class Servers:
    """What the service works with besides Redis."""

    postgres: services.Postgres
    receiver: services.Receiver


def address(server: services.Server) -> str:
    """Host and port."""
    return f"{services.LOOPBACK}:{server.port}"


def run(given: argparse.Namespace) -> bool:
    """Run for so many minutes, print the table, and say whether all is as it should be."""
    seconds = given.minutes * 60
    hour = min(seconds, HOUR)
    with ExitStack() as stack:
        broker, log, down = (stack.enter_context(services.redis()) for _ in range(3))
        database = stack.enter_context(services.postgres(durable=True))
        others = Servers(stack.enter_context(services.postgres()), stack.enter_context(services.receiver()))
        url = database.create_database("outbox")
        whole = stack.enter_context(system(url, broker.url, retention=f"{max(10, hour / 12):.0f}s"))
        make_targets(whole, log, down, others)
        topic = stack.enter_context(pulled.topic(whole)) if given.source else None
        load = Load(whole, given.rate, Latencies(), topic)
        sampler = Sampler(whole, database, load.latencies, {"source": topic.worker} if topic else {})
        scenario, began = Scenario(whole, down, hour), time.monotonic()
        with load.running(log, down, receiver=others.receiver):
            number = 0
            while (passed := time.monotonic() - began) < seconds:
                scenario.at(passed)
                sampler.sample(passed)
                number += 1
                time.sleep(max(0.0, began + number * given.every - time.monotonic()))
            took, taken = time.monotonic() - began, load.taken
        if not down.running:
            down.start()
        found = [topic.mismatch(SETTLE_WITHIN)] if topic else []
        problems = [problem for problem in (*found, undelivered(whole), mismatch(whole)) if problem]
    if given.samples:
        write_samples(sampler.series, given.samples)
    write(f"{taken} events in {took:.0f} s ({taken / took:.0f} a second); posts refused: {dict(load.refused)}")
    clean = report(sampler.series, taken / took, hour / 6)
    for problem in problems:
        write(f"WRONG: {problem}")
    return clean and not problems


def undelivered(whole: System) -> str:
    """Empty when everything is delivered in time."""
    try:
        until(whole.settled, SETTLE_WITHIN, what="everything delivered")
    except AssertionError as error:
        return str(error)
    return ""


def mismatch(whole: System) -> str:
    """Empty when the counters balance and nothing is dead or was discarded."""
    wrong = [
        f"{entry.counters.target}: {entry.difference} off, {entry.counters.dead} dead, "
        f"{entry.counters.discarded} discarded"
        for entry in whole.audits()
        if entry.difference or entry.counters.dead or entry.counters.discarded
    ]
    return "; ".join(wrong)


def report(series: Mapping[Measure, Sequence[Sample]], rate: float, purge_every: float) -> bool:
    """Print each measure's trend; whether none of those that are judged has one. Of tables their peaks count."""
    write(_LINE.format("of", "what", "first", "last", "per hour", "per 1000 events", "grew by", "may grow by", ""))
    clean = True
    for measure, samples in sorted(series.items()):
        line_of = envelope(samples, 1.2 * purge_every) if measure.what in ("rows", "bytes") else samples
        try:
            found = trend(judged(line_of), LIMITS[measure.what])
        except ValueError:
            write(f"{measure.of:<17}{measure.what:<13}too few samples")
            continue
        verdict = "" if measure.what not in NOT_JUDGED else "(not judged)"
        if found.grows and not verdict:
            clean, verdict = False, "<-- GROWS"
        write(line(measure, found, rate, verdict))
    memory = LIMITS["memory"].absolute
    whole = max((samples[-1][0] for samples in series.values() if samples), default=0.0)
    span = whole - warm_up(whole)
    if span and rate:
        write(
            f"a leak shows here from {memory / 1024 / (span * rate / 1000):.2f} KiB per 1,000 events on; one of 1 KiB "
            f"needs {memory / 1024 * 1000 / (1 - WARM_UP) / rate / 60:.0f} minutes at this rate"
        )
    return clean


def line(measure: Measure, found: Trend, rate: float, verdict: str) -> str:
    """One row of the table."""
    shown = _seconds if measure.what.startswith("latency") else _count
    if measure.what in ("memory", "RSS", "bytes"):
        shown = _kib
    values = (found.first, found.last, found.slope * HOUR, found.slope * 1000 / rate, found.drift, found.limit)
    return _LINE.format(measure.of, measure.what, *map(shown, values), verdict)


def _kib(value: float) -> str:
    return f"{value / 1024:,.1f} KiB"


def _seconds(value: float) -> str:
    return f"{value * 1000:,.1f} ms"


def _count(value: float) -> str:
    return f"{value:,.1f}"


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=(__doc__ or "").partition("\n")[0])
    add: Callable[..., object] = parser.add_argument
    add("--minutes", type=float, default=60, help="how long (default %(default)s)")
    add("--rate", type=float, default=500, help="events a second (default %(default)s)")
    add("--every", type=float, default=5, help="seconds between two samples (default %(default)s)")
    add("--source", action="store_true", help="write the events to Kafka, from which a worker pulls, and post none")
    add("--samples", type=Path, help="a CSV file for all samples")
    return parser.parse_args(given)


def main() -> int:
    """The command."""
    os.environ.setdefault("GLIBC_TUNABLES", ALLOCATOR)
    try:
        return 0 if run(arguments()) else 1
    except LookupError as error:  # a server that is not here
        sys.stderr.write(f"soak: {error}{os.linesep}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
