"""Decide and record events about the service itself: a target or source became unavailable, events died, ….

The task that samples the counters calls `NoticeRecorder.record` every 10 s. What was noticed last is in the table
`notices`. An event and its row are written in one transaction under the lock of the log's head, and only if the row is
still as it was read. So of several processes that notice the same, and of one that was stopped meanwhile, one records
it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import sqlalchemy as sa

from app.config.arn import TargetId, parse_target
from app.events import own_events as names
from app.events.model import Event
from app.outbox import log_head, series, tables
from app.outbox.delivery.availability import read_failing
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.log.append import Log, Receipt
from app.outbox.policies import HEARTBEATS, NOTICES
from app.outbox.reconcile import runs
from app.outbox.sources.rows import read_sources
from app.resources.reconciliation import DRIFT_KINDS

AVAILABILITY, FAILING, BACKLOG, DEAD, DRIFT, DRAIN = "availability", "failing", "backlog", "dead", "drift", "drain"
SOURCE, LOST = "source", "lost"
SERVICE = 0  # instead of a target's row id; a source has its `notice_key`
_WITH_DRIFT = tables.reconciliations.c.state.in_((runs.DRIFT, runs.REPAIRED))


@dataclass(frozen=True, slots=True)
class Known:
    """What was noticed last: a value whose meaning depends on the kind, and when an event reported trouble (ms)."""

    value: int
    notified_at: int


@dataclass(frozen=True, slots=True)
class Observation:
    """The present value of something that is watched; for a total `facts` are those of an increase."""

    kind: str
    target_id: int
    subject: str
    value: int
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int]:
        """The key of its row."""
        return self.kind, self.target_id


@dataclass(frozen=True, slots=True)
class Notice:
    """A change to store, with the event that reports it; without a name there is none."""

    observation: Observation
    known: Known | None
    new: Known
    name: str = ""
    count: int = 0


# Of a value that is 0 or 1: the event for 1, and the one for 0 again.
_LEVELS = {
    AVAILABILITY: (names.UNAVAILABLE, names.AVAILABLE),
    FAILING: (names.FAILING, names.RECOVERED),
    BACKLOG: (names.BACKLOG_HIGH, names.BACKLOG_NORMAL),
    SOURCE: (names.SOURCE_UNAVAILABLE, names.SOURCE_AVAILABLE),
}
_COUNTS = {DEAD: "count", DRIFT: "runs"}  # the facts that say how much a total has grown
_TOTALS = {DEAD: names.DEAD, DRIFT: names.DRIFT, DRAIN: names.RESUMED, LOST: names.MESSAGES_LOST}


def decide(
    observations: Iterable[Observation], known: Mapping[tuple[str, int], Known], now: int, interval: int
) -> list[Notice]:
    """Return what to store and report; `interval` (ms) is the least time between two reports of a kind and target.

    A level is reported when it changes. Trouble that comes again within the interval is reported at its end if it still
    lasts, so the last report is always true. An increase of a total is reported with everything that was added since
    the report before. On the first call, totals are stored without a report: what happened before is not news.
    """
    first = not known
    notices = []
    for one in observations:
        before = known.get(one.key)
        rests = before is not None and 0 <= now - before.notified_at < interval
        if one.kind in _LEVELS:
            high, low = _LEVELS[one.kind]
            if one.value and not (before and before.value) and not rests:
                notices.append(Notice(one, before, Known(1, now), high))
            elif before and before.value and not one.value:
                notices.append(Notice(one, before, Known(0, before.notified_at), low))
        elif before is None and first:
            notices.append(Notice(one, None, Known(one.value, 0)))
        elif before is not None and one.value < before.value:  # counted again
            notices.append(Notice(one, before, Known(one.value, before.notified_at)))
        elif one.value > (before.value if before else 0) and not rests:
            count = one.value - (before.value if before else 0)
            notices.append(Notice(one, before, Known(one.value, now), _TOTALS[one.kind], count))
    return notices


class NoticeRecorder:
    """Record events about the service. Create one object for each process, and use it from one thread at a time."""

    def __init__(self, database: Database, *, interval: int, backlog: int) -> None:
        """`interval` is in ms; a backlog of more than `backlog` events is high, with 0 none is."""
        self._database = database
        self._interval = interval
        self._backlog = backlog
        self._log = Log(database)

    def record(self) -> int:
        """Record what has changed since it was noticed last; return the number of recorded events."""
        with self._database.snapshot() as connection:
            now = database_now(connection)
            rows = connection.execute(sa.select(tables.notices))
            known = {(row.kind, row.target_id): Known(row.value, row.notified_at) for row in rows}
            notices = decide(_observe(connection, now, self._backlog), known, now, self._interval)
            notices = [_counted(connection, notice) for notice in notices]
        silent = [notice for notice in notices if not notice.name]
        if silent:
            # In one transaction: if only some were stored on the first call, the others would be reported as news.
            with self._database.writing() as connection:
                log_head.lock(connection)  # else two processes could insert the same row, and one would fail
                for some in chunks(silent):
                    _store(connection, some)
        events = [(_event(notice, now), notice) for notice in notices if notice.name]
        return sum(self._append(dict(some)) for some in chunks(events, NOTICES.batch_events))

    def _append(self, by_event: Mapping[Event, Notice]) -> int:
        def store(connection: sa.Connection, fresh: Sequence[Event]) -> Collection[str]:
            stored = _store(connection, [by_event[event] for event in fresh])
            return [event.id for event in fresh if by_event[event].observation.key not in stored]

        [answer] = self._log.append([list(by_event)], promised=True, guard=store)
        return answer.recorded if isinstance(answer, Receipt) else 0


def _observe(connection: sa.Connection, now: int, most: int) -> list[Observation]:
    t = tables.targets.c
    columns = (t.id, t.type, t.name, t.enabled, t.breaker, t.reason, t.problem)
    targets = connection.execute(sa.select(*columns).order_by(t.id)).all()
    failing = read_failing(connection)
    samples = {sample.target_id: sample for sample in series.newest_samples(connection, now)}
    found = []
    for row in targets:
        subject = str(TargetId(row.type, row.name))
        sample = samples.get(row.id)
        if sample is not None:  # of a disabled one too: when it is enabled, its old dead letters are no news
            found.append(Observation(DEAD, row.id, subject, sample.dead_lettered))
        if not row.enabled:
            continue
        is_down = bool(row.problem) or row.breaker != "closed"
        reason = {"reason": row.problem or row.reason} if is_down else {}
        found.append(Observation(AVAILABILITY, row.id, subject, int(is_down), reason))
        fails = failing.get(row.id)
        facts = {"attempts": str(fails.attempts), "reason": fails.reason} if fails else {}
        found.append(Observation(FAILING, row.id, subject, int(fails is not None), facts))
        if sample is not None:
            is_high = 0 < most < sample.backlog
            found.append(Observation(BACKLOG, row.id, subject, int(is_high), {"backlog": str(sample.backlog)}))
    ids = {(row.type, row.name): row.id for row in targets}
    found += _drift(connection, ids)
    found += _sources(connection, now)
    oldest = min(samples, default=None)
    pause = 0 if oldest is None else series.pause_before(connection, samples[oldest])
    if oldest is not None and pause > HEARTBEATS.drain_silence_ms:
        found.append(Observation(DRAIN, SERVICE, "drain", samples[oldest].at, {"seconds": str(pause // 1000)}))
    return found


def _sources(connection: sa.Connection, now: int) -> Iterator[Observation]:
    """Yield whether each source is pulled from, and when messages of its queue were lost last."""
    for stored in read_sources(connection):
        if not stored.enabled:
            continue
        subject, key = f"source:{stored.source}", stored.notice_key
        is_silent = now - max(stored.pulled_at, stored.created_at) > NOTICES.unpulled_ms
        is_down = stored.paused or (is_silent and stored.state(now) in ("failing", "waiting"))
        yield Observation(SOURCE, key, subject, int(is_down), {"reason": stored.state_reason(now)} if is_down else {})
        yield Observation(LOST, key, subject, stored.notice_at, {"notice": stored.notice})


def _drift(connection: sa.Connection, ids: Mapping[tuple[str, str], int]) -> list[Observation]:
    """Return the newest finished run with drift of each target; the value is when it finished."""
    r = tables.reconciliations.c
    newest = (
        sa.select(r.type, r.name, sa.func.max(r.finished_at).label("at")).where(_WITH_DRIFT).group_by(r.type, r.name)
    ).subquery()
    same = sa.and_(r.type == newest.c.type, r.name == newest.c.name, r.finished_at == newest.c.at, _WITH_DRIFT)
    found = {}
    for row in connection.execute(sa.select(tables.reconciliations).join(newest, same)):
        if (row.type, row.name) in ids:
            facts = {"run": row.run, "bucket": row.bucket, "state": row.state}
            counts = runs.counts_of(row)
            facts |= {kind: str(counts[kind]) for kind in DRIFT_KINDS}
            row_id = ids[row.type, row.name]
            found[row_id] = Observation(DRIFT, row_id, str(TargetId(row.type, row.name)), row.finished_at, facts)
    return list(found.values())


def _counted(connection: sa.Connection, notice: Notice) -> Notice:
    """Return the notice as it is to be reported, which takes a search of the rows behind a total."""
    if notice.name == names.DEAD:
        return _without_own_deaths(connection, notice)
    if notice.name == names.DRIFT:
        return replace(notice, count=_runs_with_drift(connection, notice))
    return notice


def _without_own_deaths(connection: sa.Connection, notice: Notice) -> Notice:
    """Return the notice without an event if only events about the service died: they would report each other."""
    one, known = notice.observation, notice.known
    d, e = tables.dead_letters.c, tables.events.c
    newest = (
        sa.select(d.partition, d.seq)
        .where(d.target_id == one.target_id)
        .order_by(d.id.desc())
        .limit(min(notice.count, NOTICES.max_own_letters))
        .subquery()
    )
    same = sa.and_(e.partition == newest.c.partition, e.seq == newest.c.seq)
    others = sa.select(e.seq).join_from(newest, tables.events, same).where(e.bucket != names.SERVICE_BUCKET).limit(1)
    if connection.execute(others).first() is not None:
        return notice
    return Notice(one, known, Known(one.value, known.notified_at if known else 0))


def _runs_with_drift(connection: sa.Connection, notice: Notice) -> int:
    """Return how many runs with drift have ended since the report before: the report describes the newest."""
    r, target = tables.reconciliations.c, parse_target(notice.observation.subject)
    since = notice.known.value if notice.known else 0
    of_target = (r.type == target.type, r.name == target.name, r.finished_at > since, _WITH_DRIFT)
    return int(connection.execute(sa.select(sa.func.count()).where(*of_target)).scalar_one())


def _event(notice: Notice, now: int) -> Event:
    one = notice.observation
    facts = dict(one.facts)
    if one.kind in (SOURCE, LOST):
        facts["source"] = one.subject.removeprefix("source:")
    elif one.kind != DRAIN:
        facts["target"] = one.subject
    if one.kind in _COUNTS:
        facts[_COUNTS[one.kind]] = str(notice.count)
    return names.make_service_event(notice.name, one.subject, now, facts)


def _store(connection: sa.Connection, notices: Sequence[Notice]) -> Collection[tuple[str, int]]:
    """Store the new rows of those notices whose row is still as it was read, and return the keys of these rows.

    The caller holds the lock of the log's head, so the number of statements does not depend on that of the notices.
    """
    n = tables.notices.c
    ids = {notice.observation.target_id for notice in notices}
    rows = connection.execute(sa.select(tables.notices).where(n.target_id.in_(ids)).with_for_update())
    present = {(row.kind, row.target_id): Known(row.value, row.notified_at) for row in rows}
    stored = {one.observation.key: one for one in notices if present.get(one.observation.key) == one.known}
    for kind in sorted({kind for kind, _ in stored}):
        of_kind = [row_id for each, row_id in stored if each == kind]
        connection.execute(tables.notices.delete().where(n.kind == kind, n.target_id.in_(of_kind)))
    if stored:
        connection.execute(
            tables.notices.insert(),
            [
                {"kind": kind, "target_id": row_id, "value": one.new.value, "notified_at": one.new.notified_at}
                for (kind, row_id), one in stored.items()
            ],
        )
    return stored.keys()
