"""A mirror's time for a batch of events of one hot key, by how many it has already: it must not grow.

    python -m bench.versions [--versions 1000,100000] [--batch 500] [--rounds 7]

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
from app.outbox.append import Log
from app.outbox.database import Database, now_ms
from app.outbox.leases import Leases
from app.outbox.store import Store
from bench.report import show
from tests import services
from tests.builders import DELETE, add_target, event, migrated
from workers.lanes import Lanes, Pace, Work
from workers.mirror import Policy
from workers.outcomes import DELIVERED, Outcome
from workers.retry import RetrySchedule

KEY = "hot"


class Taker:
    """A target that takes everything at once."""

    def open(self) -> None:
        pass

    def deliver(self, events: Sequence[Event], window: int) -> list[Outcome]:  # noqa: ARG002 - the targets' contract
        return [DELIVERED] * len(events)

    def close(self) -> None:
        pass


def work_off(database: Database, target: TargetId, batch: int) -> float:
    """Seconds that one lease took for what was due."""
    leases, store = Leases(database, 600_000), Store(database, 600_000)
    lease = leases.claim(target, range(16), "bench", now_ms())
    assert lease is not None
    work = Work(str(target), Taker(), Policy.MIRROR, RetrySchedule(base=0, cap=0), 1000, Pace(batch, batch))
    started = time.perf_counter()
    Lanes(store, work, lease).work_off(lambda: False)
    took = time.perf_counter() - started
    leases.release(lease)
    return took


def record(database: Database, events: Sequence[Event]) -> None:
    log = Log(database)
    for start in range(0, len(events), 1000):
        log.append([events[start : start + 1000]])


def round_times(url: str, versions: int, batch: int, rounds: int) -> tuple[float, float, float]:
    """Seconds for a batch of new versions, of their removals, and of late removals without version."""
    database = migrated(url, lanes=1)
    target = add_target(database, bucket="images")
    few = add_target(database, "few", bucket="unversioned", events=["s3:ObjectRemoved:*"])
    add_target(database, "all", bucket="unversioned")
    record(database, [event(KEY, version=f"v{number}") for number in range(versions)])
    record(database, [event(KEY, bucket="unversioned") for _ in range(versions)])
    for each in (target, few):
        work_off(database, each, 1000)
    new, removed, late = [], [], []
    for number in range(rounds):
        names = [f"v{versions + number * batch + place}" for place in range(batch)]
        record(database, [event(KEY, version=name) for name in names])
        new.append(work_off(database, target, batch))
        record(database, [event(KEY, name=DELETE, version=name) for name in reversed(names)])
        removed.append(work_off(database, target, batch))
        old = [f"{0x18E9E833E5000000 + number * batch + place:X}" for place in range(batch)]
        record(database, [event(KEY, name=DELETE, bucket="unversioned", sequencer=sequencer) for sequencer in old])
        late.append(work_off(database, few, batch))
    database.close()
    return min(new), min(removed), min(late)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", default="1000,100000")
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=7)
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
            least: tuple[float, float, float] | None = None
            for versions in map(int, options.versions.split(",")):
                times = round_times(url(f"v{versions}"), versions, options.batch, options.rounds)
                least = least or times
                row: dict[str, str | int | float] = {"outbox": outbox, "versions": versions}
                for what, took, base in zip(("new", "removed", "late, unversioned"), times, least, strict=True):
                    row |= {f"{what}, ms": 1000 * took, f"ratio of {what}": took / base}
                rows.append(row)
    show("versions", f"A hot key at a mirror, batches of {options.batch}", rows)


if __name__ == "__main__":
    main()
