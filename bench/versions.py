"""Measure a mirror's time for a batch of events of one hot key by its number of versions: it must not grow.

    python -m bench.versions [--versions 1000,100000] [--batch 500] [--rounds 15]

Each round records a batch, and one worker delivers it to a target that accepts everything at once: the time is that of
reading, deciding and settling. The batches are new versions of the key, then the removals of these versions, newest
first; and for a key without versions, removals that arrive after many newer events, which go to another target. The
outbox is PostgreSQL with fsync, and SQLite; the best round counts.
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
from tests.support.builders import DELETE, add_target, event, migrated, registry
from workers.delivery.namespace_policy import Policy
from workers.delivery.outcomes import DELIVERED, Outcome
from workers.delivery.partition_worker import PartitionWorker
from workers.delivery.pooled_target import BatchSizer, PooledTarget
from workers.delivery.retry import RetrySchedule
from workers.targets.base import NO_LEASE, LeaseCheck

KEY = "hot"


class AcceptingTarget:
    """A target that accepts everything at once."""

    def open(self) -> None:
        pass

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> list[Outcome]:  # noqa: ARG002 - the targets' contract
        return [DELIVERED] * len(events)

    def close(self) -> None:
        pass


def deliver_due(database: Database, target: TargetId, batch: int) -> float:
    """Return the seconds that one lease took to deliver what was due."""
    leases, store = Leases(database, 600_000), SettlementStore(database, 600_000)
    lease = leases.claim(registry(database).target(target).row_id, range(16), "bench", now_ms())
    assert lease is not None
    work = PooledTarget(
        str(target), AcceptingTarget(), Policy.MIRROR, RetrySchedule(base=0, cap=0), 1000, BatchSizer(batch, batch)
    )
    started = time.perf_counter()
    PartitionWorker(store, work, lease).work_off(lambda: False)
    seconds = time.perf_counter() - started
    leases.release(lease)
    return seconds


def record(database: Database, events: Sequence[Event]) -> None:
    log = Log(database)
    for start in range(0, len(events), 1000):
        log.append([events[start : start + 1000]])


class HotKeyOutbox:
    """An outbox with a key of many versions and a key of many events without version; `times` has the results."""

    def __init__(self, url: str, versions: int) -> None:
        self.database = migrated(url, partitions=1)
        self.mirror = add_target(self.database, bucket="images")
        self.removals = add_target(self.database, "removals", bucket="unversioned", events=["s3:ObjectRemoved:*"])
        add_target(self.database, "all", bucket="unversioned")
        record(self.database, [event(KEY, version=f"v{number}") for number in range(versions)])
        record(self.database, [event(KEY, bucket="unversioned") for _ in range(versions)])
        for target in (self.mirror, self.removals):
            deliver_due(self.database, target, 1000)
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
            ("new", self.mirror, puts), ("removed", self.mirror, removals), ("late, unversioned", self.removals, late)
        ):  # fmt: skip
            record(self.database, events)
            self.times[what].append(deliver_due(self.database, target, batch))


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
        for dialect, url in urls.items():
            outboxes = {count: HotKeyOutbox(url(f"v{count}"), count) for count in map(int, options.versions.split(","))}
            for _ in range(options.rounds):
                for outbox in outboxes.values():  # in turn, so that other load on the machine slows all of them
                    outbox.round(options.batch)
            smallest = outboxes[min(outboxes)]
            for count, outbox in outboxes.items():
                row: dict[str, str | int | float] = {"outbox": dialect, "versions": count}
                for what, seconds in outbox.times.items():
                    ratio = min(seconds) / min(smallest.times[what])
                    row |= {f"{what}, ms": 1000 * min(seconds), f"ratio of {what}": ratio}
                rows.append(row)
                outbox.database.close()
    show("versions", f"A hot key at a mirror, batches of {options.batch}", rows)


if __name__ == "__main__":
    main()
