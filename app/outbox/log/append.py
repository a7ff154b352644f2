"""Append events to the log: many requests in one transaction, each event recorded once, counted for each target.

The head row is locked first. From then on this is the only writer, so what is read next (rules, limits, which
events are already there) is exact until the commit.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeVar

import sqlalchemy as sa

from app.config.arn import TargetId
from app.events import sequencer, test_events
from app.events.model import Event
from app.events.stored_size import is_larger
from app.outbox import tables
from app.outbox.buckets import REMOVED, Remembered
from app.outbox.engine.copy_insert import insert
from app.outbox.engine.database import Database, now_ms
from app.outbox.engine.db_errors import Unstorable
from app.outbox.log.routing import Routing, load_routing

_Value = TypeVar("_Value")
_CHUNK = 1000  # values of one IN (…): far below every database's limit

# Made once: building a statement costs about as much as the database needs to run it.
_HEAD = (tables.log_head.c.last_seq, tables.log_head.c.partitions, tables.log_head.c.version)
_RESERVE = tables.log_head.update().values(last_seq=tables.log_head.c.last_seq + sa.bindparam("wanted"))
_RESERVE_RETURNING, _READ_HEAD = _RESERVE.returning(*_HEAD), sa.select(*_HEAD)
_SELECT_RECORDED = sa.select(tables.targets.c.id, tables.targets.c.recorded)
_SELECT_KNOWN = sa.select(tables.events.c.id).where(tables.events.c.id.in_(sa.bindparam("ids", expanding=True)))


@dataclass(slots=True)
class Receipt:
    """What became of one request's events; sent back to the frontend."""

    recorded: int = 0
    repeated: int = 0
    matched: Counter[TargetId] = field(default_factory=Counter)
    discarded: Counter[TargetId] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class QueueFull:
    """The request was refused as a whole: these targets have `queue_full=reject` and no room."""

    targets: tuple[TargetId, ...]


