"""Measure every target's adapter beside a raw client's batch loop, one event at a time, and a real MinIO.

    python -m bench.targets [--events 100000] [--seconds 20] [--replayed 2000] [--only redis,nsq]

The adapter gets `--events` events of about a kilobyte in batches of 500, in sync and in async mode. No measurement runs
for longer than `--seconds`, so a slow target is measured on fewer events; the first batch, which connects and creates,
is not counted. The raw loop sends the same bodies in batches of the same size to the same server. For MinIO's replay,
`queue_dir` is filled with `--replayed` records in MinIO's own form (a file each, §5), a real MinIO starts, and the time
runs from its first delivery to its last.
"""

import argparse
import itertools
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from app.config.declared_types import settings_type
from app.config.target_settings import load
from app.events.model import Effect, Event
from bench import messaging
from bench.deliver import BATCH, Case, postgres_cases, redis_cases, webhook_cases
from bench.report import show
from tests import services
from tests.support.builders import event
from workers.delivery.outcomes import DELIVERED
from workers.targets import create

_turns = itertools.count()
WINDOW = 1000  # max_in_flight, unless set
NOT_IN_MINIO = {
    "access_shape",
    "allow_private",
    "read_timeout",
    "version",
    "tls_ca",
    "sync",
    "timeout",
    "policy",
    "events_per_post",
}


def with_server(start: Callable[[], services.Server], cases: Callable[..., Iterable[Case]]) -> Iterator[Case]:
    with start() as server:
        yield from cases(server)


def slow_webhook(events_per_post: int) -> Iterator[Case]:
    """An endpoint that takes 20 ms per request; HTTP has no batch operation for a raw loop."""
    with services.receiver() as server:
        server.set(delay=0.02)
        values = {"endpoint": server.url, "allow_private": "on", "events_per_post": str(events_per_post)}
        yield Case(f"Webhook, 20 ms, {events_per_post} in a POST", "webhook", dict(values), None)


def webhooks(server: services.Receiver) -> Iterator[Case]:
    [case] = webhook_cases(server)
    values = {name: text for name, text in case.values.items() if name != "sync"}
    yield Case("Webhook (raw: one by one)", "webhook", values, case.raw)


MAKERS: Mapping[str, Callable[[], Iterator[Case]]] = {
    "redis": lambda: with_server(services.redis, redis_cases),
    "postgresql": lambda: with_server(lambda: services.postgres(durable=True), postgres_cases),
    "mysql": messaging.mysql_cases,
    "amqp": messaging.amqp_cases,
    "mqtt": messaging.mqtt_cases,
    "nats": messaging.nats_cases,
    "streaming": messaging.streaming_cases,
    "nsq": messaging.nsq_cases,
    "webhook": lambda: with_server(services.receiver, webhooks),
    "webhook20": lambda: slow_webhook(1),
    "webhook20together": lambda: slow_webhook(100),
    "kafka": messaging.kafka_cases,
    "elasticsearch": messaging.elasticsearch_cases,
}


def rate(send: Callable[[Sequence[Event]], object], events: Sequence[Event], size: int, seconds: float) -> float:
    """Return events per second after the first batch, until all are sent or the time is over."""
    send(events[:size])
    started, sent = time.perf_counter(), 0
    for start in range(size, len(events), size):
        send(events[start : start + size])
        sent += len(events[start : start + size])
        if time.perf_counter() - started > seconds:
            break
    return sent / (time.perf_counter() - started)


def ours(case: Case, events: Sequence[Event], window: int, size: int, seconds: float) -> float:
    """Return the adapter's events per second; an event that is not delivered ends the benchmark."""
    target = create(case.type_name, load(case.type_name, dict(case.values)))
    target.open()

    def deliver(batch: Sequence[Event]) -> None:
        failed = [outcome for outcome in target.deliver(batch, window) if outcome != DELIVERED]
        if failed:
            raise RuntimeError(f"{case.name}: {len(failed)} of {len(batch)} were not delivered: {failed[0]}")

    try:
        return rate(deliver, events, size, seconds)
    finally:
        target.close()


