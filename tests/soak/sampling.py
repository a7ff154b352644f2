"""Measure what a running service uses: processes by role, tables of the outbox, and how long deliveries take."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg2

from tests.services import Postgres
from tests.services.server_process import Server
from tests.soak.load import Latencies
from tests.soak.trends import Limit, Sample
from tests.support.service_processes import System

KIB = 1024
# Growth over the judged part of a run from which on it counts as a trend.
LIMITS = {
    "memory": Limit(768 * KIB),  # anonymous, shared pages by share: libraries depend on who else uses them
    "RSS": Limit(768 * KIB, 0.05),  # counts what the role's processes share once for each of them: not judged
    "open files": Limit(3),
    "threads": Limit(2),
    "connections": Limit(3),
    "rows": Limit(500, 0.15),
    "bytes": Limit(1024 * KIB, 0.25),  # a table does not shrink after an outage, and autovacuum comes in steps
    "latency p50": Limit(0.02, 0.25),
    "latency p99": Limit(0.25, 0.5),
}
NOT_JUDGED = frozenset({"RSS"})
TABLES = ("events", "cursors", "parked", "dead_letters", "replays", "heartbeats", "sources", "source_positions")


@dataclass(frozen=True, order=True)
class Measure:
    """One series: what is measured, and of what."""

    of: str
    what: str


@dataclass
class Sampler:
    """Takes a sample of everything; what cannot be read at that moment is left out."""

    whole: System
    database: Postgres
    latencies: Latencies
    further: Mapping[str, Server] = field(default_factory=dict)  # processes besides those of the system, by name
    series: dict[Measure, list[Sample]] = field(default_factory=lambda: defaultdict(list))

    def sample(self, at: float) -> None:
        """Add one sample of each measure, as of `at` seconds."""
        for measure, value in [*self._roles(), *self._tables(), *self._latency()]:
            self.series[measure].append((at, value))

    def _roles(self) -> Iterator[tuple[Measure, float]]:
        names = ["api", "beat", "drain", *(f"worker {number}" for number in range(1, len(self.whole.workers) + 1))]
        for name, role in [*zip(names, self.whole.roles, strict=True), *self.further.items()]:
            for what, value in self._role(role).items():
                yield Measure(name, what), value

    def _role(self, role: Server) -> dict[str, float]:
        root = psutil.Process(role.pid)
        totals: dict[str, float] = defaultdict(float)
        for process in [root, *root.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
                totals["memory"] += _anonymous(process.pid)
                totals["RSS"] += process.memory_info().rss
                totals["open files"] += process.num_fds()
                totals["threads"] += process.num_threads()
                totals["connections"] += sum(
                    bool(each.raddr) and each.raddr.port == self.database.port
                    for each in process.net_connections("tcp")
                )
        return totals

    def _tables(self) -> Iterable[tuple[Measure, float]]:
        with suppress(psycopg2.Error):
            return list(self._read_tables())
        return ()

    def _read_tables(self) -> Iterator[tuple[Measure, float]]:
        with self.database.connection("outbox") as connection, closing(connection.cursor()) as cursor:
            for table in TABLES:
                cursor.execute(f"SELECT (SELECT COUNT(*) FROM {table}), pg_total_relation_size('{table}')")
                [(rows, size)] = cursor.fetchall()
                yield Measure(table, "rows"), float(rows)
                yield Measure(table, "bytes"), float(size)

    def _latency(self) -> Iterator[tuple[Measure, float]]:
        seconds = sorted(self.latencies.take())
        if seconds:
            yield Measure("delivery", "latency p50"), seconds[len(seconds) // 2]
            yield Measure("delivery", "latency p99"), seconds[len(seconds) * 99 // 100]


def _anonymous(pid: int) -> int:
    """The anonymous memory of a process in bytes (PSS), with its part of what it shares with its forks, and swap."""
    sizes = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    return KIB * sum(int(size) for name, size, *_ in sizes if name in ("Pss_Anon:", "SwapPss:"))


def write_samples(series: dict[Measure, list[Sample]], file: Path) -> None:
    """Write all samples as CSV: seconds, of, what, value."""
    with file.open("w") as out:
        out.write(f"seconds,of,what,value{os.linesep}")
        for measure, samples in sorted(series.items()):
            out.writelines(f"{at:.1f},{measure.of},{measure.what},{value}{os.linesep}" for at, value in samples)
