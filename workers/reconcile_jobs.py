"""Reconciliations by schedule: what waits is hinted at, and who takes a hint runs the job as a process of its own.

The table of runs says what waits; a hint that is lost, late or doubled costs nothing but time.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.config.arn import TargetId
from app.events.buckets import is_bucket_name
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from app.outbox.reconcile.schedule import Schedule, WaitingRun, left_out

log = logging.getLogger("bucketwire.worker")

EVERY = 5  # seconds between two looks at the schedule
AGAIN = 300  # seconds after which a run that still waits is hinted at again
_PATIENCE = 20  # seconds in which a job that is asked to end has to
_PROBLEM = "bucketwire: "  # how the command line begins to tell one
_LATER = os.EX_TEMPFAIL  # the job's exit code when somebody else is at work on the same


@dataclass(frozen=True, slots=True)
class Ended:
    """What a job left. `said` is its last line: the result, or the problem."""

    code: int
    said: str


class RunWakeUps:
    """Says what waits, each run now and then, however often it is asked."""

    def __init__(self) -> None:
        self._hinted: dict[str, float] = {}

    def look(self, database: Database, publish: Callable[[WaitingRun], None]) -> int:
        """Register what is due and publish hints; says how many, 0 while the database is away."""
        schedule, now = Schedule(database), time.monotonic()
        try:
            with database.reading() as connection:
                moment = database_now(connection)
            if schedule.register(moment):
                for target, number in schedule.left_out().items():
                    log.warning("%s: %s", target, left_out(number), extra={"target": str(target)})
            waiting = schedule.waiting()
        except DatabaseUnavailable:
            return 0  # the drain says so
        self._hinted = {each.run: self._hinted.get(each.run, now - AGAIN) for each in waiting}
        due = [each for each in waiting if now - self._hinted[each.run] >= AGAIN]
        for each in due:
            publish(each)
            self._hinted[each.run] = now
        return len(due)


class Jobs:
    """The processes that this worker has started; they end when it is asked to end, and when it is gone."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._stopping = False

    def run(self, command: Sequence[str]) -> Ended:
        """Run a command to its end. Its standard input ends when this process does."""
        read, held = os.pipe()  # inherited by nobody but as that input
        try:
            job = subprocess.Popen(
                command, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                process_group=0,
            )  # fmt: skip
        finally:
            os.close(read)
        self._running.add(job)
        try:
            if self._stopping:
                self._end(job)
            out, err = job.communicate()
        finally:
            self._running.discard(job)
            os.close(held)
        if self._stopping and job.returncode:
            return Ended(job.returncode, "it was stopped before its end")
        return Ended(job.returncode, last_words(err if job.returncode else out, job.returncode))

    def stop(self) -> None:
        """Ask all of them to end, and see to it; what would begin now does not. May be called by a signal's handler."""
        self._stopping = True
        for job in list(self._running):
            self._end(job)

    def _end(self, job: "subprocess.Popen[str]") -> None:
        job.terminate()
        over = threading.Timer(_PATIENCE, self._kill, (job,))
        over.daemon = True
        over.start()

    def _kill(self, job: "subprocess.Popen[str]") -> None:
        if job in self._running:  # it, or a process of its own that holds on to its outputs
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


wake_ups = RunWakeUps()
jobs = Jobs()


def last_words(text: str, code: int) -> str:
    """What a job said at last; the problem where it names one, as others print around it."""
    lines = text.strip().splitlines()
    problems = [line.removeprefix(_PROBLEM) for line in lines if line.startswith(_PROBLEM)]
    if problems or lines:
        return (problems or lines)[-1]
    return f"it ended with {code} and said nothing"


def job_arguments(run: WaitingRun) -> list[str]:
    """The arguments of `bucketwire` for a run that waits; no name of a bucket can pass for an option."""
    return ["reconcile", "--target", str(run.target), "--scheduled", run.run, "--", run.bucket]


def reconcile(database: Database, target: TargetId, bucket: str, arn: str) -> str:
    """Do the run that waits for a target and a bucket, if there is one, and say in a line what it came to."""
    schedule = Schedule(database)
    found = next((each for each in schedule.waiting() if (each.target, each.bucket) == (target, bucket)), None)
    if found is None:
        return "nothing waits"
    began = time.monotonic()
    members = {"target": arn, "bucket": bucket, "run": found.run}
    if not is_bucket_name(bucket):  # registered by a version that looked at no names
        problem = "no storage allows a bucket of this name"
        schedule.give_up(found.run, problem, now_ms())
        log.error("%s with %r: %s", arn, bucket, problem, extra=members)
        return problem
    ended = jobs.run([sys.executable, "-m", "app.cli", *job_arguments(found)])
    if ended.code == _LATER:
        log.info("%s with %s: %s", arn, bucket, ended.said, extra=members)
    elif ended.code:
        schedule.give_up(found.run, ended.said, now_ms())
        log.error("%s with %s: %s", arn, bucket, ended.said, extra=members)
    else:
        log.info("%s with %s: %s in %.0f s", arn, bucket, ended.said, time.monotonic() - began, extra=members)
    return ended.said