def key_hash(bucket: str, key: str) -> int:
    """64 bits (signed) that stand for an object: they choose its partition and find its history."""
    digest = hashlib.blake2b(f"{bucket}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def targets_text(ids: Iterable[int]) -> str:
    """Target ids as the log keeps them: `,3,17,`, so that `,3,` finds 3 and never 13."""
    listed = ",".join(map(str, ids))
    return f",{listed}," if listed else ""


class Log:
    """The appending end of the log. One object for each process; safe to use from one thread at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._routing = Routing.empty()
        self._buckets = Remembered()
        self._settled: dict[int, int] = {}  # lower bounds: what has given its room back only grows in number

    def append(
        self, requests: Sequence[Sequence[Event]], *, promised: bool = False, routed: bool = True
    ) -> list[Receipt | QueueFull]:
        """Record the events of several requests in one commit; an answer for each request, in order.

        An event whose id is in the log already is counted as repeated and changes nothing. Requests that are
        `promised` were answered with 2xx already and are not refused: a target with `queue_full=reject` goes over its
        limit for them. Those that are not `routed` go to no target, whatever the rules: they are for who listens.
        Raises `DatabaseUnavailable` or one of `VALUE_ERRORS`, and then nothing was recorded.
        """
        wanted = sum(map(len, requests))
        if not wanted:
            return [Receipt() for _ in requests]
        self._check_sizes(requests)
        # Before the head is locked, as nobody else can append then; for nothing where the rules have changed since.
        expected = self._routing
        matched = {event.id: expected.targets(event) for events in requests for event in events} if routed else {}
        with self._database.writing() as connection:
            first, partitions = self._take(connection, wanted)
            if self._routing is not expected:
                matched.clear()
            known = _known(connection, {event.id for events in requests for event in events})
            requests = self._chosen(connection, requests, known)
            room = self._room(connection, wanted)
            if promised:
                room = {target: left for target, left in room.items() if target not in self._routing.rejecting}
            routing = self._routing if routed else Routing.empty()
            intake = BatchBuilder(routing, matched, known, room, first, partitions, now_ms())
            answers = [intake.take(events) for events in requests]
            insert(connection, tables.events, intake.rows)
            _count(connection, intake)
            buckets = self._buckets.new(connection, intake.buckets(), now_ms())
        self._buckets.add(buckets)
        return answers

    def _check_sizes(self, requests: Sequence[Sequence[Event]]) -> None:
        """A server hangs up on a statement that is too large, which would look as if it were gone."""
        most = self._database.largest_event
        if most is not None and any(is_larger(event, most) for events in requests for event in events):
            raise Unstorable(f"an event has more than the {most} bytes that the database takes")

    def _chosen(
        self,
        connection: sa.Connection,  # noqa: ARG002 (for logs that look before they take)
        requests: Sequence[Sequence[Event]],
        known: set[str],  # noqa: ARG002 (as above)
    ) -> Sequence[Sequence[Event]]:
        """The events to record, of those that were asked for; under the head's lock."""
        return requests

    def _take(self, connection: sa.Connection, wanted: int) -> tuple[int, int]:
        if connection.dialect.update_returning:
            row = connection.execute(_RESERVE_RETURNING, {"wanted": wanted}).one()
        else:
            connection.execute(_RESERVE, {"wanted": wanted})
            row = connection.execute(_READ_HEAD).one()
        if row.version != self._routing.version:
            self._routing = load_routing(connection, row.version)
            self._settled.clear()
            self._buckets.clear()
        return row.last_seq - wanted + 1, row.partitions

    def _room(self, connection: sa.Connection, wanted: int) -> dict[int, int]:
        """How many events each target may still take; exact where it matters, a lower bound elsewhere."""
        room: dict[int, int] = {}
        if not self._routing.limits:
            return room
        for row in connection.execute(_SELECT_RECORDED):
            limit = self._routing.limits.get(row.id)
            if limit is None:
                continue
            room[row.id] = limit - (row.recorded - self._settled.get(row.id, 0))
            if room[row.id] < wanted:
                self._settled[row.id] = settled(connection, row.id)
                room[row.id] = limit - (row.recorded - self._settled[row.id])
        return room


def settled(connection: sa.Connection, target_id: int) -> int:
    """How many of the events that were taken for a target take no room of its queue any more; never fewer than before.

    They were delivered, superseded, purged, or are dead. A replay changes nothing here: it takes no room, also not for
    those of its events that are parked. Reads the target's cursors and nothing else, however many events are dead: it
    is asked for under the lock of the log's head.
    """
    c = tables.cursors.c
    freed = sa.select(sa.func.coalesce(sa.func.sum(c.freed), 0)).where(c.target_id == target_id)
    return int(connection.execute(freed).scalar_one())


class BatchBuilder:
    """One transaction's worth of requests on their way into rows; decides, touches no database."""

    def __init__(
        self,
        routing: Routing,
        matched: Mapping[str, tuple[int, ...]],
        known: Collection[str],
        room: dict[int, int],
        first: int,
        partitions: int,
        now: int,
    ) -> None:
        self._routing = routing
        self._matched = matched
        self._known = set(known)
        self._room = room
        self._seq = first
        self._partitions = partitions
        self._now = now
        self.rows: list[dict[str, Any]] = []
        self.recorded: Counter[int] = Counter()
        self.discarded: Counter[int] = Counter()

    def take(self, events: Sequence[Event]) -> Receipt | QueueFull:
        """Take one request\'s events, or refuse all of them where a target is full."""
        fresh: dict[str, tuple[Event, tuple[int, ...]]] = {}
        for event in events:
            if event.id not in self._known and event.id not in fresh:
                found = self._matched.get(event.id)
                fresh[event.id] = (event, self._routing.targets(event) if found is None else found)
        full = self._refusing(fresh.values())
        if full:
            return QueueFull(full)
        receipt = Receipt(recorded=len(fresh), repeated=len(events) - len(fresh))
        self._known.update(fresh)
        for event, matched in fresh.values():
            taken = []
            for target in matched:
                receipt.matched[self._routing.ids[target]] += 1
                if self._room.get(target, 1) > 0:
                    self._room[target] = self._room.get(target, 1 << 62) - 1
                    self.recorded[target] += 1
                    taken.append(target)
                else:
                    self.discarded[target] += 1
                    receipt.discarded[self._routing.ids[target]] += 1
            self.rows.append(self._row(event, targets_text(taken)))
        return receipt

    def buckets(self) -> set[str]:
        """The buckets that its rows tell of as being there; that of trials is none."""
        return {row["bucket"] for row in self.rows if row["name"] not in REMOVED} - {test_events.TEST_BUCKET}

    def _refusing(self, fresh: Iterable[tuple[Event, tuple[int, ...]]]) -> tuple[TargetId, ...]:
        if not self._routing.rejecting:
            return ()
        wanted = Counter(target for _, matched in fresh for target in matched)
        return tuple(
            self._routing.ids[target]
            for target, count in wanted.items()
            if target in self._routing.rejecting and count > self._room.get(target, count)
        )

    def _row(self, event: Event, targets: str) -> dict[str, Any]:
        hashed = key_hash(event.bucket, event.key)
        states = sequencer.states_content(event.name, event.version)
        row = {
            "partition": hashed % self._partitions,
            "seq": self._seq,
            "id": event.id,
            "key_hash": hashed,
            "received_at": self._now,
            "name": event.name,
            "bucket": event.bucket,
            "key": event.key,
            "version": event.version,
            "sequencer": sequencer.comparable(event.sequencer) if states else "",
            "time": event.time,
            "targets": targets,
            "record": event.record,
            "trace": event.trace,  # "" and not NULL: a row without NULL needs no map of them, and COPY no exception
        }
        self._seq += 1
        return row


def _known(connection: sa.Connection, ids: set[str]) -> set[str]:
    found: set[str] = set()
    for some in chunks(list(ids)):
        found.update(connection.execute(_SELECT_KNOWN, {"ids": some}).scalars())
    return found


def _count(connection: sa.Connection, intake: BatchBuilder) -> None:
    touched = tuple(sorted(intake.recorded.keys() | intake.discarded.keys()))
    if touched:
        counts = {f"recorded_{target}": intake.recorded[target] for target in touched}
        counts |= {f"discarded_{target}": intake.discarded[target] for target in touched}
        connection.execute(_counting(touched), counts)


@lru_cache(maxsize=64)
def _counting(touched: tuple[int, ...]) -> sa.Update:
    """One statement for all targets that a transaction has events for."""
    t = tables.targets.c
    added = {
        name: sa.case(
            {target: sa.bindparam(f"{name}_{target}", type_=sa.BigInteger) for target in touched}, value=t.id, else_=0
        )
        for name in ("recorded", "discarded")
    }
    sums = {name: t[name] + value for name, value in added.items()}
    return tables.targets.update().where(t.id.in_(touched)).values(sums)


def chunks(values: Sequence[_Value]) -> Iterator[Sequence[_Value]]:
    """Slices short enough for one IN (…)."""
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]
