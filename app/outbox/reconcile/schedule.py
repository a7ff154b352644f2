"""The schedule of the reconciliations: runs that have come due are registered once, and wait until one takes them.

A target's settings say when (`reconcile`), its rules say which buckets. An event may name any bucket: only those with
names that a storage allows are scheduled, and for a rule of every bucket no more than `MOST_BUCKETS`. Whoever looks may
look as often as it likes, and several may look at once: what the table of runs holds decides. A run that is registered
waits however long the one before it takes; who begins it is decided by `Reconciliations.begin`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.config.fields.cron import last_moment
from app.events.buckets import is_bucket_name
from app.outbox import tables
from app.outbox.buckets import usable_buckets
from app.outbox.engine.database import Database
from app.outbox.reconcile.runs import (
    BACKFILLED,
    BACKFILLING,
    CLEAN,
    COUNTS,
    DRIFT,
    FAILED,
    REPAIRED,
    RUNNING,
    UNFINISHED,
    WAITING,
)
from app.rules.model import EVERY_BUCKET

MOST_BUCKETS = 1_000  # of one target: each is a run of its own, and anybody who may post events makes buckets known
MAX_DELAY = 3_600_000  # ms after its moment in which a run is still registered; a service may have been down
_Pair = tuple[TargetId, str]


@dataclass(frozen=True, slots=True)
class WaitingRun:
    """A run that nobody has begun. `since` is milliseconds since 1970; `first`: none like it ever came to its end."""

    run: str
    target: TargetId
    bucket: str
    since: int
    first: bool


def left_out(number: int) -> str:
    """What to say where so many buckets of a target are left out of its schedule."""
    return (
        f"{number} of the buckets in its events are not reconciled by schedule: no storage allows their names, or they "
        f"are beyond the first {MOST_BUCKETS}; a rule that names a bucket puts it first"
    )


def due(expression: str, begun: int, now: int) -> bool:
    """Whether a run is due of which the last one before was begun at `begun` (ms; 0 for never)."""
    moment = last_moment(expression, now)
    return begun < moment and now - moment <= MAX_DELAY


class Schedule:
    """The runs that are due, and those that wait."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def is_wanted(self) -> bool:
        """Whether any target has a schedule."""
        with self._database.reading() as connection:
            return bool(_expressions(connection))

    def register(self, now: int) -> int:
        """Register what is due at `now` (ms) and neither waits nor goes on already; says how much that is."""
        with self._database.reading() as connection:
            expressions = _expressions(connection)
            if not expressions:
                return 0
            pairs = list(_pairs(connection, expressions)[0])
            if not any(_due(connection, pairs, now)):
                return 0
        with self._database.writing() as connection:
            # The head's lock: of two that look at once the second sees what the first has registered.
            connection.execute(tables.log_head.update().values(last_seq=tables.log_head.c.last_seq))
            found = [_row(target, bucket, now) for target, bucket in _due(connection, pairs, now)]
            if found:
                connection.execute(tables.reconciliations.insert(), found)
            return len(found)

    def left_out(self) -> dict[TargetId, int]:
        """How many buckets of each target with a schedule are not scheduled, for their names or for their number."""
        with self._database.reading() as connection:
            return _pairs(connection, _expressions(connection))[1]

    def waiting(self) -> Sequence[WaitingRun]:
        """The runs that nobody has begun, oldest first."""
        r = tables.reconciliations.c
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(tables.reconciliations).where(r.state == WAITING).order_by(r.id)).all()
            return [
                WaitingRun(
                    row.run, TargetId(row.type, row.name), row.bucket, row.started_at, not _ended(connection, row)
                )
                for row in rows
            ]

    def give_up(self, run: str, problem: str, now: int) -> bool:
        """Record why a run will not come to its end, of whose process nothing is left; False if it says so itself."""
        r = tables.reconciliations.c
        with self._database.writing() as connection:
            left = tables.reconciliations.update().where(r.run == run, r.state.in_((WAITING, RUNNING)))
            values = {"state": FAILED, "finished_at": now, "problem": problem[:2000]}
            return bool(connection.execute(left.values(**values)).rowcount)


def _pairs(
    connection: sa.Connection, expressions: Mapping[TargetId, str]
) -> tuple[list[tuple[TargetId, str, str]], dict[TargetId, int]]:
    """Each target with each bucket that its rules name, and when; and how many buckets of a target are left out."""
    t, query = tables.targets.c, sa.select(tables.rules.c.bucket, tables.targets.c.type, tables.targets.c.name)
    named = connection.execute(query.join_from(tables.rules, tables.targets).distinct().order_by(t.type, t.name)).all()
    wanted = [(TargetId(row.type, row.name), row.bucket) for row in named]
    wanted = [(target, bucket) for target, bucket in wanted if target in expressions]
    every = {target for target, bucket in wanted if bucket == EVERY_BUCKET}
    usable, others = usable_buckets(connection, MOST_BUCKETS) if every else ([], 0)
    chosen = dict.fromkeys((target, bucket) for target in sorted(every) for bucket in usable)
    left_out = dict.fromkeys(every, others) if others else {}
    for target, bucket in wanted:
        if is_bucket_name(bucket):
            chosen[target, bucket] = None
        elif target not in every:
            left_out[target] = left_out.get(target, 0) + 1
    return [(target, bucket, expressions[target]) for target, bucket in chosen], left_out


def _expressions(connection: sa.Connection) -> dict[TargetId, str]:
    t = tables.targets.c
    query = sa.select(t.type, t.name, t.settings).where(t.enabled, t.problem == "", t.settings.contains('"reconcile"'))
    found = {}
    for row in connection.execute(query):
        if expression := orjson.loads(row.settings).get("reconcile"):
            found[TargetId(row.type, row.name)] = str(expression)
    return found


def _due(connection: sa.Connection, pairs: Iterable[tuple[TargetId, str, str]], now: int) -> Iterator[_Pair]:
    r = tables.reconciliations.c
    begun: dict[_Pair, int] = {}
    # What began earlier is before every moment that counts.
    recent = (r.started_at >= now - MAX_DELAY, r.state.not_in((BACKFILLING, BACKFILLED, UNFINISHED)))
    last = sa.select(r.type, r.name, r.bucket, sa.func.max(r.started_at).label("at")).where(*recent)
    for row in connection.execute(last.group_by(r.type, r.name, r.bucket)):
        begun[TargetId(row.type, row.name), row.bucket] = row.at
    at_work = sa.select(r.type, r.name, r.bucket).where(r.finished_at == 0, r.alive_until > now)
    busy = {(TargetId(row.type, row.name), row.bucket) for row in connection.execute(at_work)}
    for target, bucket, expression in pairs:
        if (target, bucket) not in busy and due(expression, begun.get((target, bucket), 0), now):
            yield target, bucket


def _row(target: TargetId, bucket: str, now: int) -> dict[str, object]:
    return {
        "run": uuid4().hex, "type": target.type, "name": target.name, "bucket": bucket, "state": WAITING,
        "started_at": now, "alive_until": tables.NEVER, "finished_at": 0, "report": "", "problem": "",
        **dict.fromkeys(COUNTS, 0),
    }  # fmt: skip


def _ended(connection: sa.Connection, row: sa.Row[tuple[object, ...]]) -> bool:
    """Whether a reconciliation of the same target and bucket has ever come to its end."""
    r = tables.reconciliations.c
    same = (r.type == row.type, r.name == row.name, r.bucket == row.bucket)
    query = sa.select(r.id).where(*same, r.state.in_((CLEAN, DRIFT, REPAIRED))).limit(1)
    return connection.execute(query).first() is not None
