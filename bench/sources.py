"""Measure what a source records, beside the same events by POST.

    python -m bench.sources [--events 100000] [--seconds 3] [--rounds 3]

Events are MinIO's, 1.1 KB each, all different; one target has a rule for everything. They come by NDJSON of 1,000 over
four connections, by single posts over 32, and as one message each from a topic of a real Kafka with three partitions,
which are all there when the worker begins. PostgreSQL waits for its disk. The processor time is that of the API's or
the worker's processes, so that it means the same on a machine that does other things.
"""

import argparse
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import sqlalchemy as sa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from bench.load import BATCH, drive, envelope, makers, single
from bench.report import Aim, show
from bench.service import arrival_rate, processor_time
from tests import services
from tests.support.builders import add_target, migrated
from tests.support.service_processes import Api, Role

PARTITIONS = 3


class Measured:
    """A service over a new database; each result is (events a second, processor µs an event)."""

    def __init__(self, stack: ExitStack, database_url: str, broker: str) -> None:
        self.database = migrated(database_url)
        stack.callback(self.database.close)
        add_target(self.database, queue_limit=10**9)
        settings = {"BUCKETWIRE_DATABASE_URL": database_url, "BUCKETWIRE_BROKER_URL": broker}
        self.api = Api(["api"], settings)
        self.worker = Role(["worker", "--only", "sources"], settings, " ready.")
        stack.callback(self.api.stop)
        stack.callback(self.worker.stop)

    def post(self, connections: int, make: Callable[[], bytes], events: int, seconds: float) -> tuple[float, float]:
        """Keep connections busy with posts of so many events."""
        self.api.start()
        drive(self.api.port, connections, make, 0.5)
        before = processor_time(self.api.pid)
        count, took, _ = drive(self.api.port, connections, make, seconds)
        spent = processor_time(self.api.pid) - before
        self.api.stop()
        return count * events / took, spent / count / events * 1e6

    def pull(self, events: int, brokers: str, topic: str) -> tuple[float, float]:
        """Pull what waits in a topic, in a worker that is there already."""
        self.api.start()
        self.worker.start()
        before = processor_time(self.worker.pid)

        def begin() -> None:
            values = {"brokers": brokers, "topic": topic}
            httpx.put(f"{self.api.url}/v1/sources/kafka/{topic}", json=values, timeout=30).raise_for_status()

        recorded = self._recorded()
        rate = arrival_rate(begin, lambda: self._recorded() - recorded, events)
        spent = processor_time(self.worker.pid) - before
        self.worker.stop()
        self.api.stop()
        return rate, spent / events * 1e6

    def _recorded(self) -> int:
        with self.database.reading() as connection:
            return int(connection.execute(sa.text("SELECT coalesce(sum(recorded), 0) FROM sources")).scalar_one())


def fill(brokers: str, topic: str, events: int) -> None:
    """Write one message for each event; those of an object are in one partition, as MinIO's are."""
    admin = AdminClient({"bootstrap.servers": brokers, "log_level": 0})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    head, tail, _ = envelope()
    producer = Producer({"bootstrap.servers": brokers, "acks": "all", "linger.ms": 20, "log_level": 0})
    for number in range(events):
        while True:
            try:
                producer.produce(topic, single(head, tail), str(number % 100_000))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000, help="messages in the topic")
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement by POST")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians are shown")
    options = parser.parse_args()
    post, post_batch, size = makers()
    batches, singles, pulled = f"NDJSON of {BATCH:,}, 4 connections", "single posts, 32 connections", "a Kafka topic"
    results: dict[str, list[tuple[float, float]]] = {batches: [], singles: [], pulled: []}
    with ExitStack() as stack:
        server = stack.enter_context(services.postgres(durable=True))
        broker, kafka = stack.enter_context(services.redis()), stack.enter_context(services.kafka())
        for number in range(options.rounds):
            with ExitStack() as round_stack:
                measured = Measured(round_stack, server.create_database(f"sources_{number}"), broker.url)
                fill(kafka.brokers, f"round{number}", options.events)
                results[pulled].append(measured.pull(options.events, kafka.brokers, f"round{number}"))
                results[batches].append(measured.post(4, post_batch, BATCH, options.seconds))
                results[singles].append(measured.post(32, post, 1, options.seconds))

    def median(of: str, part: int) -> float:
        return statistics.median(result[part] for result in results[of])

    def ratio(beside: str) -> float:
        rounds = zip(results[pulled], results[beside], strict=True)
        return statistics.median(ours[0] / baseline[0] for ours, baseline in rounds)

    rows: list[dict[str, Any]] = [
        {"events by": name, "events/s": median(name, 0), "processor µs/event": median(name, 1)} for name in results
    ]
    aims = [
        Aim(ratio(batches), 0.6, f"recorded from {pulled}", batches),
        Aim(ratio(singles), 6.0, f"recorded from {pulled}", singles, unit="x"),
        Aim(median(singles, 1) / median(pulled, 1), None, "processor time of a single post", pulled, unit="x"),
        Aim(median(pulled, 1) / median(batches, 1), None, f"processor time from {pulled}", batches, unit="x"),
    ]
    note = f"Events of {size} bytes; {options.events:,} messages; medians of {options.rounds} rounds."
    show("sources", "Recording events that are pulled or posted (PostgreSQL with fsync)", rows, note, aims=aims)


if __name__ == "__main__":
    main()
