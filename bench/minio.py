"""Measure the way from a real MinIO: its stored events, and a MinIO without a store that is as busy as it can be.

    python -m bench.minio [--events 5000] [--rounds 3] [--seconds 180] [--sync-seconds 60] [--view-seconds 15]
        [--connections 8]

Stored: `queue_dir` is filled with events in MinIO's own form (§5), and a real MinIO sends them to a webhook, which is
Bucketwire's, from which a worker delivers to a Redis hash; or to its own Kafka, Redis or NATS JetStream target, from
which a source pulls them, and they are delivered likewise; and the same MinIO sends them to a Redis hash itself. The
rate is that of the arrivals in the hash, from the first to the last. How fast MinIO writes to each queue when nothing
else runs is measured too: no source can be faster. The sides alternate, and the medians count.

Without a store MinIO drops what it cannot send (§6): so many connections put objects of 100 bytes as fast as MinIO
answers, for so many seconds, while the whole service records and delivers. Every put has to be an event in the log, and
where it comes by a source, every message that MinIO has written to Kafka.
With `sync_events=on` a put waits for the answer to its event's POST, so that MinIO cannot outrun the API. How many
events MinIO posts while it is busy is also measured beside a Flask view that inserts a row and commits, by turns.
"""

import argparse
import itertools
import json
import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import redis
import sqlalchemy as sa
from confluent_kafka import Consumer, TopicPartition

from app.cli.frontend_metrics import fetch, metrics_url
from app.outbox import tables
from app.outbox.admin.counters import read_counters
from app.outbox.engine.database import Database
from bench.end_to_end import compare, ratio
from bench.ingest import start
from bench.load import drive
from bench.report import Aim, show
from bench.service import KEY, Service, arrival_rate
from bench.targets import new_events
from tests import services
from tests.contract.probes.kafka import PARTITIONS
from tests.contract.probes.nats import SUBJECT
from tests.contract.source_probes.jetstream import Stream
from tests.contract.source_probes.kafka import Topic

_BUCKET, _KEYS = "busy", 1_000
_SETTLES = 30.0  # seconds without another recorded event after which no more are expected
_METRICS_AGE = 11.0  # seconds until MinIO has computed its metrics anew


def settings(name: str, values: Mapping[str, str], kind: str = "WEBHOOK") -> dict[str, str]:
    """Return the variables of a target of MinIO."""
    return {f"MINIO_NOTIFY_{kind}_{key}_{name}": value for key, value in {"ENABLE": "on", **values}.items()}


def stored(folder: Path, target: str, events: int) -> None:
    """Write events as MinIO stores them for a target."""
    queue = folder / target
    queue.mkdir()
    for event in new_events(events):
        (queue / f"{uuid.uuid4()}.event").write_text(event.record)


