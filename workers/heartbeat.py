"""Record heartbeats of workers and beat, and know whether this process serves and reaches the task broker.

A worker's main process records them from its loop, beat by a thread that knows when its loop last turned. Systemd
learns of the first time that a process serves, a probe can ask at any time; a loss of the broker is logged once.
"""

import logging
import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from app import service_manager
from app.broker import BrokerState
from app.config.arn import TargetId
from app.config.fields.addresses import HostPort
from app.config.settings import Settings
from app.outbox import upkeep
from app.outbox.delivery.leases import new_token
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.policies import HEARTBEATS
from app.outbox.processes import ALL_TARGETS, BEAT, Process, end_process, record_process
from app.outbox.upkeep import Pause, read_beat_at
from app.quantities import format_seconds
from app.release import VERSION
from workers.telemetry.metrics import BackgroundServer

log = logging.getLogger("bucketwire.beat")

ALL, VARIABLE = "*", "BUCKETWIRE_WORKER_TARGETS"

_STOPPED = ("T", "t")  # states of a process in Linux's /proc
_END_SECONDS = 1.0  # that beat waits at most to record its end
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
        problem = problem or _stopped(processes)
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


def _stopped(processes: Sequence[int]) -> str:
    """Return that all of these processes are stopped, as by SIGSTOP or a debugger, "" otherwise."""
    stopped = [pid for pid in processes if _state(pid) in _STOPPED]
    return "all processes of its pool are stopped (SIGSTOP, or a debugger)" if stopped == [*processes] != [] else ""


def _state(pid: int) -> str:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended
        return ""
    return status.rpartition(")")[2].split()[0]


class BeatHeartbeat:
    """The heartbeats of beat.

    Its loop only notes that it has ended a turn, so that a database that is away does not hold it up. A thread records
    when that was: if the loop hangs, it has nothing new to say. When beat did nothing for a while, it records that too.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._beat = Process(new_token(), f"beat@{socket.gethostname()}", VERSION, "beat", (BEAT,))
        # When the loop last ended a turn, since when the broker has taken everything, and why it does not; by
        # time.monotonic(), None before the first turn.
        self._turn: tuple[float, float, str] | None = None
        self._worked_at = self._works_since = 0.0
        self._recording = threading.Lock()
        self._ends = threading.Event()

    def turned(self, problem: str) -> None:
        """Note that the loop has ended a turn, and why the broker did not take what it sent."""
        now = time.monotonic()
        if not problem:
            if now - self._worked_at > HEARTBEATS.silence_ms / 1000:
                self._works_since = now
            self._worked_at = now
        self._turn = now, self._works_since, problem

    def start(self) -> None:
        """Begin to record, once the loop has turned."""
        threading.Thread(target=self._run, name="beat-heartbeat", daemon=True).start()

    def end(self) -> None:
        """Record that beat ends, within a second. Only the first call does anything."""
        if not self._ends.is_set():
            self._ends.set()
            thread = threading.Thread(target=self._end, name="beat-heartbeat", daemon=True)
            thread.start()
            thread.join(_END_SECONDS)

    def _run(self) -> None:
        with closing(self._open()) as database:
            while not self._ends.wait(HEARTBEATS.interval_ms / 1000 if self._beat.at else 0.2):
                with suppress(sa.exc.SQLAlchemyError), self._recording:  # the next one is soon
                    self.record(database)

    def record(self, database: Database) -> None:
        """Record when the loop last ended a turn, unless that is long ago. Raises `DatabaseUnavailable`."""
        now = time.monotonic()
        if self._turn is None or self._ends.is_set() or now - self._turn[0] > HEARTBEATS.silence_ms / 1000:
            return
        turned_at, works_since, problem = self._turn
        if not problem:
            with database.reading() as connection:
                worked_at = read_beat_at(connection)
                began = database_now(connection) - int((now - works_since) * 1000)
            if worked_at is not None and began - worked_at > HEARTBEATS.silence_ms:
                upkeep.record_pause(database, Pause(worked_at, began))
                pause = format_seconds((began - worked_at) / 1000)
                log.warning("no beat did anything for %s; `bucketwire doctor` says what was missed", pause)
        self._beat = record_process(database, replace(self._beat, problem=problem), age=int((now - turned_at) * 1000))

    def _end(self) -> None:
        with suppress(sa.exc.SQLAlchemyError), self._recording, closing(self._open()) as database:
            end_process(database, self._beat.id)

    def _open(self) -> Database:
        patience = min(HEARTBEATS.patience_seconds, self._settings.database_timeout)
        return Database(self._settings.database_url, pool_size=1, patience=patience)


class ServedTargets:
    """The targets that this process's worker serves, as `bucketwire worker --targets` says; by default all of them."""

    def __init__(self) -> None:
        self._wanted = frozenset(filter(None, os.environ.get(VARIABLE, ALL).split(",")))

    @property
    def names(self) -> list[str]:
        """The types and names that it was told, sorted; `ALL` for every target."""
        return sorted(self._wanted)

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def __contains__(self, target: TargetId) -> bool:
        return not self._wanted.isdisjoint({ALL, target.type, str(target)})


PATH = "/readyz"


class Readiness:
    """The readiness of one process. The loop that does the work reports; what does not report any more is not ready."""

    def __init__(self) -> None:
        self._served_at: float | None = None  # by time.monotonic()
        self._has_notified = False
        self._server: BackgroundServer | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the process serves."""
        served_at = self._served_at
        return served_at is not None and time.monotonic() - served_at < HEARTBEATS.silence_ms / 1000

    def report(self, *, serves: bool) -> None:
        """Note whether the process serves now; call this every few seconds."""
        self._served_at = time.monotonic() if serves else None
        if serves and not self._has_notified:
            self._has_notified = True
            service_manager.notify(service_manager.READY)

    def answer_probes(self, listen: HostPort) -> None:
        """Answer `/readyz` at this address, in the background, if it is set; a second call does nothing."""
        if self._server is None and listen.host:
            self._server = BackgroundServer(listen, self._answer, PATH)
            self._server.start()

    def forget(self) -> None:
        """Leave the answers to the parent, in a forked child."""
        if self._server is not None:
            self._server.forget()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        headers = [("Content-Type", "application/json")]
        if environ.get("PATH_INFO") != PATH:
            start_response("404 Not Found", headers)
            return [b"{}"]
        ready = self.is_ready
        start_response("200 OK" if ready else "503 Service Unavailable", headers)
        return [b'{"ready":true}' if ready else b'{"ready":false}']


readiness = Readiness()


_worker_log = logging.getLogger("bucketwire.worker")

# All that use the broker share it.
broker_state = BrokerState(_worker_log, "no work is begun until it works again")
