"""Measure idle latency: from the API's 202 to the arrival at the target, at a steady hundred events per second.

    python -m bench.latency [--rate 100] [--seconds 20]

Default settings, PostgreSQL with fsync, a Redis as broker; the target is a Redis list from which a client pops.
"""

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import httpx
import orjson
import psutil
import redis

from bench.idle import spent
from bench.report import Aim, show
from tests import services
from tests.support.builders import add_idle_targets, add_target, event
from tests.support.service_processes import System, start_all, system

AIMS_AT, AIMS = 100, {"p50": 15.0, "p99": 60.0}  # events/s; ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    with serving() as (service, _, target):
        latencies, cost = measure(service, target, options.rate, options.seconds)
    shown = {f"{name}, ms": latency for name, latency in percentiles(latencies).items()}
    what = f"latency at {options.rate} events/s, {{}}".format
    show(
        "latency",
        "End-to-end latency: from 202 to the target",
        [{"events": len(latencies), "per second": options.rate, **shown, "CPU ms/event": 1000 * cost / len(latencies)}],
        aims=[
            Aim(shown[f"{name}, ms"], aim if options.rate == AIMS_AT else None, what(name), unit="ms", most=True)
            for name, aim in AIMS.items()
        ],
    )


@contextmanager
def serving(idle: int = 0) -> Iterator[tuple[System, services.Postgres, services.Redis]]:
    """Run a service with one Redis target, which gets every event, and so many others that get none."""
    with ExitStack() as stack:
        outbox = stack.enter_context(services.postgres(durable=True))
        broker, target = (stack.enter_context(services.redis()) for _ in range(2))
        service = stack.enter_context(system(outbox.create_database("outbox"), broker.url, start=False))
        values = {"address": f"127.0.0.1:{target.port}", "key": "log", "format": "access"}
        add_target(service.database, type_name="redis", values=values)
        if idle:
            add_idle_targets(service.database, idle)
        start_all(service.roles)
        yield service, outbox, target


def processes(service: System) -> list[psutil.Process]:
    """Return the processes of a service."""
    return [one for role in service.roles for one in (psutil.Process(role.pid), *role.children())]


def measure(service: System, target: services.Redis, rate: int, seconds: int) -> tuple[list[float], float]:
    """Post at a rate; return the latencies of all events (ms), sorted, and the service's processor time (s)."""
    count = rate * seconds
    arrived: dict[str, float] = {}

    def read() -> None:
        client = redis.Redis(port=target.port)
        while len(arrived) < count + 1:
            _, entry = client.blpop("log", timeout=30) or (None, None)
            if entry is None:
                return
            record = orjson.loads(entry)[0]["Event"][0]
            arrived[record["responseElements"]["x-amz-request-id"]] = time.perf_counter()

    reader = threading.Thread(target=read)
    reader.start()
    answered: dict[str, float] = {}
    with httpx.Client(base_url=service.api.url) as client:
        client.post("/v1/events", content=b'{"Records":[' + event("warm").record.encode() + b"]}")
        services.until(lambda: arrived, 30)
        measured = processes(service)
        before = sum(map(spent, measured))
        began = time.perf_counter()
        for number in range(count):
            sent = event(f"k{number}")
            time.sleep(max(0.0, began + number / rate - time.perf_counter()))
            client.post("/v1/events", content=b'{"Records":[' + sent.record.encode() + b"]}").raise_for_status()
            request_id = orjson.loads(sent.record)["responseElements"]["x-amz-request-id"]
            answered[request_id] = time.perf_counter()
    reader.join()
    cost = sum(map(spent, measured)) - before
    return sorted(1000 * (arrived[request_id] - at) for request_id, at in answered.items()), cost


def percentiles(latencies: Sequence[float]) -> dict[str, float]:
    """Return p50, p90, p99 and the greatest of sorted latencies."""
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: latencies[min(len(latencies) - 1, int(len(latencies) * share))] for name, share in shares.items()}


if __name__ == "__main__":
    main()
