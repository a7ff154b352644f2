"""Read every target with a client of its own, and count what is not as it was recorded."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field

import orjson

from app.outbox.delivery.replays import Replays
from app.outbox.engine.database import Database
from tests.chaos.operations import Operator
from tests.support.fault_injection import Servers, target_settings, texts
from tests.support.ledger import Counts, Ledger, Stream
from tests.support.service_processes import System
from tests.support.target_readers import Record, hashed, rows
from tests.support.traffic import Traffic

CORE = ("webhook", "Redis list", "PostgreSQL log")  # streams that get everything


@dataclass(frozen=True)
class Figures:
    """What was found since the last look; all but `repeated` have to be 0."""

    lost: int = 0  # has to be at a target, and is not
    unexpected: int = 0  # never recorded, or not for this target
    repeated: int = 0
    out_of_order: int = 0  # an event that came before an earlier one of its object
    went_back: int = 0  # objects whose last arrival is not their newest
    mirror: int = 0  # objects that a namespace shows otherwise than the buckets hold them
    counters: int = 0  # by how much recorded, delivered and the like do not add up

    @property
    def sound(self) -> bool:
        """Nothing that may not be."""
        return not sum(astuple(self)) - self.repeated


@dataclass
class Verification:
    """Compares targets and counters with what was posted, each time for what is new."""

    whole: System
    servers: Servers
    flow: Traffic
    ledger: Ledger
    operator: Operator
    _counts: Counts = field(default_factory=Counts)
    _lost: int = 0
    _went_back: set[tuple[str, str]] = field(default_factory=set)
    _different: set[tuple[str, str, bytes | None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        for name in CORE:
            self.ledger.follow(Stream(name))

    def look(self, *, delayed: bool = False) -> Figures:
        """Read all targets; when nothing is on its way, unless the round has failed already.

        With `delayed` a request came to a target late: a log then has its events after newer ones, which only a mirror
        must not show.
        """
        self._read()
        counts, lost, went_back = self.ledger.total(), self.ledger.lost(), self.ledger.went_back()
        different, new = self._differences(), counts - self._counts
        figures = Figures(
            lost=max(0, lost - self._lost),
            unexpected=new.unexpected,
            repeated=new.repeated,
            out_of_order=new.out_of_order,
            went_back=0 if delayed else len(went_back - self._went_back),
            mirror=len(different - self._different),
            counters=self._mismatch(),
        )
        self._counts, self._lost, self._went_back, self._different = counts, lost, went_back, different
        return figures

    def _read(self) -> None:
        for poster in self.flow.posters:
            self.ledger.record(*poster.draw())
        delivered = [request for request in self.servers.receiver.take() if request.status == 200]
        for name, path in (("webhook", "/"), ("strict", "/strict")):
            self.ledger.arrive(name, [request.json()["Records"][0] for request in delivered if request.path == path])
        self.ledger.arrive("Redis list", self._listed("list"))
        for key in self.operator.streams:
            if key != "strict":
                self.ledger.arrive(key, self._listed(key))
        self.ledger.arrive("PostgreSQL log", self._logged())

    def _listed(self, key: str) -> list[Record]:
        with self.servers.redis.client() as client, client.pipeline(transaction=True) as both:
            entries, _ = both.lrange(key, 0, -1).delete(key).execute()
        return [orjson.loads(entry)[0]["Event"][0] for entry in entries]

    def _logged(self) -> list[Record]:
        with self.servers.postgres.connection("target") as connection, connection.cursor() as cursor:
            cursor.execute("DELETE FROM log RETURNING written, event_data")
            return [data["Records"][0] for _, data in sorted(cursor.fetchall(), key=lambda row: row[0])]

    def _differences(self) -> set[tuple[str, str, bytes | None]]:
        """Mirror, object and what the mirror has, where that is not what the bucket holds."""
        buckets = texts(self.flow.rows())
        mirrors = {
            "redis": texts(hashed(self.servers.redis, "rows")),
            "postgresql": texts(rows(self.servers.postgres, "target", "rows")),
        }
        return {
            (name, path, mirror.get(path))
            for name, mirror in mirrors.items()
            for path in _paths(buckets, mirror)
            if buckets.get(path) != mirror.get(path)
        }

    def _mismatch(self) -> int:
        replayed, core, total = self._replayed(), target_settings(self.servers), 0
        for entry in self.whole.audits():
            name, counters = str(entry.counters.target), entry.counters
            total += abs(entry.difference) + counters.discarded
            if name in core:
                # More are recorded where a lease was lost: the newest event of an object is then delivered again.
                total += max(0, self.flow.taken + replayed[name] - counters.recorded)
        return total

    def _replayed(self) -> Counter[str]:
        """How many events replays have counted as recorded once more, by `type:name`."""
        counts: Counter[str] = Counter()
        with contextlib.closing(Database(self.whole.settings["BUCKETWIRE_DATABASE_URL"])) as database:
            for replay in Replays(database).list():
                counts[str(replay.target)] += replay.replayed
        return counts


def _paths(*mappings: Iterable[str]) -> set[str]:
    return {path for mapping in mappings for path in mapping}
