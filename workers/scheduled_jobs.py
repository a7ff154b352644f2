"""Run jobs on Spark when they are due: scheduled runs, and listings of watched buckets.

The drain publishes a wake-up for each; the worker that gets it starts the job's process. The table of runs, or that of
sources, holds the state, so a lost, late or repeated wake-up costs only time. A watched bucket is listed by the lease
of its source, which the process goes on with: two never list a bucket at once.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from app import telemetry
from app.config.arn import SourceId, TargetId
from app.events.buckets import is_bucket_name
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.clock import DatabaseClock, database_now
from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from app.outbox.reconcile.runs import INCREMENTAL, SCAN, STOPPED_EARLY, fail_tables
from app.outbox.reconcile.schedule import Schedule, WaitingRun, describe_unscheduled
from app.outbox.sources.rows import SourceLease, SourceLeases, StoredSource

log = logging.getLogger("bucketwire.worker")

CHECK_INTERVAL_SECONDS = 5  # between two checks of the schedule
REPEAT_INTERVAL_SECONDS = 300  # after which the wake-up of a run that still waits is repeated
_STOP_SECONDS = 20  # between SIGTERM and SIGKILL
# The job itself: `bucketwire reconcile run` would start Python for the command, and again for the job.
JOB = (sys.executable, "-P", "-m", "bucketwire.start", "spark_jobs")
_ERROR_PREFIX = "bucketwire: "  # of an error that the command line prints
_ALREADY_RUNNING = os.EX_TEMPFAIL  # the job's exit code if another run of the same pair is active


@dataclass(frozen=True, slots=True)
class JobResult:
    """A job's exit code and last message: the result, or the problem."""

    code: int
    message: str


class Repeats:
    """Say for what that waits a wake-up is due: at once, and at intervals as long as it waits."""

    def __init__(self) -> None:
        self._published: dict[str, float] = {}

    def due(self, waiting: Iterable[str]) -> list[str]:
        """Return the names of those that wait for which a wake-up is due; each that is published has to be `noted`."""
        now = time.monotonic()
        self._published = {name: self._published.get(name, now - REPEAT_INTERVAL_SECONDS) for name in waiting}
        return [name for name, last in self._published.items() if now - last >= REPEAT_INTERVAL_SECONDS]

    def noted(self, name: str) -> None:
        """Note that the wake-up of one that waits was published."""
        self._published[name] = time.monotonic()


class RunWakeUps:
    """Publish a wake-up for each waiting run, and repeat it at intervals."""

    def __init__(self) -> None:
        self._repeats = Repeats()

    def publish_due(self, database: Database, publish: Callable[[WaitingRun], None]) -> int:
        """Register due runs and publish wake-ups; return their number. Raises `DatabaseUnavailable`."""
        schedule = Schedule(database)
        if schedule.register(_time_of(database)):
            for target, number in schedule.unscheduled_buckets().items():
                log.warning("%s: %s", target, describe_unscheduled(number), extra={"target": str(target)})
        waiting = {run.run: run for run in schedule.waiting()}
        due = self._repeats.due(waiting)
        for name in due:
            publish(waiting[name])
            self._repeats.noted(name)
        return len(due)


class JobProcesses:
    """The processes that this worker has started; they end when the worker is stopped or dies."""

    def __init__(self) -> None:
        self._running: dict[subprocess.Popen[str], str] = {}
        self._stopping = False

    @property
    def names(self) -> list[str]:
        """What runs at the moment."""
        return list(self._running.values())

    def run(self, command: Sequence[str], name: str = "") -> JobResult:
        """Run a command until it exits; `name` says what it does. Its standard input ends when this process dies."""
        read, write = os.pipe()  # no child inherits the writing end
        try:
            job = subprocess.Popen(
                command, stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                process_group=0,
            )  # fmt: skip
        finally:
            os.close(read)
        self._running[job] = name
        try:
            if self._stopping:
                self._end(job)
            out, err = job.communicate()
        finally:
            del self._running[job]
            os.close(write)
        if self._stopping and job.returncode:
            return JobResult(job.returncode, STOPPED_EARLY)
        return JobResult(job.returncode, last_message(err if job.returncode else out, job.returncode))

    def stop(self) -> None:
        """Stop all processes, and every process that is started from now on. Safe in a signal handler."""
        self._stopping = True
        for job in list(self._running):
            self._end(job)

    def _end(self, job: "subprocess.Popen[str]") -> None:
        job.terminate()
        timer = threading.Timer(_STOP_SECONDS, self._kill, (job,))
        timer.daemon = True
        timer.start()

    def _kill(self, job: "subprocess.Popen[str]") -> None:
        if job in self._running:  # the job, or a child of it that keeps its outputs open
            with contextlib.suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGKILL)


run_wake_ups = RunWakeUps()
jobs = JobProcesses()


def last_message(text: str, code: int) -> str:
    """Return the last line of a job's output, or its last error message: Java prints lines around it."""
    lines = text.strip().splitlines()
    problems = [line.removeprefix(_ERROR_PREFIX) for line in lines if line.startswith(_ERROR_PREFIX)]
    if problems or lines:
        return (problems or lines)[-1]
    return f"the job exited with code {code} and printed nothing"


