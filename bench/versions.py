"""A mirror's time for a batch of events of one hot key, by how many it has already: it must not grow.

    python -m bench.versions [--versions 1000,100000] [--batch 500] [--rounds 15]

Each round records a batch and one worker works it off to a target that takes everything at once: what is measured is
reading, deciding and settling. The batches are new versions of the key, then the removal of just these, newest first;
and of a key without versions, removals that arrive late, after so many newer events of it that go to another target.
The outbox is PostgreSQL with fsync, and SQLite; the best round counts.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from app.config.arn import TargetId
from app.events.model import Event
from app.outbox.delivery.leases import Leases
from app.outbox.delivery.settlement_store import SettlementStore
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from bench.report import show
from tests import services
from tests.support.builders import DELETE, add_target, event, migrated
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Outcome
from workers.delivery.partition_worker import BatchSizer, OpenTarget, PartitionWorker
from workers.delivery.retry import RetrySchedule
from workers.targets.base import NO_LEASE, LeaseCheck

KEY = "hot"


class Taker:
    """A target that takes everything at once."""

    def open(self) -> None:
        pass

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:  # noqa: ARG002 - the targets' contract
        return [DELIVERED] * len(events)

    def close(self) -> None:
        pass


def work_off(database: Database, target: TargetId, batch: int) -> float:
    """Seconds that one lease took for what was due."""
    leases, store = Leases(database, 600_000), SettlementStore(database, 600_000)
    lease = leases.claim(target, range(16), "bench", now_ms())
    assert lease is not None
    work = OpenTarget(str(target), Taker(), Policy.MIRROR, RetrySchedule(base=0, cap=0), 1000, BatchSizer(batch, batch))
    started = time.perf_counter()
    PartitionWorker(store, work, lease).work_off(lambda: False)
    took = time.perf_counter() - started
    leases.release(lease)
    return took


def record(database: Database, events: Sequence[Event]) -> None:
    log = Log(database)
    for start in range(0, len(events), 1000):
        log.append([events[start : start + 1000]])


class Hot:
    """An outbox with a hot key of so many versions, and one of so many events without version; what batches took."""

    def __init__(self, url: str, versions: int) -> None:
        self.database = migrated(url, partitions=1)
        self.mirror = add_target(self.database, bucket="images")
        self.few = add_target(self.database, "few", bucket="unversioned", events=["s3:ObjectRemoved:*"])
        add_target(self.database, "all", bucket="unversioned")
        record(self.database, [event(KEY, version=f"v{number}") for number in range(versions)])
        record(self.database, [event(KEY, bucket="unversioned") for _ in range(versions)])
        for target in (self.mirror, self.few):
            work_off(self.database, target, 1000)
        self.next = versions
        self.times: dict[str, list[float]] = {"new": [], "removed": [], "late, unversioned": []}

    def round(self, batch: int) -> None:
        numbers = range(self.next, self.next + batch)
        self.next += batch
        puts = [event(KEY, version=f"v{number}") for number in numbers]
        removals = [event(KEY, name=DELETE, version=f"v{number}") for number in reversed(numbers)]
        old = [f"{0x18E9E833E5000000 + number:X}" for number in numbers]
        late = [event(KEY, name=DELETE, bucket="unversioned", sequencer=sequencer) for sequencer in old]
        for what, target, events in (
            ("new", self.mirror, puts), ("removed", self.mirror, removals), ("late, unversioned", self.few, late)
        ):  # fmt: skip
            record(self.database, events)
            self.times[what].append(work_off(self.database, target, batch))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", default="1000,100000")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        server = stack.enter_context(services.postgres(durable=True))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls: dict[str, Callable[[str], str]] = {
            "PostgreSQL": server.create_database,
            "SQLite": lambda name: f"sqlite:///{folder / name}.db",
        }
        for outbox, url in urls.items():
            hot = {count: Hot(url(f"v{count}"), count) for count in map(int, options.versions.split(","))}
            for _ in range(options.rounds):
                for each in hot.values():  # in turn, so that what else the machine does slows all of them
                    each.round(options.batch)
            least = hot[min(hot)]
            for count, each in hot.items():
                row: dict[str, str | int | float] = {"outbox": outbox, "versions": count}
                for what, took in each.times.items():
                    row |= {f"{what}, ms": 1000 * min(took), f"ratio of {what}": min(took) / min(least.times[what])}
                rows.append(row)
                each.database.close()
    show("versions", f"A hot key at a mirror, batches of {options.batch}", rows)


if __name__ == "__main__":
    main()
