"""Compare a target with a bucket, tell what differs, and set it right if that is asked for.

The order of steps is what makes it safe beside writers. First the log's end and what is still on its way are marked;
then rows and bucket are read; last it is asked which objects had events since. Whatever changed in between is among
those, and is left alone.
"""

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from app.config.arn import TargetId
from app.config.targets.base import NamespaceSettings
from app.outbox.engine.database import Database, now_ms
from app.outbox.reconcile import runs as r
from app.outbox.registry import Registry
from spark_jobs import stores
from spark_jobs.api_client import Api, RepairLimits, repairable
from spark_jobs.errors import reason
from spark_jobs.jobs.drift import DRIFT, counts, drift, namespace
from spark_jobs.listings.listing import Listing
from spark_jobs.listings.listing_source import Source
from spark_jobs.reports.report import ReportHeader, write_findings, write_page
from spark_jobs.run_lease import LEASE, alive

_SAMPLE = 20_000  # keys by which a bucket's listing is divided
_TASKS = 2  # ranges of keys for each processor, as they are not equally long


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileConfig(Source):
    """What to compare, and what to do about it. Times are milliseconds since 1970."""

    target: TargetId
    folder: Path  # a new one in it takes the report
    grace: int = 60_000  # objects younger than this (ms) are in flight: their events may not have come yet
    arrival: float = 2.0  # seconds that an event may need from the bucket to the log
    repair: bool = False
    brakes: RepairLimits = field(default_factory=RepairLimits)
    run: str = ""  # one that the schedule has registered
    kept: int = 90 * 86_400_000  # ms for which earlier runs of the same and their reports are kept


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """What a run came to."""

    state: str
    counts: dict[str, int]
    page: Path
    problem: str

    @property
    def drift(self) -> int:
        """How many differences there were."""
        return sum(self.counts[kind] for kind in DRIFT)


def reconcile(
    spark: SparkSession, database: Database, registry: Registry, config: ReconcileConfig, api: Api
) -> ReconcileResult:
    """As `run`, in a session that is there already."""
    return run(lambda: nullcontext(spark), database, registry, config, api)


def run(
    opened: Callable[[], AbstractContextManager[SparkSession]], database: Database, registry: Registry,
    config: ReconcileConfig, api: Api,
) -> ReconcileResult:  # fmt: skip
    """One run, registered from its beginning to its end: who is not the first does not wait for Spark to hear of it.

    Raises `AlreadyRunning`, `UnknownTarget`, `CannotRead`, `BadListing`, `NotPosted`, and what Spark and S3 raise; then
    nothing more is repaired, and the run is recorded as failed.
    """
    settings = registry.settings(registry.target(config.target))
    if not isinstance(settings, NamespaceSettings):
        raise stores.CannotRead(f"{config.target} has no rows: it gets every event and keeps none")
    runs = r.Reconciliations(database)
    name = runs.begin(config.target, config.bucket, lease=LEASE, run=config.run)
    try:
        with alive(runs, name) as lost, opened() as spark:
            result = _run(spark, database, registry, settings, config, api, name, lost)
    except KeyboardInterrupt:
        runs.end(name, r.FAILED, {}, problem="it was stopped before its end")
        raise
    except BaseException as error:
        runs.end(name, r.FAILED, {}, problem=f"{type(error).__name__}: {reason(error)}")
        raise
    runs.end(name, result.state, result.counts, report=str(result.page.parent), problem=result.problem)
    _forget(runs.forget(config.target, config.bucket, now_ms() - config.kept))
    return result


def _forget(reports: Mapping[str, str]) -> None:
    """Remove the reports of runs, those that are on this machine."""
    for run, report in reports.items():
        if Path(report).name == run:  # a report has a folder of its own, and only such a folder goes
            shutil.rmtree(report, ignore_errors=True)


def _run(
    spark: SparkSession, database: Database, registry: Registry, settings: NamespaceSettings,
    config: ReconcileConfig, api: Api, run: str, lost: threading.Event,
) -> ReconcileResult:  # fmt: skip
    looked, mark = config.listed_at or now_ms(), r.mark(database, config.target, config.bucket)
    rules = [each.rule for each in registry.rules() if each.rule.target == config.target]
    tasks = _TASKS * spark.sparkContext.defaultParallelism
    rows = namespace(stores.rows(spark, settings, config.bucket, tasks=tasks), config.bucket)
    rows = rows.persist(StorageLevel.DISK_ONLY)
    held = rows.count()
    listing = config.listed(spark, tasks=tasks, known=[] if config.is_written else _known(rows, held))
    listed = listing.frame.persist(StorageLevel.DISK_ONLY)
    objects, bad = listed.count(), listing.bad_count
    time.sleep(config.arrival)  # what happened while it was listed is in the log by now
    since = r.recorded_since(
        database, config.bucket, seq=mark.seq, received_at=looked - config.grace if config.listed_at else None
    )
    in_flight = spark.createDataFrame([(key,) for key in mark.moving | since], "key string")
    folder = config.folder / run
    folder.mkdir(parents=True)
    compared = drift(
        listed, rows, in_flight, bucket=config.bucket, rules=rules, policy=settings.policy,
        versioned=listing.versioned, young=looked - config.grace, keys=max(objects, held),
    )  # fmt: skip
    findings = write_findings(compared, folder)
    found = counts(findings) | {"objects": objects, "held": held, "bad": bad, "repaired": 0}
    total = sum(found[kind] for kind in DRIFT)
    problem = _doubts(listing, bad)
    if config.repair and total:
        found["repaired"], said = _repair(database, findings, config, api, mark.seq, looked, held, problem, lost)
        problem = " ".join(filter(None, (problem, said)))
    for frame in (rows, listed):
        frame.unpersist()
    state = r.CLEAN if not total else r.REPAIRED if found["repaired"] == total else r.DRIFT
    told = ReportHeader(
        run, config.bucket, str(config.target), settings.policy, listing.versioned, looked, found, problem
    )
    return ReconcileResult(state, found, write_page(findings, told, folder), problem)


def _known(rows: DataFrame, held: int) -> list[str]:
    """A sample of the target's keys, which show best where the bucket's are."""
    known = rows.select("key").sample(min(1.0, _SAMPLE / max(held, 1)), seed=1).limit(2 * _SAMPLE).collect()
    return [row["key"] for row in known]


def _doubts(listing: Listing, bad: int) -> str:
    """Why the listing may lack something, "" if there is no reason to think so."""
    said = [listing.problem] if listing.problem else []
    if bad:
        said.append(f"{bad} lines of the listing could not be read.")
    return " ".join([*said, "Nothing is removed for what it does not name."]) if said else ""


def _repair(
    database: Database, findings: DataFrame, config: ReconcileConfig, api: Api, after: int, looked: int, held: int,
    doubts: str, lost: threading.Event,
) -> tuple[int, str]:  # fmt: skip
    if lost.is_set():
        return 0, "Another run has taken over, so nothing was repaired."
    everything = repairable(findings, removals=True)
    removals = everything.count() - repairable(findings, removals=False).count()
    brake = config.brakes.too_many(removals, held)
    taken = api.post(
        repairable(findings, removals=not doubts and not brake),
        bucket=config.bucket,
        target=config.target,
        after=after,
        looked=looked,
        brakes=config.brakes,
        newest=lambda keys: r.newest_sequencers(database, config.bucket, keys),
    )
    if brake:
        return taken, (
            f"{removals} of {held} rows would have to go, which is more than {config.brakes.removals:g} %: "
            "look at the findings, and allow it by --max-removals if they are right."
        )
    return taken, ""