def run_arguments(run: WaitingRun) -> list[str]:
    """Return the arguments of the job of a waiting run; no bucket name or prefix can be parsed as an option."""
    if run.job == SCAN:
        return ["scan", "--scheduled", run.run, "--", run.bucket]
    part = [f"--prefix={run.prefix}"] if run.prefix else ["--incremental"] if run.job == INCREMENTAL else []
    return ["reconcile", "run", "--target", str(run.target), "--scheduled", run.run, *part, "--", run.bucket]


def update_tables(database: Database | None = None) -> str:
    """Run `bucketwire tables`; return its result in one line. A failure is recorded, if a database is given."""
    started, since = time.monotonic(), 0
    if database:
        with contextlib.suppress(*DatabaseUnavailable):
            since = _time_of(database)
    result = jobs.run([*JOB, "tables", "--scheduled"], "tables")
    if result.code == _ALREADY_RUNNING:
        log.info("tables: %s", result.message)
    elif result.code:
        log.error("tables: %s", result.message)
        if database:
            with contextlib.suppress(*DatabaseUnavailable):  # no table to record it in
                fail_tables(database, result.message, since)
    else:
        log.info("tables: %s in %.0f s", result.message, time.monotonic() - started)
    return result.message


def _time_of(database: Database) -> int:
    with database.reading() as connection:
        return database_now(connection)


def reconcile(database: Database, target: TargetId, bucket: str, arn: str) -> str:
    """Run the waiting reconciliation of a target and a bucket, if there is one; return its result in one line."""
    schedule = Schedule(database)
    waiting = next((run for run in schedule.waiting() if (run.target, run.bucket) == (target, bucket)), None)
    if waiting is None:
        return "no run is waiting"
    started = time.monotonic()
    members = {"target": arn, "bucket": bucket, "run": waiting.run}
    if not is_bucket_name(bucket):  # registered before names were validated
        problem = "the bucket's name is invalid"
        schedule.fail(waiting.run, problem, now_ms())
        log.error("%s with %r: %s", arn, bucket, problem, extra=members)
        return problem
    attributes = {"bucketwire.target": arn, "aws.s3.bucket": bucket, "bucketwire.run": waiting.run}
    with telemetry.span(waiting.job, **attributes) as span:
        result = jobs.run([*JOB, *run_arguments(waiting)], f"{waiting.job} {target} {bucket}")
        span.set("bucketwire.exit_code", result.code)
        if result.code and result.code != _ALREADY_RUNNING:
            span.fail("failed", result.message)
    if result.code == _ALREADY_RUNNING:
        log.info("%s with %s: %s", arn, bucket, result.message, extra=members)
    elif result.code:
        schedule.fail(waiting.run, result.message, now_ms())
        log.error("%s with %s: %s", arn, bucket, result.message, extra=members)
    else:
        log.info("%s with %s: %s in %.0f s", arn, bucket, result.message, time.monotonic() - started, extra=members)
    return result.message


_START_MS = 120_000  # of a lease that the process has not renewed yet: Python and Java start meanwhile
RETRY_MS = 900_000  # until a bucket is listed again for which the process has failed: a listing of it may be long


class ListingWakeUps:
    """Publish a wake-up for each bucket that Spark has to list now, and repeat it at intervals."""

    def __init__(self) -> None:
        self._repeats = Repeats()

    def publish_due(self, database: Database, clock: DatabaseClock, publish: Callable[[SourceId], None]) -> int:
        """Publish wake-ups and return their number. Raises `DatabaseUnavailable`."""
        free = SourceLeases(database, _START_MS).free(clock(), by_spark=True)
        # One that was set or resumed is due again.
        waiting = {f"{stored.source} {stored.revision} {stored.resume_at}": stored.source for stored in free}
        due = self._repeats.due(waiting)
        for name in due:
            publish(waiting[name])
            self._repeats.noted(name)
        return len(due)


listing_wake_ups = ListingWakeUps()


def list_bucket(database: Database, clock: DatabaseClock, source: SourceId) -> str:
    """Have a process list a bucket, unless it is not due or somebody else lists it; return its result in one line."""
    leases = SourceLeases(database, _START_MS)
    free = {stored.source: stored for stored in leases.free(clock(), by_spark=True)}
    lease = leases.claim(free[source], clock()) if source in free else None
    if lease is None:
        return "not due"
    started = time.monotonic()
    result = jobs.run([*JOB, *listing_arguments(lease.stored, lease.token)], f"listing {source}")
    if result.code:
        if result.code < 0:  # its last words say nothing of it
            memory = "; was there too little memory?" if -result.code == signal.SIGKILL else ""
            result = JobResult(result.code, f"its process was ended by signal {-result.code}{memory}")
        _end(leases, lease, clock, result)
        log.error("source %s was not listed: %s", source, result.message)
    else:
        log.info("source %s: %s in %.0f s", source, result.message, time.monotonic() - started)
    return result.message


def listing_arguments(stored: StoredSource, token: str) -> list[str]:
    """Return the arguments of the process that lists a bucket by a lease."""
    return ["watched-bucket", "--lease", token, "--", str(stored.source)]


def _end(leases: SourceLeases, lease: SourceLease, clock: DatabaseClock, result: JobResult) -> None:
    """End the lease of a process that has not done it: it may have been killed, or not have begun."""
    with suppress(LeaseLost, *DatabaseUnavailable):
        if result.message == STOPPED_EARLY or result.code == os.EX_TEMPFAIL:
            leases.release(lease)
        else:
            now = clock()
            leases.fail(lease, now, result.message, now + RETRY_MS)