def through_service(stack: ExitStack, events: int, webhooks: int) -> float:
    """Return the rate of stored events that MinIO posts by so many webhooks and the service delivers to a hash."""
    outbox = stack.enter_context(services.postgres(durable=True))
    service = Service(stack, outbox.create_database("outbox"), target_format="namespace")
    service.start_delivery()
    folder, environment = services.new_folder("queue"), dict[str, str]()
    for number in range(webhooks):
        endpoint = {"ENDPOINT": f"{service.apis[0].url}/v1/events", "QUEUE_DIR": str(folder)}
        environment |= settings(f"B{number}", endpoint)
        stored(folder, f"minio-webhook-B{number}", events // webhooks)
    minio = services.MinIO(extra_env=environment)
    stack.callback(minio.stop)
    return arrival_rate(minio.start, service.held, events // webhooks * webhooks)


@dataclass(frozen=True)
class Queue:
    """A queue to which MinIO writes by a target of its own: the target's settings, and the source that pulls them."""

    kind: str
    target: Mapping[str, str]
    source: str
    values: Mapping[str, Any]
    held: Callable[[], int]  # messages that MinIO has written


def kafka(stack: ExitStack) -> Queue:
    """Start a Kafka with an empty topic."""
    probe = stack.enter_context(Topic.alone())
    probe.renew()
    topic, brokers = str(probe.values()["topic"]), probe.server.brokers
    reader = Consumer({"bootstrap.servers": brokers, "group.id": "reader", "log_level": 0})
    stack.callback(reader.close)
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]

    def held() -> int:
        return sum(reader.get_watermark_offsets(place, timeout=30)[1] for place in places)

    return Queue("KAFKA", {"BROKERS": brokers, "TOPIC": topic}, "kafka", probe.values(), held)


def redis_list(stack: ExitStack) -> Queue:
    """Start a Redis, in which a list is to be."""
    server = stack.enter_context(services.redis())
    address, client = f"127.0.0.1:{server.port}", redis.Redis(port=server.port)
    stack.callback(client.close)
    target = {"ADDRESS": address, "KEY": KEY, "FORMAT": "access"}
    return Queue("REDIS", target, "redis", {"address": address, "key": KEY}, lambda: int(client.llen(KEY)))


def jetstream(stack: ExitStack) -> Queue:
    """Start a NATS server with an empty stream."""
    probe = stack.enter_context(Stream.alone())
    probe.renew()
    values = probe.values()
    target = {"ADDRESS": values["address"], "SUBJECT": SUBJECT, "JETSTREAM": "on"}
    target |= {"USERNAME": values["username"], "PASSWORD": values["password"]}
    return Queue("NATS", target, "jetstream", values, probe.last_sequence)


QUEUES = {"Kafka": kafka, "a Redis list": redis_list, "JetStream": jetstream}


def through_source(stack: ExitStack, events: int, start_queue: Callable[[ExitStack], Queue]) -> float:
    """Return the rate of stored events that MinIO writes to a queue, a source pulls, and the service delivers."""
    outbox, queue = stack.enter_context(services.postgres(durable=True)), start_queue(stack)
    service = Service(stack, outbox.create_database("outbox"), target_format="namespace")
    service.start_delivery()
    service.pull(queue.source, queue.values)
    return arrival_rate(storing_minio(stack, events, queue.kind, queue.target).start, service.held, events)


def to_queue(stack: ExitStack, events: int, start_queue: Callable[[ExitStack], Queue]) -> float:
    """Return the rate of stored events that MinIO writes to a queue from which nobody pulls."""
    queue = start_queue(stack)
    return arrival_rate(storing_minio(stack, events, queue.kind, queue.target).start, queue.held, events)


def storing_minio(stack: ExitStack, events: int, kind: str, target: Mapping[str, str]) -> services.MinIO:
    """Return a MinIO, not started yet, that has so many stored events for a target of its own."""
    folder = services.new_folder("queue")
    stored(folder, f"minio-{kind.lower()}-B", events)
    minio = services.MinIO(extra_env=settings("B", {**target, "QUEUE_DIR": str(folder)}, kind))
    stack.callback(minio.stop)
    return minio


def by_itself(stack: ExitStack, events: int) -> float:
    """Return the rate of stored events that MinIO writes into a hash itself."""
    target = stack.enter_context(services.redis())
    client = redis.Redis(port=target.port)
    stack.callback(client.close)
    values = {"ADDRESS": f"127.0.0.1:{target.port}", "KEY": KEY, "FORMAT": "namespace"}
    return arrival_rate(storing_minio(stack, events, "REDIS", values).start, lambda: int(client.hlen(KEY)), events)


def puts() -> Callable[[], bytes]:
    """Return a function that makes a request that puts one of `_KEYS` objects."""
    numbers = itertools.count()

    def put() -> bytes:
        path = b"/%s/dir/%05d.bin" % (_BUCKET.encode(), next(numbers) % _KEYS)
        return b"PUT " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\n" + b"x" * 100

    return put


@dataclass(frozen=True)
class Receiver:
    """What MinIO's target sends to: its settings, how many events are recorded, and how many MinIO has handed over."""

    target: Mapping[str, str]
    recorded: Callable[[], int]
    kind: str = "WEBHOOK"
    held: Callable[[], int] | None = None


def bucketwire(stack: ExitStack) -> Receiver:
    """Start the whole service, which delivers to a Redis hash."""
    service, recorded = _recording_service(stack)
    return Receiver({"ENDPOINT": f"{service.apis[0].url}/v1/events"}, recorded)


def bucketwire_by_kafka(stack: ExitStack) -> Receiver:
    """Start the same, and have it pull from a Kafka, to which MinIO writes."""
    queue = kafka(stack)
    service, recorded = _recording_service(stack)
    service.pull(queue.source, queue.values)
    return Receiver(queue.target, recorded, queue.kind, queue.held)


def _recording_service(stack: ExitStack) -> tuple[Service, Callable[[], int]]:
    outbox = stack.enter_context(services.postgres(durable=True))
    url = outbox.create_database("outbox")
    service = Service(stack, url, target_format="namespace")
    service.start_delivery()
    database = Database(url, pool_size=1)
    stack.callback(database.close)

    def recorded() -> int:
        with database.reading() as connection:
            return sum(counters.recorded for counters in read_counters(connection, oldest=False))

    return service, recorded


def inserting_view(stack: ExitStack) -> Receiver:
    """Start a Flask view that inserts one row for each request and commits, and nothing else."""
    outbox = stack.enter_context(services.postgres(durable=True))
    url = outbox.create_database("outbox")
    api = start(stack, url, "bench.insert_view:app")
    database = Database(url, pool_size=1)
    stack.callback(database.close)

    def recorded() -> int:
        with database.reading() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one())

    return Receiver({"ENDPOINT": f"http://127.0.0.1:{api.port}/v1/events"}, recorded)


