"""Measure how rates grow with processes: workers at a slow target, and API processes at one database.

    python -m bench.scale [--events 500] [--workers 1,2,4] [--apis 1,2,4] [--seconds 4] [--rounds 3] [--idle 0,1000]

Workers: the target is a webhook of 20 ms in sync mode, and each worker is a process (`bucketwire worker --only targets
--concurrency 1`) beside beat and a worker that drains, over PostgreSQL with fsync and a Redis broker. The rate is that
of the requests at the receiver, from the first to the last; `--events` is the number per worker.

API: each is a `bucketwire api --workers 1`, as on a machine of its own, and all of them share one PostgreSQL with fsync
and the processors of this machine. The same number of connections is divided among them. The table has the processor
time that each part used, in cores, and what bounds the rate: the processors if the machine has none left, else what
most of PostgreSQL's sessions waited for (in parentheses: how many, on average).

Idle targets: beside so many targets that get no event, a Redis target gets a hundred a second. The table has its
latency, and the processor time of the service and of PostgreSQL with this flow, and while nothing happens. The latter
is measured of all services at once, because other work on the machine makes the same instructions take longer.
"""

import argparse
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psutil
import psycopg2

from bench import latency
from bench.deliver import fill
from bench.idle import spent
from bench.load import BATCH, drive, makers
from bench.report import Aim, show
from bench.service import Service, processor_time
from tests import services
from tests.support.builders import add_target
from tests.support.service_processes import start_all, system

DELAY = 0.02  # seconds
_RESTING = ("idle: service, % of a core", "idle: PostgreSQL, % of a core")
_SETTLES = 70  # seconds until a service is idle, and PostgreSQL has vacuumed what was prepared
_IDLE, _FLOWS = 60, 20  # seconds of the measurements while nothing happens, and of the flow


def rate(workers: int, events: int) -> float:
    """Return the events per second of so many workers."""
    with ExitStack() as stack:
        outbox = stack.enter_context(services.postgres(durable=True))
        broker = stack.enter_context(services.redis())
        receiver = stack.enter_context(services.receiver())
        receiver.set(delay=DELAY)
        service = stack.enter_context(
            system(outbox.create_database("outbox"), broker.url, workers=workers, concurrency=1, start=False)
        )
        values = {"endpoint": receiver.url, "allow_private": "on", "sync": "on"}
        add_target(service.database, type_name="webhook", values=values)
        fill(service.database, events)
        start_all([service.drain, *service.workers])
        service.beat.start()
        services.until(service.settled, 600, what="everything delivered")
        times = sorted(request.at for request in receiver.requests())
        if len(times) != events:
            raise RuntimeError(f"{len(times):,} requests for {events:,} events")
        return (events - 1) / (times[-1] - times[0])


@contextmanager
def waits(server: services.Postgres, seen: Counter[str]) -> Iterator[None]:
    """Count, for each event that sessions wait for, the sessions that do, every 20 ms; `""` counts the looks."""
    over = threading.Event()

    def look() -> None:
        query = (
            "SELECT coalesce(wait_event_type || ':' || wait_event, 'running'), count(*) FROM pg_stat_activity "
            "WHERE state <> 'idle' AND pid <> pg_backend_pid() AND backend_type = 'client backend' GROUP BY 1"
        )
        connection = psycopg2.connect(server.dsn())
        connection.autocommit = True
        with connection.cursor() as cursor:
            while not over.wait(0.02):
                cursor.execute(query)
                seen.update(dict(cursor.fetchall()))
                seen[""] += 1
        connection.close()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def describe_bound(cores_used: float, cores: int, waiting: Counter[str]) -> str:
    """Return what kept the rate from growing: the processors if all are in use, else the most frequent wait."""
    if cores_used > 0.9 * cores:
        return f"processors ({cores_used:.1f})"
    looks = waiting.pop("", 1)
    event, count = max(waiting.items(), key=lambda item: item[1], default=("nothing", 0))
    return f"{event} ({count / looks:.1f})"


def times(service: Service, server: services.Postgres) -> tuple[float, ...]:
    """Return the time, and the processor time of the APIs, of PostgreSQL, of this process and of the whole machine."""
    machine = psutil.cpu_times()
    busy = sum(machine[:8]) - machine.idle - machine.iowait
    ours = (service.processor_time(), processor_time(server.pid), time.process_time())
    return time.perf_counter(), *ours, busy


