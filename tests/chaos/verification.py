"""Read every target with a client of its own, and count what is not as it was recorded."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from itertools import compress
from typing import TypeVar

import orjson
import psycopg2
import redis
import sqlalchemy as sa

from app.events.parsing import parse
from app.outbox import tables
from app.outbox.admin.replays import Replays
from app.outbox.engine.database import DatabaseUnavailable
from tests.chaos.operations import Operator
from tests.services import speed
from tests.support.fault_injection import Failover, Servers, target_settings, texts
from tests.support.ledger import Counts, Ledger, Span, Stream
from tests.support.service_processes import System
from tests.support.target_readers import Record, hashed, path, rows
from tests.support.traffic import Traffic

T = TypeVar("T")
READ_WITHIN = 120  # seconds: a server that has just come back, on a busy machine, may need several tries
READ_EVERY = 0.5  # seconds
_BUSY = (redis.RedisError, psycopg2.Error, *DatabaseUnavailable, OSError)
CORE = ("webhook", "Redis list", "PostgreSQL log")  # streams that get everything
DECISIVE = {"s3:ObjectCreated:Put", "s3:ObjectRemoved:Delete"}  # what an object without versions is after such an event


@dataclass(frozen=True)
class Figures:
    """What was found since the last look; all but `repeated` and `lost_by_failover` have to be 0."""

    lost: int = 0  # has to be at a target, and is not
    unexpected: int = 0  # never recorded, or not for this target
    repeated: int = 0
    out_of_order: int = 0  # an event that came before an earlier one of its object
    went_back: int = 0  # objects whose last arrival is not their newest
    mirror: int = 0  # objects that a namespace shows otherwise than the buckets hold them
    counters: int = 0  # by how much recorded, delivered and the like do not add up
    lost_by_failover: int = 0  # answered, and not on the standby that took over: no more, and no fewer

    @property
    def sound(self) -> bool:
        """Nothing that may not be."""
        return not sum(astuple(self)) - self.repeated - self.lost_by_failover


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
    _lost_by_failover: int = 0
    _unsure: set[str] = field(default_factory=set)  # objects whose state in a mirror depends on events that are lost
    examples: str = ""  # streams and objects of the last look that went back
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
        lost_before = self._lost_by_failover
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
            counters=patiently(self._mismatch),
            lost_by_failover=self._lost_by_failover - lost_before,
        )
        self.examples = ", ".join(f"{stream}: {name}" for stream, name in sorted(went_back - self._went_back)[:3])
        self._counts, self._lost, self._went_back, self._different = counts, lost, went_back, different
        return figures

    def _read(self) -> None:
        failovers = self.servers.failovers[:]
        self.servers.failovers.clear()
        for poster in self.flow.posters:
            records, spans = poster.draw()
            self.ledger.record(records, spans)
            gone = [not poster.repeats and was_lost(*each, failovers) for each in zip(records, spans, strict=True)]
            self.ledger.lose(compress(records, gone))
            self._lost_by_failover += sum(gone)
            for record, is_gone in zip(records, gone, strict=True):
                self._note(record, lost=is_gone)
        delivered = [request for request in self.servers.receiver.take() if request.status == 200]
        for name, place in (("webhook", "/"), ("strict", "/strict")):
            self.ledger.arrive(name, [request.json()["Records"][0] for request in delivered if request.path == place])
        self.ledger.arrive("Redis list", self._listed("list"))
        for key in self.operator.streams:
            if key != "strict":
                self.ledger.arrive(key, self._listed(key))
        self.ledger.arrive("PostgreSQL log", self._logged())

    def _note(self, record: Record, *, lost: bool) -> None:
        """A lost event leaves open what a mirror has of its object: with versions for good, else until a newer one."""
        name = path(record)
        if lost:
            self._unsure.add(name)
        elif name.startswith("plain/") and record["eventName"] in DECISIVE:
            self._unsure.discard(name)

    def _listed(self, key: str) -> list[Record]:
        """Take what a list has. Each step may be done twice: one without an answer may have been done."""
        taken = f"{key}.taken"

        def take() -> list[bytes]:
            with self.servers.redis.client() as client:
                if not client.exists(taken) and client.exists(key):
                    client.rename(key, taken)
                return client.lrange(taken, 0, -1)

        def forget() -> None:
            with self.servers.redis.client() as client:
                client.delete(taken)

        entries = patiently(take)
        patiently(forget)
        return [orjson.loads(entry)[0]["Event"][0] for entry in entries]

    def _logged(self) -> list[Record]:
        """Take what a table has, in steps that may be done twice."""

        def take() -> list[tuple[int, Record]]:
            with self.servers.postgres.connection("target") as connection, connection.cursor() as cursor:
                cursor.execute("SELECT written, event_data FROM log ORDER BY written")
                return [(number, data["Records"][0]) for number, data in cursor.fetchall()]

        def forget() -> None:
            with self.servers.postgres.connection("target") as connection, connection.cursor() as cursor:
                cursor.execute("DELETE FROM log WHERE written = ANY(%s)", ([number for number, _ in taken],))

        taken = patiently(take)
        patiently(forget)
        return [record for _, record in taken]

    def _differences(self) -> set[tuple[str, str, bytes | None]]:
        """Mirror, object and what the mirror has, where that is not what the bucket holds."""
        buckets = texts(self.flow.rows())
        mirrors = {
            "redis": texts(patiently(lambda: hashed(self.servers.redis, "rows"))),
            "postgresql": texts(patiently(lambda: rows(self.servers.postgres, "target", "rows"))),
        }
        return {
            (name, path, mirror.get(path))
            for name, mirror in mirrors.items()
            for path in _paths(buckets, mirror) - self._unsure
            if buckets.get(path) != mirror.get(path)
        }

    def _mismatch(self) -> int:
        replayed, core = self._replayed(), target_settings(self.servers)
        answered = self.flow.taken - self._lost_by_failover
        total = abs(self._recorded() - answered)
        for entry in self.whole.audits():
            name, counters = str(entry.counters.target), entry.counters
            total += abs(entry.difference) + counters.discarded
            if name in core:
                # More are recorded where a lease was lost: the newest event of an object is then delivered again.
                total += max(0, answered + replayed[name] - counters.recorded)
        return total

    def _recorded(self) -> int:
        """How many events the log has: none that was answered with 202 has left it yet."""
        with self.whole.another_database() as database, database.reading() as connection:
            return int(connection.execute(sa.select(sa.func.count()).select_from(tables.events)).scalar_one())

    def _replayed(self) -> Counter[str]:
        """How many events replays have counted as recorded once more, by `type:name`."""
        counts: Counter[str] = Counter()
        with self.whole.another_database() as database:
            for replay in Replays(database).list():
                counts[str(replay.target)] += replay.replayed
        return counts


def patiently(read: Callable[[], T]) -> T:
    """What `read` returns, which is called again while a busy server refuses it or gives no answer in time."""
    deadline = speed.deadline(READ_WITHIN)
    while True:
        try:
            return read()
        except _BUSY:
            if time.monotonic() > deadline:
                raise
            time.sleep(READ_EVERY)


def was_lost(record: Record, span: Span, failovers: Sequence[Failover]) -> bool:
    """Whether the record was answered by a server whose standby took over without it."""
    _, answered = span
    before = [each for each in failovers if answered < each.began]
    if not before:
        return False
    [event] = parse(orjson.dumps({"Records": [record]}), {}, now_ms=0).events
    return any(event.id not in each.event_ids for each in before)


def _paths(*mappings: Iterable[str]) -> set[str]:
    return {name for mapping in mappings for name in mapping}
