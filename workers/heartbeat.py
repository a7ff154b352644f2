"""Record that a worker is there, with its version and what it serves and does, from the loop of its main process."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import sqlalchemy as sa

from app.config.settings import Settings
from app.outbox.delivery import heartbeats
from app.outbox.delivery.heartbeats import Worker
from app.outbox.delivery.leases import new_token
from app.outbox.engine.database import Database
from app.outbox.policies import HEARTBEATS
from app.release import VERSION
from workers.served_targets import ALL, ServedTargets

_MAX_NAME_CHARACTERS = 255  # of the column; the name of a worker for many targets has all of them


class WorkerHeartbeat:
    """The heartbeats of this process's worker.

    `services` are what it serves beside targets. It has a connection of its own, with which it waits for a slow
    database server only briefly, because meanwhile the worker takes no wake-up; on SQLite it waits for the lock, which
    no transaction holds for long.
    """

    def __init__(self, settings: Settings, name: str, pool: str, services: Sequence[str]) -> None:
        patience = min(HEARTBEATS.worker_patience_seconds, settings.database_timeout)
        self._database = Database(settings.database_url, pool_size=1, patience=patience)
        targets = [heartbeats.ALL_TARGETS if name == ALL else name for name in ServedTargets().names]
        self._worker = Worker(new_token(), name[:_MAX_NAME_CHARACTERS], VERSION, pool, (*services, *targets))

    def record(self, processes: Sequence[int], jobs: Sequence[str]) -> None:
        """Record that the worker is there, with the ids of its pool's processes, and what it runs."""
        worker = replace(self._worker, processes=processes, jobs=jobs)
        with suppress(sa.exc.SQLAlchemyError):  # the next one is soon; before `migrate` there is no such table
            self._worker = heartbeats.record_worker(self._database, worker)

    def end(self) -> None:
        """Remove the worker, which ends."""
        with suppress(sa.exc.SQLAlchemyError):  # then it is forgotten some time later
            heartbeats.remove_worker(self._database, self._worker.id)
        self._database.close()