def busy(
    stack: ExitStack, seconds: float, connections: int, sync: str, receiver: Callable[[ExitStack], Receiver]
) -> dict[str, Any]:
    """Put objects into a MinIO without a store, and return what became of the events."""
    started = receiver(stack)
    server = {"MINIO_PROMETHEUS_AUTH_TYPE": "public", "MINIO_API_SYNC_EVENTS": sync}
    minio = stack.enter_context(services.minio(extra_env=settings("B", started.target, started.kind) | server))
    services.until(lambda: "SQS ARNs:" in minio.log.read_text(), 60, what="MinIO's targets")
    open_bucket(minio, f"arn:minio:sqs::B:{started.kind.lower()}")
    count, took, latencies = drive(minio.port, connections, puts(), seconds, status=200)
    began, at_end = time.perf_counter(), started.recorded()
    last, changed = at_end, began
    while last < count and time.perf_counter() - changed < _SETTLES:
        time.sleep(0.1)
        if (now := started.recorded()) > last:
            last, changed = now, time.perf_counter()
    time.sleep(_METRICS_AGE)
    metrics = fetch(metrics_url(minio.url), "")
    failed = sum(webhook.failed for webhook in metrics.webhooks.values())
    held = started.held() if started.held else None
    return {
        "receiver": receiver.__name__, "sync_events": sync, "puts": count, "puts/s": count / took,
        "handed over": held, "lost of these": held - last if held is not None else None,
        "recorded/s meanwhile": at_end / took,
        "p99 ms": 1000 * latencies[int(len(latencies) * 0.99)], "recorded": last, "lost": count - last,
        "skipped": metrics.skipped, "failed": failed,
        "not recorded at the last put": count - at_end, "seconds until recorded": changed - began,
    }  # fmt: skip


