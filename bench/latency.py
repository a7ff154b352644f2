"""Measure idle latency: from the API's 202 to the arrival at the target, at a steady hundred events per second.

    python -m bench.latency [--rate 100] [--seconds 20]

Default settings, PostgreSQL with fsync, a Redis as broker; the target is a Redis list from which a client pops.
"""

import argparse
import threading
import time
from contextlib import ExitStack

import httpx
import orjson
import psutil
import redis

from bench.idle import spent
from bench.report import Aim, show
from tests import services
from tests.support.builders import add_target, event
from tests.support.service_processes import system

AIMS_AT, AIMS = 100, {"p50": 15.0, "p99": 60.0}  # events/s; ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=20)
    options = parser.parse_args()
    count = options.rate * options.seconds
    with ExitStack() as stack:
        outbox = stack.enter_context(services.postgres(durable=True))
        broker, target = (stack.enter_context(services.redis()) for _ in range(2))
        service = stack.enter_context(system(outbox.create_database("outbox"), broker.url))
        values = {"address": f"127.0.0.1:{target.port}", "key": "log", "format": "access"}
        add_target(service.database, type_name="redis", values=values)
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
            processes = [one for role in service.roles for one in (psutil.Process(role.pid), *role.children())]
            before = sum(map(spent, processes))
            began = time.perf_counter()
            for number in range(count):
                sent = event(f"k{number}")
                time.sleep(max(0.0, began + number / options.rate - time.perf_counter()))
                client.post("/v1/events", content=b'{"Records":[' + sent.record.encode() + b"]}").raise_for_status()
                request_id = orjson.loads(sent.record)["responseElements"]["x-amz-request-id"]
                answered[request_id] = time.perf_counter()
        reader.join()
        cost = sum(map(spent, processes)) - before
    latencies = sorted(1000 * (arrived[request_id] - at) for request_id, at in answered.items())
    percentiles = {name: latencies[min(len(latencies) - 1, int(len(latencies) * share))] for name, share in
            (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))}  # fmt: skip
    shown = {f"{name}, ms": latency for name, latency in percentiles.items()}
    what = f"latency at {options.rate} events/s, {{}}".format
    show(
        "latency",
        "End-to-end latency: from 202 to the target",
        [{"events": len(latencies), "per second": options.rate, **shown, "CPU ms/event": 1000 * cost / count}],
        aims=[
            Aim(percentiles[name], aim if options.rate == AIMS_AT else None, what(name), unit="ms", most=True)
            for name, aim in AIMS.items()
        ],
    )


if __name__ == "__main__":
    main()