def replayed(case: Case, events: Sequence[Event]) -> float:
    """Return the events per second of a real MinIO that replays its `queue_dir`."""
    short = settings_type(case.type_name).env
    with tempfile.TemporaryDirectory(prefix="bench-minio-") as folder:
        queue = Path(folder) / f"minio-{case.type_name}-B"
        queue.mkdir()
        for event_ in events:
            (queue / f"{uuid.uuid4()}.event").write_text(event_.record)
        values = {name: str(text) for name, text in case.values.items() if name not in NOT_IN_MINIO}
        if case.type_name == "postgresql":
            values["connection_string"] += " sslmode=disable"
        values |= {"enable": "on", "queue_dir": folder}
        env = {f"MINIO_NOTIFY_{short}_{name.upper()}_B": text for name, text in values.items()}
        with services.minio(extra_env=env):
            return drain_rate(queue, len(events), case.name)


def drain_rate(queue: Path, count: int, name: str) -> float:
    first, left, started = count, count, time.perf_counter()
    deadline = started + 120
    while left:
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{name}: MinIO still has {left} of {count} events after 120 s")
        left = sum(1 for _ in os.scandir(queue))
        if first == count and left < count:
            first, started = left, time.perf_counter()
        time.sleep(0.005)
    return first / (time.perf_counter() - started)


def new_events(count: int) -> list[Event]:
    """Return new events of about a kilobyte: JetStream drops repeated ones, and MySQL does not write them."""
    turn = next(_turns)
    # Without an effect the events would change nothing in a namespace, and cost nothing.
    return [event(f"{turn:03d}/{number:07d}/{'x' * 560}")._replace(effect=Effect.UPSERT) for number in range(count)]


def row(case: Case, count: int, seconds: float, files: int) -> dict[str, object]:
    raw = case.raw and rate(case.raw, new_events(count), BATCH, seconds)
    sync, asynchronous = (ours(case, new_events(count), window, BATCH, seconds) for window in (1, WINDOW))
    alone = ours(case, new_events(max(2, count // 20)), 1, 1, seconds / 2)
    minio = replayed(case, new_events(files))
    best = max(sync, asynchronous)
    return {
        "target": case.name,
        "raw loop/s": raw or None,
        "sync/s": sync,
        "async/s": asynchronous,
        "of the raw loop, %": raw and 100 * best / raw,
        "one at a time/s": alone,
        "× one at a time": best / alone,
        "MinIO's replay/s": minio,
        "× MinIO": best / minio,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=20, help="maximum time of one measurement")
    parser.add_argument("--replayed", type=int, default=2000, help="events in MinIO's queue_dir")
    parser.add_argument("--only", default=",".join(MAKERS), help=f"comma-separated: {', '.join(MAKERS)}")
    options = parser.parse_args()
    selected = options.only.split(",")
    if options.events < 2 * BATCH:
        parser.error(f"--events: at least {2 * BATCH}, since the first batch is not counted")
    if unknown := set(selected) - set(MAKERS):
        parser.error(f"--only: unknown target {', '.join(sorted(unknown))}")
    rows = []
    for name in selected:
        with ExitStack() as stack:
            cases = MAKERS[name]()
            stack.callback(getattr(cases, "close"))  # noqa: B009 - the type of an iterator has no close
            for case in cases:
                rows.append(row(case, options.events, options.seconds, options.replayed))
                print(", ".join(f"{k} {v:,.1f}" if isinstance(v, float) else str(v) for k, v in rows[-1].items()))
    note = f"at most {options.events:,} events; multiples refer to the better of sync and async"
    show("targets", f"Delivery by target: batches of {BATCH}, 1 KB events, one process", rows, note)


if __name__ == "__main__":
    main()
