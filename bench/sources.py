"""Measure what a source records, of each type, beside the same events by POST.

    python -m bench.sources [--events 100000] [--seconds 3] [--rounds 3] [--only kafka --only redis_list …]

Events are MinIO's, 1.1 KB each, all different; one target has a rule for everything. They come by NDJSON of 1,000 over
four connections, by single posts over 32, and as one message each from a queue of a real server, in which all are when
the worker pulls: from a topic of Kafka with six partitions, a list and a stream of Redis, a stream of JetStream, a
queue of RabbitMQ, and a standard queue of SQS by ElasticMQ, which gets a tenth of the messages. PostgreSQL waits
for its disk. The processor time is that of the API's or the worker's processes, so that it means the same on a machine
that does other things. The ways alternate, and the medians count.
"""

import argparse
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import sqlalchemy as sa

from bench.load import BATCH, drive, envelope, makers, single
from bench.report import Aim, show
from bench.service import arrival_rate, processor_time
from tests import services
from tests.contract.source_probes.base import SourceProbe
from tests.contract.source_probes.registry import SOURCE_PROBES
from tests.support.builders import SECRET_KEY, add_target, migrated
from tests.support.pulled_events import Sources
from tests.support.service_processes import Api, source_worker

_SHARES = {"kafka": 6}  # of one queue: partitions; 1 of the others
_SLOW = ("sqs",)  # to be filled
_SENT = 2_000  # messages that are given to a server at once
NAMES = {
    "kafka": "Kafka", "redis_list": "a Redis list", "redis_stream": "a Redis stream", "jetstream": "JetStream",
    "amqp": "RabbitMQ", "sqs": "SQS (ElasticMQ)",
}  # fmt: skip
BATCHES, SINGLES = f"NDJSON of {BATCH:,}, 4 connections", "single posts, 32 connections"
Measurement = tuple[float, float]  # events a second, and processor µs an event


class Measured:
    """A service over a new database."""

    def __init__(self, stack: ExitStack, database_url: str, broker: str) -> None:
        self.database = migrated(database_url)
        stack.callback(self.database.close)
        add_target(self.database, queue_limit=10**9)
        settings = {"BUCKETWIRE_DATABASE_URL": database_url, "BUCKETWIRE_BROKER_URL": broker}
        settings["BUCKETWIRE_SECRET_KEYS"] = SECRET_KEY
        self.api = Api(["api"], settings)
        self.worker = source_worker(settings)
        stack.callback(self.api.stop)
        stack.callback(self.worker.stop)

    def post(self, connections: int, make: Callable[[], bytes], events: int, seconds: float) -> Measurement:
        """Keep connections busy with posts of so many events."""
        self.api.start()
        drive(self.api.port, connections, make, 0.5)
        before = processor_time(self.api.pid)
        count, took, _ = drive(self.api.port, connections, make, seconds)
        spent = processor_time(self.api.pid) - before
        self.api.stop()
        return count * events / took, spent / count / events * 1e6

    def pull(self, events: int, probe: SourceProbe) -> Measurement:
        """Pull what waits in a queue, in a worker that is there already."""
        self.worker.start()
        before, sources = processor_time(self.worker.pid), Sources(self.database)
        rate = arrival_rate(lambda: sources.put(probe.type, probe.values()), self._recorded, events)
        spent = processor_time(self.worker.pid) - before
        self.worker.stop()
        for stored in sources.registry.sources():
            sources.registry.remove(stored.source)
        return rate, spent / events * 1e6

    def _recorded(self) -> int:
        with self.database.reading() as connection:
            return int(connection.execute(sa.text("SELECT coalesce(sum(recorded), 0) FROM sources")).scalar_one())


def fill(probe: SourceProbe, way: str, events: int) -> None:
    """Write one message for each event into an empty queue; those of an object are in one share, as MinIO's are."""
    probe.renew()
    head, tail, _ = envelope()
    shares: list[list[bytes]] = [[] for _ in range(_SHARES.get(way, 1))]
    for number in range(events):
        shares[number % 100_000 % len(shares)].append(single(head, tail))
    for share, bodies in enumerate(shares):
        for first in range(0, len(bodies), _SENT):
            probe.send(bodies[first : first + _SENT], share)


def pulled(way: str, events: int, measured: Measured) -> Measurement:
    """Fill a queue of this type on a server of its own, and pull it."""
    with SOURCE_PROBES[way].alone() as probe:
        fill(probe, way, events)
        return measured.pull(events, probe)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="messages in the queue")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement by POST")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians are shown")
    parser.add_argument("--only", action="append", choices=sorted(NAMES), help="this type, and others so given")
    options = parser.parse_args()
    post, post_batch, size = makers()

    def measurement(way: str) -> Callable[[Measured], Measurement]:
        events = options.events // 10 if way in _SLOW else options.events
        return lambda measured: pulled(way, events, measured)

    chosen = [way for way in NAMES if way in (options.only or NAMES)]
    sides: dict[str, Callable[[Measured], Measurement]] = {
        BATCHES: lambda measured: measured.post(4, post_batch, BATCH, options.seconds),
        SINGLES: lambda measured: measured.post(32, post, 1, options.seconds),
    } | {NAMES[way]: measurement(way) for way in chosen}
    results: dict[str, list[Measurement]] = {name: [] for name in sides}
    with ExitStack() as stack:
        server, broker = stack.enter_context(services.postgres(durable=True)), stack.enter_context(services.redis())
        for number in range(options.rounds):
            for side, name in enumerate(list(sides)[:: -1 if number % 2 else 1]):
                with ExitStack() as round_stack:
                    database = server.create_database(f"sources_{number}_{side}")
                    result = sides[name](Measured(round_stack, database, broker.url))
                results[name].append(result)
                print(f"{name}: {result[0]:,.0f} events/s, {result[1]:.0f} µs", flush=True)

    def median(of: str, part: int) -> float:
        return statistics.median(result[part] for result in results[of])

    def ratio(of: str, beside: str) -> float:
        rounds = zip(results[of], results[beside], strict=True)
        return statistics.median(ours[0] / baseline[0] for ours, baseline in rounds)

    rows: list[dict[str, Any]] = [
        {
            "events by": name, "events/s": median(name, 0), "processor µs/event": median(name, 1),
            "beside NDJSON": ratio(name, BATCHES), "beside single posts": ratio(name, SINGLES),
        }
        for name in results
    ]  # fmt: skip
    aims = []
    for way in chosen:
        for beside, least, unit in ((BATCHES, 0.6, "%"), (SINGLES, 6.0, "x")):
            aim = least if way == "kafka" else None
            aims.append(Aim(ratio(NAMES[way], beside), aim, f"recorded from {NAMES[way]}", beside, unit))
    note = f"Events of {size} bytes; {options.events:,} messages; medians of {options.rounds} rounds."
    show("sources", "Recording events that are pulled or posted (PostgreSQL with fsync)", rows, note, aims=aims)


if __name__ == "__main__":
    main()
