"""Record heartbeats of this worker's main process, from its loop."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import sqlalchemy as sa

from app.config.settings import Settings
from app.outbox.delivery.leases import new_token
from app.outbox.engine.database import Database
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import ALL_TARGETS, Process, end_process, record_process
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
        patience = min(HEARTBEATS.patience_seconds, settings.database_timeout)
        self._database = Database(settings.database_url, pool_size=1, patience=patience)
        targets = [ALL_TARGETS if name == ALL else name for name in ServedTargets().names]
        self._worker = Process(new_token(), name[:_MAX_NAME_CHARACTERS], VERSION, pool, (*services, *targets))
        self._next = 0.0  # by time.monotonic()
        self._retry = 0.0
        self._has_ended = False

    def record(
        self, processes: Sequence[int], jobs: Sequence[str], refused: Mapping[str, str], problem: str = ""
    ) -> None:
        """Record that the worker is there, if that is due or it serves something else than before.

        With the ids of its pool's processes, what it runs, the targets whose queues the broker refuses, and what keeps
        it from serving anything.
        """
        now, known = time.monotonic(), self._worker
        is_new = (bool(problem), refused.keys()) != (bool(known.problem), known.refused.keys())
        if self._has_ended or now < self._retry or not (is_new or now >= self._next):
            return
        worker = replace(known, processes=processes, jobs=jobs, problem=problem)
        try:
            self._worker = record_process(self._database, worker, refused)
        except sa.exc.SQLAlchemyError:  # also before `migrate`
            self._retry = now + HEARTBEATS.retry_ms / 1000
        else:
            self._next = now + HEARTBEATS.interval_ms / 1000

    def end(self) -> None:
        """Record that the worker ends: it takes no more messages. Only the first call does anything."""
        if not self._has_ended:
            self._has_ended = True
            with suppress(sa.exc.SQLAlchemyError):  # then it falls silent
                end_process(self._database, self._worker.id)
            self._database.close()
