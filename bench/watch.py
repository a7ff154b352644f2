"""Measure what it takes to watch a bucket of many keys: seconds, memory and requests of each listing.

    python -m bench.watch [--keys 100000] [--changes 1000]

The keys are in a real MinIO, the outbox in PostgreSQL, and the worker is a process of its own. The first listing
remembers, the second finds nothing, the third finds so many changes that no event explains, and the last of a source
that is set anew makes an event of every object.
"""

import argparse
import time
from collections.abc import Callable
from contextlib import ExitStack, closing

from app.outbox.engine.database import now_ms
from bench.service import processor_time
from tests import services
from tests.services import until
from tests.support.builders import SECRET_KEY, migrated
from tests.support.process_memory import growth
from tests.support.pulled_events import count_recorded
from tests.support.service_processes import Role, source_worker
from tests.support.watched_bucket import WatchedBucket


def main() -> None:
    """Run it from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--changes", type=int, default=1_000)
    options = parser.parse_args()
    with ExitStack() as stack:
        postgres, broker = stack.enter_context(services.postgres()), stack.enter_context(services.redis())
        minio = stack.enter_context(services.minio())
        url = postgres.create_database("outbox")
        database = stack.enter_context(closing(migrated(url)))
        bucket = WatchedBucket(minio, database)
        keys = [f"{number % 100:02}/{number:09}.jpg" for number in range(options.keys)]
        folder = services.new_folder("keys")
        for key in keys:
            (folder / key).parent.mkdir(exist_ok=True)
            (folder / key).write_bytes(b"x")
        for part in folder.iterdir():
            minio.mc("mirror", "--quiet", str(part), f"m/{bucket.name}/{part.name}")
        settings = {"BUCKETWIRE_DATABASE_URL": url, "BUCKETWIRE_BROKER_URL": broker.url}
        worker = source_worker(settings | {"BUCKETWIRE_SECRET_KEYS": SECRET_KEY})
        stack.callback(worker.stop)
        worker.start()

        def again() -> None:
            bucket.sources.registry.resume(bucket.source)

        measure(worker, bucket, "first listing, remembered", bucket.watch)
        measure(worker, bucket, "nothing changed", again)
        bucket.put(*(f"new/{number}" for number in range(options.changes // 2)))
        bucket.remove(*keys[: options.changes // 2])
        measure(worker, bucket, f"{options.changes:,} changes", again)
        measure(worker, bucket, "an event for each object", lambda: bucket.watch(initial="events", tenant="other"))


def measure(worker: Role, bucket: WatchedBucket, name: str, begin: Callable[[], object]) -> None:
    """Print what the next listing takes, from its request until it is compared."""
    last = now_ms()
    before, events = processor_time(worker.pid), count_recorded(bucket.database)
    began = time.perf_counter()
    with growth(worker.pid) as held:
        begin()
        until(lambda: bucket.state.complete and bucket.state.ended_at >= last, 3_600, what=name)
    seconds = time.perf_counter() - began
    spent = processor_time(worker.pid) - before
    state = bucket.state
    print(
        f"{name}: {seconds:.1f} s, of which the listing took {(state.ended_at - state.began_at) / 1000:.1f} s;"
        f" {spent:.1f} s of processor time, {held.most >> 20} MB at most ({held.grown} MB more than before),"
        f" {state.objects:,} objects, {count_recorded(bucket.database) - events:,} events"
    )


if __name__ == "__main__":
    main()
