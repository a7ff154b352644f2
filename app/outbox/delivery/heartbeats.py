"""Record heartbeats: of the drain, of each worker, and of the queue of each target, when a worker last answered on it.

A worker records every few seconds that it is there, its version, and what it serves and does.

A queue is probed by a Celery message like a wake-up, and the worker that receives it records the time for every queue
that it serves. So of the queues whose last answer was the same one, one is probed for all. While no worker answers, the
queue is probed less and less often, so that only a few probes accumulate in a persistent broker. They are the first
messages that a worker receives when there is one again.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.many_rows import chunks
from app.outbox.policies import HEARTBEATS

DRAIN, SOURCES, SPARK = "drain", "sources", "spark"  # what a worker serves, beside targets
ALL_TARGETS = "targets"

_W = tables.workers.c


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker, by its last heartbeat. Times are ms by the database's clock."""

    id: str  # as a fencing token: it begins with `HOST:PID:` of its main process
    name: str
    version: str
    pool: str
    serves: Sequence[str]  # the four above, or the types and names of targets
    processes: Sequence[int] = ()  # ids of its pool's processes
    jobs: Sequence[str] = ()  # what it runs at the moment beside deliveries, such as a reconciliation
    started_at: int = 0
    at: int = 0

    @property
    def host(self) -> str:
        """The host's name, as leases have it."""
        return self.id.split(":")[0]

    @property
    def pid(self) -> int:
        """The id of its main process."""
        return int(self.id.split(":")[1])

    @property
    def holders(self) -> list[str]:
        """Its processes as the leases that they hold name them, `HOST:PID`."""
        return [f"{self.host}:{pid}" for pid in sorted({self.pid, *self.processes})]

    def age(self, now: int) -> int:
        """Return the milliseconds since its last heartbeat."""
        return max(0, now - self.at)

    def is_alive(self, now: int) -> bool:
        """Return whether its last heartbeat is recent."""
        return self.age(now) <= HEARTBEATS.worker_silence_ms


def record_worker(database: Database, worker: Worker) -> Worker:
    """Record a worker's heartbeat at this moment; return the worker with the times that were recorded."""
    with database.writing() as connection:
        now = database_now(connection)
        worker = replace(worker, started_at=worker.started_at or now, at=now)
        values = {
            "name": worker.name,
            "version": worker.version,
            "pool": worker.pool,
            "serves": orjson.dumps(list(worker.serves)).decode(),
            "processes": orjson.dumps(list(worker.processes)).decode(),
            "jobs": orjson.dumps(list(worker.jobs)).decode(),
            "started_at": worker.started_at,
            "at": worker.at,
        }
        if not connection.execute(tables.workers.update().where(_W.id == worker.id).values(values)).rowcount:
            connection.execute(tables.workers.insert().values(id=worker.id, **values))
    return worker


def remove_worker(database: Database, worker_id: str) -> None:
    """Remove a worker that ends."""
    with database.committing() as connection:
        connection.execute(tables.workers.delete().where(_W.id == worker_id))


def forget_silent_workers(database: Database, now: int) -> None:
    """Remove the workers that have been silent for long: each was killed, or its host is gone."""
    is_silent = _W.at < now - HEARTBEATS.worker_kept_ms
    with database.reading() as connection:
        silent = connection.execute(sa.select(_W.id).where(is_silent)).scalars().all()
    for worker_id in silent:
        with database.committing() as connection:
            connection.execute(tables.workers.delete().where(_W.id == worker_id, is_silent))


def read_workers(connection: sa.Connection) -> list[Worker]:
    """Return the workers, sorted by name and id."""
    return [
        Worker(
            id=row.id,
            name=row.name,
            version=row.version,
            pool=row.pool,
            serves=orjson.loads(row.serves),
            processes=orjson.loads(row.processes),
            jobs=orjson.loads(row.jobs),
            started_at=row.started_at,
            at=row.at,
        )
        for row in connection.execute(sa.select(tables.workers).order_by(_W.name, _W.id))
    ]


def has_spark_worker(connection: sa.Connection, now: int) -> bool:
    """Return whether a worker that runs reconciliations is there, also one that is busy."""
    return any(SPARK in worker.serves and worker.is_alive(now) for worker in read_workers(connection))


_MAX_PROBES = HEARTBEATS.interval_ms // HEARTBEATS.min_interval_ms  # queues in one probing, which holds up the drain
# Prefixes of a target's row id, which is never reused; its name might be too long.
_QUEUE, _ASKED, _SILENT = "queue.", "asked.", "silent."


@dataclass(frozen=True, slots=True)
class Queue:
    """A target's queue. Times are ms, 0 for never; `unanswered` is the time of the first probe without an answer."""

    target: TargetId
    row_id: int
    made: int
    asked: int
    answered: int
    unanswered: int

    def heartbeat_age(self, now: int) -> int:
        """Return the milliseconds since a worker last answered, or since the target was created."""
        return max(0, now - max(self.answered, self.made))

    @property
    def is_silent(self) -> bool:
        """Whether the last probe is the first one without an answer."""
        return self.asked > self.answered >= self.unanswered

    def due(self, now: int, every: int) -> bool:
        """Return whether to probe the queue now; without an answer, the interval doubles each time, up to an hour."""
        silent_for = self.asked - self.unanswered if self.unanswered > self.answered else 0
        return now - self.asked >= min(HEARTBEATS.max_interval_ms, max(every, silent_for))