def open_bucket(minio: services.MinIO, arn: str) -> None:
    """Make a bucket in which anybody may put objects, so that the requests need no signature, with a rule."""
    s3 = minio.boto3()
    s3.create_bucket(Bucket=_BUCKET)
    allowed = {"Effect": "Allow", "Principal": "*", "Action": "s3:PutObject", "Resource": f"arn:aws:s3:::{_BUCKET}/*"}
    s3.put_bucket_policy(Bucket=_BUCKET, Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}))
    rules = [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]
    s3.put_bucket_notification_configuration(Bucket=_BUCKET, NotificationConfiguration={"QueueConfigurations": rules})
    s3.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000, help="that MinIO has stored; 0: do not measure")
    parser.add_argument("--rounds", type=int, default=3, help="of the stored events, and of the view")
    parser.add_argument("--seconds", type=float, default=180, help="of a busy MinIO; 0: do not")
    parser.add_argument("--sync-seconds", type=float, default=60, help="the same with sync_events=on")
    parser.add_argument("--view-seconds", type=float, default=15, help="beside a view with an INSERT, each round")
    parser.add_argument("--connections", type=int, default=8, help="of a busy MinIO")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    aims = []
    if options.events:
        itself, *ours = compare(
            options.rounds,
            lambda stack: by_itself(stack, options.events),
            lambda stack: through_service(stack, options.events, 1),
            lambda stack: through_service(stack, options.events, 4),
            *(
                partial(side, events=options.events, start_queue=start_queue)
                for side in (through_source, to_queue)
                for start_queue in QUEUES.values()
            ),
        )
        ours, alone = ours[: -len(QUEUES)], ours[-len(QUEUES) :]
        rows.append({"stored events to a Redis hash": "MinIO itself", "events/s": statistics.median(itself)})
        ways = {"one webhook": 0.6, "four webhooks": None} | {f"by {name} and a source": 0.9 for name in QUEUES}
        for (way, aim), rates in zip(ways.items(), ours, strict=True):
            through = f"through Bucketwire, {way}"
            rows.append({"stored events to a Redis hash": through, "events/s": statistics.median(rates)})
            aims.append(Aim(ratio(rates, itself), aim, f"a MinIO's store to a Redis hash, {way}", "MinIO itself"))
        for name, rates, pulled in zip(QUEUES, alone, ours[-len(QUEUES) :], strict=True):
            written = f"MinIO to {name} alone"
            rows.append({"stored events to a Redis hash": written, "events/s": statistics.median(rates)})
            aims.append(Aim(ratio(rates, itself), None, f"a MinIO's store: {written}", "MinIO itself"))
            aims.append(Aim(ratio(pulled, rates), None, f"the same by {name} and a source", written))
        show(
            "minio_stored", f"{options.events:,} stored events", rows, f"medians of {options.rounds} rounds", aims=aims
        )
    rows, aims = [], []
    for sync, seconds in (("off", options.seconds), ("on", options.sync_seconds)):
        if seconds:
            with ExitStack() as stack:
                rows.append(row := busy(stack, seconds, options.connections, sync, bucketwire))
            what = f"MinIO, no store, sync_events={sync}, {options.connections} connections, {seconds:g} s: lost"
            aims.append(Aim(row["lost"], 0, what, f"{row['puts']:,} puts", "events", most=True))
    if options.seconds:
        with ExitStack() as stack:
            rows.append(row := busy(stack, options.seconds, options.connections, "off", bucketwire_by_kafka))
        what = f"the same by Kafka and a source, sync_events=off, {options.seconds:g} s: lost after MinIO's target"
        beside = f"{row['handed over']:,} of {row['puts']:,} puts in the topic"
        aims.append(Aim(row["lost of these"], 0, what, beside, "events", most=True))
    if options.view_seconds:
        meanwhile: list[list[float]] = [[], []]
        for side, receiver in zip(
            meanwhile * options.rounds, (bucketwire, inserting_view) * options.rounds, strict=True
        ):
            with ExitStack() as stack:
                rows.append(row := busy(stack, options.view_seconds, options.connections, "off", receiver))
            side.append(row["recorded/s meanwhile"])
        what = "a busy MinIO without a store, recorded meanwhile"
        aims.append(Aim(ratio(*meanwhile), None, what, "a Flask view with an INSERT"))
    if rows:
        show("minio_busy", "A busy MinIO without a store, and the whole service", rows, aims=aims)


if __name__ == "__main__":
    main()