def api_rows(counts: list[int], seconds: float, rounds: int) -> tuple[list[dict[str, Any]], list[Aim]]:
    """Measure single posts and batches over so many API processes; a row has the median round."""
    post, post_batch, _ = makers()
    loads: dict[str, tuple[int, Callable[[], bytes], int]] = {
        "single posts, 64 connections": (64, post, 1), f"NDJSON of {BATCH:,}, 8 connections": (8, post_batch, BATCH),
    }  # fmt: skip
    rows, aims, cores = [], [], os.cpu_count() or 1
    with ExitStack() as stack:
        server = stack.enter_context(services.postgres(durable=True))
        url = server.create_database("outbox")
        service = Service(stack, url, apis=max(counts), api_options=["--workers", "1"])
        ports = [api.port for api in service.apis]
        for connections, make, _ in loads.values():
            drive(ports, connections, make, 1)
        for what, (connections, make, events) in loads.items():
            measured: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
            for _ in range(rounds):
                for count in counts:
                    seen: Counter[str] = Counter()
                    before = times(service, server)
                    with waits(server, seen):
                        requests, took, _ = drive(ports[:count], connections, make, seconds)
                    window, *used = (new - old for new, old in zip(times(service, server), before, strict=True))
                    used = [seconds / window for seconds in used]
                    measured[count].append(
                        {
                            "load": what, "APIs": count, "events/s": requests * events / took,
                            "API, cores": used[0], "PostgreSQL, cores": used[1], "client, cores": used[2],
                            "bound by": describe_bound(used[3], cores, seen),
                        }
                    )  # fmt: skip
            middle = [sorted(measured[count], key=lambda row: row["events/s"])[rounds // 2] for count in counts]
            rows += middle
            for row in middle[1:]:
                ratio = row["events/s"] / middle[0]["events/s"]
                aims.append(Aim(ratio, None, f"{row['APIs']} API processes, {what}", f"{middle[0]['APIs']}", "x"))
    return rows, aims


def idle_rows(counts: list[int]) -> list[dict[str, Any]]:
    """Measure latency and processor time of services with so many idle targets."""
    with ExitStack() as stack:
        sides = {count: stack.enter_context(latency.serving(count)) for count in counts}
        time.sleep(_SETTLES)

        def used() -> dict[int, tuple[float, float]]:
            return {
                count: (sum(map(spent, latency.processes(service))), processor_time(outbox.pid))
                for count, (service, outbox, _) in sides.items()
            }

        before = used()
        time.sleep(_IDLE)
        after, rows = used(), []
        for count, (service, _, target) in sides.items():
            resting = [100 * (new - old) / _IDLE for new, old in zip(after[count], before[count], strict=True)]
            latencies, cost = latency.measure(service, target, 100, _FLOWS)
            found = latency.percentiles(latencies)
            row = {"idle targets": count, "p50, ms": found["p50"], "p99, ms": found["p99"]}
            row["CPU ms/event"] = 1000 * cost / len(latencies)
            rows.append(row | dict(zip(_RESTING, resting, strict=True)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=500)
    parser.add_argument("--workers", default="1,2,4", help="empty: do not measure")
    parser.add_argument("--apis", default="1,2,4", help="empty: do not measure")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement of the API")
    parser.add_argument("--rounds", type=int, default=3, help="of the API; the median counts")
    parser.add_argument("--idle", default="0,1000", help="idle targets; empty: do not measure")
    options = parser.parse_args()
    workers, apis, idle = (
        [int(count) for count in text.split(",") if count] for text in (options.workers, options.apis, options.idle)
    )
    if workers:
        rates = {count: rate(count, count * options.events) for count in workers}
        least, most = min(rates), max(rates)
        grown = rates[most] / rates[least]
        show(
            "scale_workers",
            "Workers at a webhook of 20 ms, sync mode",
            [
                {
                    "workers": count,
                    "events": count * options.events,
                    "events/s": per_second,
                    "multiple": per_second / rates[least],
                }
                for count, per_second in rates.items()
            ],
            f"One connection can send at most {1 / DELAY:.0f} requests per second.",
            aims=[Aim(grown, 0.875 * most / least, f"{most} workers at a slow webhook", f"{least}", "x")],
        )
    if apis:
        rows, aims = api_rows(apis, options.seconds, options.rounds)
        note = f"{os.cpu_count()} cores for all; medians of {options.rounds} rounds of {options.seconds:g} s"
        show("scale_api", "API processes over one PostgreSQL with fsync", rows, note, aims=aims)
    if idle:
        beside = idle_rows(idle)
        aims = []
        for row in beside[1:]:
            what = f"{row['idle targets']:,} idle targets, {{}}".format
            p99 = row["p99, ms"] / beside[0]["p99, ms"]
            resting = sum(row[name] for name in _RESTING) / sum(beside[0][name] for name in _RESTING)
            aims += [
                Aim(p99, 1.5, what("p99 of another target"), f"{idle[0]}", "x", most=True),
                Aim(resting, 2, what("processor time while nothing happens"), f"{idle[0]}", "x", most=True),
            ]
        show("scale_idle", "Latency and processor time beside idle targets", beside, "100 events/s", aims=aims)


if __name__ == "__main__":
    main()