def record(database: Database, name: str, now: int) -> None:
    """Record a heartbeat."""
    with database.writing() as connection:
        if connection.execute(
            tables.heartbeats.update().where(tables.heartbeats.c.name == name).values(at=now)
        ).rowcount:
            return
    try:
        with database.writing() as connection:
            connection.execute(tables.heartbeats.insert().values(name=name, at=now))
    except sa.exc.IntegrityError:
        return  # another process has just recorded the same


def _record_all(database: Database, times: Mapping[str, int]) -> None:
    """Record many heartbeats by a few statements, since there are as many as targets."""
    h = tables.heartbeats.c
    for names in chunks(sorted(times)):
        with database.reading() as connection:
            known = set(connection.execute(sa.select(h.name).where(h.name.in_(names))).scalars())
        new = [name for name in names if name not in known]
        try:
            if new:
                with database.writing() as connection:
                    connection.execute(tables.heartbeats.insert(), [{"name": name, "at": times[name]} for name in new])
        except sa.exc.IntegrityError:  # another process has just recorded some
            for name in new:
                record(database, name, times[name])
        by_time: dict[int, list[str]] = defaultdict(list)
        for name in known:
            by_time[times[name]].append(name)
        for at, some in by_time.items():
            with database.committing() as connection:
                connection.execute(tables.heartbeats.update().where(h.name.in_(some)).values(at=at))


def last_drain(connection: sa.Connection) -> int | None:
    """Return when the drain last ran (ms); None for never."""
    query = sa.select(tables.heartbeats.c.at).where(tables.heartbeats.c.name == DRAIN)
    drained_at: int | None = connection.execute(query).scalar_one_or_none()
    return drained_at


def drain_age(drained_at: int | None, now: int) -> int | None:
    """Return the milliseconds since the drain last ran, at the time that `last_drain` returned; None for never."""
    return None if drained_at is None else max(0, now - drained_at)


def drain_stopped(drained_at: int | None, now: int) -> bool:
    """Return whether the drain has stopped or never ran; then nothing is delivered."""
    age = drain_age(drained_at, now)
    return age is None or age > HEARTBEATS.drain_silence_ms


def queues(connection: sa.Connection) -> list[Queue]:
    """Return the queues that workers have to serve: those of the enabled targets, including paused ones."""
    t = tables.targets.c
    at = {
        row.name: int(row.at) for row in connection.execute(sa.select(tables.heartbeats.c.name, tables.heartbeats.c.at))
    }
    rows = connection.execute(sa.select(t.id, t.type, t.name, t.created_at).where(t.enabled).order_by(t.type, t.name))
    return [
        Queue(
            TargetId(row.type, row.name),
            row.id,
            row.created_at,
            at.get(f"{_ASKED}{row.id}", 0),
            at.get(f"{_QUEUE}{row.id}", 0),
            at.get(f"{_SILENT}{row.id}", 0),
        )
        for row in rows
    ]


def awaits_answer(connection: sa.Connection, row_id: int) -> bool:
    """Return whether the queue of the target with this row id was probed since it last answered; reads two rows."""
    h, asked, answered_at = tables.heartbeats.c, f"{_ASKED}{row_id}", f"{_QUEUE}{row_id}"
    rows = connection.execute(sa.select(h.name, h.at).where(h.name.in_((asked, answered_at))))
    at = {row.name: int(row.at) for row in rows}
    return at.get(answered_at, 0) < at.get(asked, 0)


def queues_to_probe(database: Database, now: int) -> list[Queue]:
    """Return the queues to probe now and record them as probed. Deletes the heartbeats of removed targets."""
    with database.reading() as connection:
        served = queues(connection)
        gone = _gone(connection)
    if gone:
        with database.writing() as connection:
            connection.execute(tables.heartbeats.delete().where(tables.heartbeats.c.name.in_(gone)))
    every = max(HEARTBEATS.interval_ms, HEARTBEATS.min_interval_ms * len(served))
    due = _one_for_all(sorted((queue for queue in served if queue.due(now, every)), key=lambda queue: queue.asked))
    due = due[:_MAX_PROBES]
    _record_all(database, {f"{_SILENT}{queue.row_id}": queue.asked for queue in due if queue.is_silent})
    _record_all(database, {f"{_ASKED}{queue.row_id}": now for queue in due})
    return due


def _one_for_all(queues: Iterable[Queue]) -> list[Queue]:
    """Return the first of the queues whose last answer was the same one, and all that have not answered yet."""
    answers: set[int] = set()
    first: list[Queue] = []
    for queue in queues:
        if queue.answered not in answers:
            first.append(queue)
        answers |= {queue.answered} if queue.answered else set()
    return first


def answered(database: Database, row_ids: Iterable[int], now: int) -> None:
    """Record that a worker has answered that serves the queues of the targets with these row ids."""
    _record_all(database, {f"{_QUEUE}{row_id}": now for row_id in row_ids})


def _gone(connection: sa.Connection) -> list[str]:
    kept = {str(row_id) for row_id in connection.execute(sa.select(tables.targets.c.id)).scalars()}
    names = connection.execute(sa.select(tables.heartbeats.c.name)).scalars()
    return [
        name
        for name in names
        for prefix in (_QUEUE, _ASKED, _SILENT)
        if name.startswith(prefix) and name.removeprefix(prefix) not in kept
    ][:500]
