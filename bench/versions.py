"""A mirror's time for a batch of one hot versioned key, by how many versions it has already: it must not grow.

    python -m bench.versions [--versions 1000,100000] [--batch 500] [--rounds 7]

Each round records a batch of new versions of the key (and the removal of as many old ones), and one worker works it off
to a target that takes everything at once: what is measured is reading, deciding and settling. The outbox is PostgreSQL
with fsync, and SQLite; the median round counts.
"""

import argparse
import statistics
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


def puts(first: int, count: int) -> list[Event]:
    return [event(KEY, version=f"v{number}") for number in range(first, first + count)]


def round_times(url: str, versions: int, batch: int, rounds: int) -> tuple[float, float]:
    """Seconds for a batch of new versions, and for one that removes the newest ones: the median of the rounds."""
    database = migrated(url, lanes=1)
    target = add_target(database)
    record(database, puts(0, versions))
    work_off(database, target, 1000)
    new, removed = [], []
    for number in range(rounds):
        first = versions + number * batch
        record(database, puts(first, batch))
        new.append(work_off(database, target, batch))
        record(database, [event(KEY, name=DELETE, version=f"v{first + place}") for place in reversed(range(batch))])
        removed.append(work_off(database, target, batch))
    database.close()
    return statistics.median(new), statistics.median(removed)


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
        for database, url in urls.items():
            least: tuple[float, float] | None = None
            for versions in map(int, options.versions.split(",")):
                times = round_times(url(f"v{versions}"), versions, options.batch, options.rounds)
                least = least or times
                rows.append(
                    {
                        "outbox": database,
                        "versions": versions,
                        "batch of new ones, ms": 1000 * times[0],
                        "ratio": times[0] / least[0],
                        "batch of removals, ms": 1000 * times[1],
                        "ratio of these": times[1] / least[1],
                    }
                )
    show("versions", f"A hot versioned key at a mirror, batches of {options.batch}", rows)


if __name__ == "__main__":
    main()
