"""Know the workers: each records every few seconds that it is there, its version, and what it serves and does."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.delivery.policies import HEARTBEATS
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database

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


def record(database: Database, worker: Worker) -> Worker:
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


def remove(database: Database, worker_id: str) -> None:
    """Remove a worker that ends."""
    with database.committing() as connection:
        connection.execute(tables.workers.delete().where(_W.id == worker_id))


def forget_silent(database: Database, now: int) -> None:
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
