"""Record the jobs as runs: scheduled scans and updates of the tables, and a lease renewed in the background.

By the lease only one run is active, and the results of the others are kept. A run ends early on SIGTERM, or when the
process that started it is gone. Imports no Spark.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from app.outbox.engine.database import Database, now_ms
from app.outbox.errors import AlreadyRunning
from app.outbox.policies import FUTURE_TIMES
from app.outbox.reconcile import runs as r
from app.outbox.reconcile.runs import Progress, Reconciliations, begin_tables, end_tables
from app.outbox.reconcile.schedule import Schedule
from spark_jobs.errors import root_cause

LEASE_MS = FUTURE_TIMES.run_lease_ms  # a run whose lease is not renewed for so long is dead


@contextlib.contextmanager
def renewed(
    runs: Reconciliations, run: str, progress: Callable[[], Progress | None] = lambda: None
) -> Iterator[threading.Event]:
    """Renew the run's lease inside, with its progress; the event is set if it was declared dead nevertheless.

    `progress` must return at once, else the lease expires. If the run is cancelled, the process ends as on SIGTERM.
    """
    stop, lost = threading.Event(), threading.Event()

    def renew() -> None:
        while not stop.wait(LEASE_MS / 4000):
            with contextlib.suppress(Exception):  # the next renewal may succeed
                if not lost.is_set() and not runs.renew(run, lease=LEASE_MS, progress=progress()):
                    lost.set()
                    if runs.is_cancelled(run):
                        end_early()

    thread = threading.Thread(target=renew, name="run-lease", daemon=True)
    thread.start()
    try:
        yield lost
    finally:
        stop.set()
        thread.join()


@contextmanager
def recorded(database: Database, run: str, retention: int) -> Iterator[Callable[[str], None]]:
    """Begin the waiting run and record how the block ends; the block may report why the listing is incomplete.

    Without `run` nothing is recorded. Runs older than `retention` ms are deleted. Raises `AlreadyRunning`.
    """
    if not run:
        yield lambda _problem: None
        return
    waiting = next((waiting for waiting in Schedule(database).waiting() if waiting.run == run), None)
    if waiting is None:
        raise AlreadyRunning(f"the run {run} has already been started")
    runs, problems = r.Reconciliations(database), list[str]()
    runs.begin(waiting.target, waiting.bucket, lease=LEASE_MS, run=run)
    try:
        with renewed(runs, run):
            yield problems.append
    except KeyboardInterrupt:
        runs.end(run, r.FAILED, {}, problem=r.STOPPED_EARLY)
        raise
    except BaseException as error:
        runs.end(run, r.FAILED, {}, problem=f"{type(error).__name__}: {root_cause(error)}")
        raise
    runs.end(run, r.CLEAN, {}, problem=" ".join(filter(None, problems)))
    runs.delete_old(waiting.target, waiting.bucket, now_ms() - retention, job=r.SCAN)


@contextmanager
def recorded_tables(database: Database) -> Iterator[Callable[[str], None]]:
    """Record an update of the tables and how the block ends; the block may report what is wrong all the same."""
    run, problems = begin_tables(database, lease=LEASE_MS), list[str]()
    try:
        with renewed(r.Reconciliations(database), run):
            yield problems.append
    except KeyboardInterrupt:
        end_tables(database, run, problem=r.STOPPED_EARLY)
        raise
    except BaseException as error:
        # One that comes too late for the other's commit has not failed: the tables are up to date.
        lost = isinstance(error, AlreadyRunning)
        end_tables(database, run, problem="" if lost else f"{type(error).__name__}: {root_cause(error)}")
        raise
    end_tables(database, run, problem=" ".join(filter(None, problems)))


_EXIT_TIMEOUT = 10  # seconds
_EXIT_INTERRUPTED = 130  # as after Ctrl-C


def end_on_sigterm() -> None:
    """Treat SIGTERM as Ctrl-C from now on: Spark's jobs are cancelled, and the run is recorded as failed."""
    signal.signal(signal.SIGTERM, _interrupt)


def end_with_input() -> None:
    """Treat the end of standard input as SIGTERM from now on."""
    threading.Thread(target=_wait_for_end_of_input, name="input", daemon=True).start()


def end_early() -> None:
    """End this process as SIGTERM does. Safe to call from any thread."""
    os.kill(os.getpid(), signal.SIGTERM)


def _interrupt(*_: Any) -> None:
    # Python ignores an exception that is raised while it forks, and Spark may need long to stop.
    timer = threading.Timer(_EXIT_TIMEOUT, os._exit, (_EXIT_INTERRUPTED,))
    timer.daemon = True
    timer.start()
    signal.raise_signal(signal.SIGINT)


def _wait_for_end_of_input() -> None:
    # Not through `sys.stdin`: its lock would be held when the interpreter exits.
    while os.read(0, 1024):
        pass
    end_early()
