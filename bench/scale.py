"""Measure how the rate of a slow target grows with workers: a webhook of 20 ms, sync mode, a connection per worker.

    python -m bench.scale [--events 500] [--workers 1,2,4]

Each worker is a process (`bucketwire worker --only targets --concurrency 1`) beside beat and a worker that drains, over
PostgreSQL with fsync and a Redis broker. The rate is that of the requests at the receiver, from the first to the last;
`--events` is the number per worker.
"""

import argparse
from contextlib import ExitStack

from bench.deliver import fill
from bench.report import show
from tests import services
from tests.support.builders import add_target
from tests.support.service_processes import start_all, system

DELAY = 0.02  # seconds


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=500)
    parser.add_argument("--workers", default="1,2,4")
    options = parser.parse_args()
    rates = {count: rate(count, count * options.events) for count in map(int, options.workers.split(","))}
    least = min(rates)
    show(
        "scale",
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
    )


if __name__ == "__main__":
    main()
