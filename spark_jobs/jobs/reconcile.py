"""Compare a target with a bucket, report the drift, and repair it on request.

The order of steps makes it safe beside writers. First the log's end and the events that are still in flight are noted;
then the rows and the bucket are read, compared, and their differences written, so that neither has to be read again;
last, the log is asked which objects had events since. An object that changed in between is among those, and is left
alone.

An incremental run does the same with the keys that the log names since the last run. That run noted a position in the
log before which it has compared what every event is about, and so does this one.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.arn import TargetId
from app.config.targets.base import NamespaceSettings
from app.events.own_events import CLOCK_SKEW
from app.listings.limits import RepairLimits
from app.outbox import log_head
from app.outbox.engine.database import Database, now_ms
from app.outbox.policies import RECONCILIATIONS
from app.outbox.reconcile import log_queries
from app.outbox.reconcile import runs as r
from app.outbox.reconcile.runs import LogPosition, Progress, store_findings
from app.outbox.registry import Registry
from app.outbox.tokens import read_target_owners
from app.resources.reconciliation import DRIFT_KINDS, DriftKind, drift_of
from spark_jobs import stores
from spark_jobs.api_client import Api, repairable
from spark_jobs.errors import root_cause
from spark_jobs.folders import Folder
from spark_jobs.frames import by_key
from spark_jobs.jobs.comparison import Sizes, compare, count_findings, mark_in_flight, namespace_by_key, parsed
from spark_jobs.listings.listing import Listing
from spark_jobs.listings.listing_source import ListingSource
from spark_jobs.progress import COMPARING, REPAIRING, REPORTING, ProgressMeter, watched
from spark_jobs.reports import (
    PAGE,
    ReportHeader,
    prepare_charts,
    write_findings,
    write_lines,
    write_page,
    write_parquet,
)
from spark_jobs.runs import LEASE_MS, renewed
from spark_jobs.scratch import ListingParts, frame_of_keys, scratch_folder, write_keys
from spark_jobs.session import are_small_files, is_few, small_plans

_SAMPLE_SIZE = 20_000  # keys by which a bucket's listing is divided
_LARGE = 4_000_000  # entries and rows, of which listing takes two minutes; to write it in parts takes five seconds
_IN_FLIGHT, _NAMED = "in-flight", "named"  # folders there with keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileConfig(ListingSource):
    """What to compare, and whether to repair it. Times are milliseconds since 1970."""

    target: TargetId
    reports: str  # a path or a URL of a folder, in which the report gets a new one
    arrival: float = 2.0  # seconds that an event may need from the bucket to the log
    may_be_gone: bool = True  # its rows are orphaned then
    repair: bool = False
    limits: RepairLimits = field(default_factory=RepairLimits)
    run: str = ""  # the name of a run that the schedule has registered
    retention: int = 90 * 86_400_000  # ms for which earlier runs of the same pair and their reports are kept
    connections: int = 8  # at once to the target, at most
    formats: Sequence[str] = ()  # in which the findings are written beside the report
    incremental: bool = False  # only the keys that the log names since the last run, if it has all of them


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """The result of a run."""

    state: str
    counts: dict[str, int]
    report: str  # the path of its folder, or the URL in another file system
    problem: str
    position: LogPosition | None = None  # from which a later incremental run goes on
    is_incremental: bool = False  # it has compared the keys that the log names since the last run

    @property
    def page(self) -> str:
        """Where the report's page is."""
        return f"{self.report}/{PAGE}"

    @property
    def drift(self) -> int:
        """The number of differences."""
        return drift_of(self.counts)


def reconcile(
    spark: SparkSession, database: Database, registry: Registry, config: ReconcileConfig, api: Api
) -> ReconcileResult:
    """Do the same as `run`, in an open session."""
    return run(lambda: nullcontext(spark), database, registry, config, api)


def run(
    open_session: Callable[[], AbstractContextManager[SparkSession]], database: Database, registry: Registry,
    config: ReconcileConfig, api: Api, show: Callable[[Progress], None] | None = None,
) -> ReconcileResult:  # fmt: skip
    """Register a run, compare, repair, and record the result; `show` gets the progress every second.

    A second run of the same pair fails before it opens a session. Raises `AlreadyRunning`, `UnknownTarget`,
    `CannotRead`, `BadListing`, `NotPosted`, and what Spark and S3 raise; then nothing more is repaired, and the run is
    recorded as failed.
    """
    settings = registry.settings(registry.target(config.target))
    if not isinstance(settings, NamespaceSettings):
        raise stores.CannotRead(
            f"{config.target} has no rows to compare: {config.target.type} targets receive events and keep no rows"
        )
    if config.target in read_target_owners(database):
        stores.refuse_link_local(settings)
    config.check_age()
    runs = r.Reconciliations(database)
    job = r.INCREMENTAL if config.incremental else r.RECONCILE
    name = runs.begin(config.target, config.bucket, lease=LEASE_MS, run=config.run, prefix=config.prefix, job=job)
    meter = ProgressMeter(runs.last_size(config.target, config.bucket))
    try:
        if config.repair:
            api.check_repairs(config.target)  # rather than after the comparison
        with ExitStack() as session:
            with renewed(runs, name, lambda: meter.latest) as lost, watched(meter, show):
                spark = session.enter_context(open_session())
                reports = Folder.of(config.reports, spark)
                with scratch_folder(spark, reports, runs, name) as scratch:
                    result = _run(
                        spark, database, registry, settings, config, api, name, lost, meter, reports / name, scratch
                    )
            runs.end(
                name, result.state, result.counts, report=result.report, problem=result.problem,
                position=result.position,
            )  # fmt: skip
            old = now_ms() - config.retention
            _delete_reports(spark, runs.delete_old(config.target, config.bucket, old, job=runs.get(name).job))
    except KeyboardInterrupt:
        runs.end(name, r.FAILED, {}, problem=r.STOPPED_EARLY)
        raise
    except BaseException as error:
        runs.end(name, r.FAILED, {}, problem=f"{type(error).__name__}: {root_cause(error)}")
        raise
    return result


def _delete_reports(spark: SparkSession, reports: Mapping[str, str]) -> None:
    """Delete the reports of runs, as far as this machine reaches them."""
    for run, report in reports.items():
        folder = Folder.of(report, spark)
        if folder.name == run:  # a report has a folder of its own; no other folder is ever deleted
            folder.delete()


def _run(
    spark: SparkSession, database: Database, registry: Registry, settings: NamespaceSettings,
    config: ReconcileConfig, api: Api, run: str, lost: threading.Event, meter: ProgressMeter, folder: Folder,
    scratch: Folder,
) -> ReconcileResult:  # fmt: skip
    since, reason = _last_position(database, config, run) if config.incremental else (None, "")
    begun = time.monotonic()
    meter.enter(COMPARING, spark)
    parts = None if since else _listing_parts(database, config, scratch.parent, run)
    if parts and parts.is_begun:
        config = replace(config, listed_at=parts.listed_at)
    listed_at = config.listed_at or now_ms()
    mark = log_queries.log_mark(
        database, config.target, config.bucket, lambda keys: write_keys(scratch / _IN_FLIGHT, "undelivered", keys),
        young=listed_at - config.grace - CLOCK_SKEW,
    )  # fmt: skip
    keys = _named_keys(spark, database, config, since, mark.seq, scratch) if since else None
    rules = [stored.rule for stored in registry.rules() if stored.rule.target == config.target]
    rows, sample = _rows(spark, settings, config, keys)
    if parts and not (parts.is_begun or config.size or 2 * rows.count() >= _LARGE):
        parts = None
    with meter.listing(spark) if parts else nullcontext():
        listing = config.list_bucket(
            spark, tasks=config.tasks(spark), sample=sample, needs_etags=config.repair, keys=keys, parts=parts
        )
    with small_plans(spark, is_small=is_few(config.size)):
        differences, sizes = write_differences(
            listing, rows, scratch, has_single_rows=stores.has_single_rows(settings), bucket=config.bucket,
            rules=rules, policy=settings.policy,
        )  # fmt: skip
        meter.enter(REPORTING, spark)
        rows.unpersist()
        if parts and not lost.is_set():  # otherwise another run may use it
            parts.folder.delete()
        unreadable = listing.unreadable_count
    # Then events of what happened before the listing ended are in the log.
    listed_by = begun if config.is_written else time.monotonic()
    time.sleep(max(0.0, listed_by + config.arrival - time.monotonic()))
    in_flight = _in_flight(spark, database, config, mark, scratch)
    is_small = are_small_files(scratch)
    with small_plans(spark, is_small=is_small):
        findings = write_findings(mark_in_flight(differences, in_flight, young=listed_at - config.grace), folder)
    with small_plans(spark, is_small=is_small):
        counts = {**count_findings(findings), **sizes, "unreadable": unreadable, "repaired": 0}
        drift = drift_of(counts)
        if drift:
            prepare_charts()
        for form in config.formats:
            write_lines(findings, folder, form, config.name_in_storage)
        drifted = findings.where(F.col("kind").isin(*DRIFT_KINDS) & ~F.col("in_flight"))
        listed = drifted.limit(RECONCILIATIONS.max_findings)
        store_findings(database, run, (row.asDict() for row in (listed.collect() if drift else ())))
        problem = _listing_problem(listing, unreadable)
        if config.repair and drift:
            meter.enter(REPAIRING, spark)
            counts["repaired"], repair_problem = _repair(
                database, findings, config, api, mark.seq, listed_at, counts["target_rows"], problem, lost,
                versioned=listing.versioned,
            )  # fmt: skip
            problem = " ".join(filter(None, (problem, repair_problem)))
        is_complete = not listing.describe_problem(unreadable) and not config.prefix
        problem = " ".join(filter(None, (reason, listing.note, problem)))
        state = r.CLEAN if not drift else r.REPAIRED if counts["repaired"] == drift else r.DRIFT
        header = ReportHeader(
            run,
            r.describe_place(config.bucket, config.prefix) + (", events since the last run" if since else ""),
            str(config.target),
            settings.policy,
            listing.versioned,
            listed_at,
            counts,
            problem,
        )
        write_page(findings, header, folder)
        # What it has found and left is for the next incremental run to find, too.
        position = since if since and state == r.DRIFT else mark.position
        return ReconcileResult(
            state, counts, str(folder), problem, position if is_complete else None, is_incremental=since is not None
        )


def _rows(
    spark: SparkSession, settings: NamespaceSettings, config: ReconcileConfig, keys: DataFrame | None
) -> tuple[DataFrame, Sequence[str]]:
    """Return the target's rows, of all keys or of `keys`, and a sample of keys by which to divide the listing."""
    # Each task has a connection of its own.
    readers = min(spark.sparkContext.defaultParallelism, config.connections)
    rows = stores.rows(spark, settings, config.bucket, tasks=readers)
    if config.prefix:
        rows = rows.where(F.col("key").startswith(config.prefix))
    if keys is not None:
        return rows.join(keys, "key", "left_semi"), ()
    if config.is_written:
        return rows, ()
    rows = rows.persist(StorageLevel.DISK_ONLY)
    return rows, _sample_keys(rows)


def _listing_parts(database: Database, config: ReconcileConfig, scratch: Folder, run: str) -> ListingParts | None:
    """Return the listing in parts that an earlier run of the same pair has begun, or a new one; None for a small one.

    Of a pair without an earlier run the size is not known. A listing that was begun in another epoch of the log is not
    gone on with: the log may have lost events since, so what is newer than the listing would not be known.
    """
    if config.is_written or 0 < config.size < _LARGE:
        return None
    with database.reading() as connection:
        epoch = log_head.read_state(connection).epoch
    bucket = config.storage
    return ListingParts(
        scratch, run, oldest=now_ms() - config.log_retention + config.grace, epoch=epoch, target=str(config.target),
        bucket=config.bucket, name=bucket.name, endpoint=bucket.endpoint, region=bucket.region, prefix=bucket.prefix,
    )  # fmt: skip


def _in_flight(
    spark: SparkSession, database: Database, config: ReconcileConfig, mark: log_queries.LogMark, scratch: Folder
) -> DataFrame | None:
    """Return the keys that were in flight at the mark of the log, and those of the events that were recorded since."""
    received_at = config.listed_at - config.grace if config.listed_at else None
    changed = log_queries.keys_recorded_since(database, config.bucket, mark, received_at=received_at)
    write_keys(scratch / _IN_FLIGHT, "recorded", changed)
    return frame_of_keys(spark, scratch / _IN_FLIGHT)


def _last_position(database: Database, config: ReconcileConfig, run: str) -> tuple[LogPosition | None, str]:
    """Return from where in the log an incremental run goes on; None and a sentence if it compares the whole bucket."""
    runs = r.Reconciliations(database)
    since = runs.last_position(config.target, config.bucket)
    problem = "no run of the whole bucket has ended"
    if since is not None:
        problem = log_queries.problem_of_position(database, since, config.log_retention)
    if not problem:
        return since, ""
    runs.become_whole(run)
    return None, f"The whole bucket was compared, because {problem}."


def _named_keys(
    spark: SparkSession, database: Database, config: ReconcileConfig, since: LogPosition, until: int, scratch: Folder
) -> DataFrame:
    """Return the keys that the log names after a position, up to a seq."""
    named = log_queries.keys_named(database, config.target, config.bucket, after=since.seq, until=until)
    write_keys(scratch / _NAMED, "keys", named)
    keys = frame_of_keys(spark, scratch / _NAMED)
    return spark.createDataFrame([], "key string") if keys is None else keys


def _sample_keys(rows: DataFrame) -> list[str]:
    """Return a sample of the target's keys; the bucket's keys are probably distributed like them."""
    return [row["key"] for row in rows.select("key").orderBy(F.xxhash64("key")).limit(_SAMPLE_SIZE).collect()]


def _listing_problem(listing: Listing, unreadable: int) -> str:
    """Return why the listing may be incomplete; "" if nothing suggests it."""
    problem = listing.describe_problem(unreadable)
    return f"{problem} No row is removed, because the listing may be incomplete." if problem else ""


def _repair(
    database: Database, findings: DataFrame, config: ReconcileConfig, api: Api, after: int, listed_at: int,
    target_rows: int, listing_problem: str, lost: threading.Event, *, versioned: bool,
) -> tuple[int, str]:  # fmt: skip
    """Post the repairs; return how many were recorded, and what kept others from it."""
    if lost.is_set():
        return 0, f"{r.LEASE_LOST} Nothing was repaired."
    limits = config.limits
    repairs = repairable(findings)
    is_removal, is_creation = F.col("modified").isNull(), F.col("kind") == DriftKind.MISSING
    [number] = repairs.agg(
        F.count_if(is_removal).alias("removals"), F.count_if(is_creation).alias("creations")
    ).collect()
    too_many_removals = limits.too_many_removals(number.removals, target_rows)
    too_many_creations = limits.too_many_creations(number.creations, target_rows)
    if listing_problem or too_many_removals:
        repairs = repairs.where(~is_removal)
    if too_many_creations:
        repairs = repairs.where(~is_creation)
    wanted = repairs.count()
    repaired, problem = api.post_repairs(
        repairs,
        bucket=config.bucket,
        target=config.target,
        after=after,
        listed_at=listed_at,
        limits=limits,
        problem=lambda: r.LEASE_LOST if lost.is_set() else config.problem_of_age(listed_at),
        newest_sequencers=lambda keys: log_queries.newest_sequencers(
            database, config.bucket, keys, mirror=config.target
        ),
        existing=partial(config.existing, versioned=versioned),
    )
    problems = [problem]
    if too_many_removals:
        problems.append(
            f"{number.removals:,} of {target_rows:,} rows would be removed, more than {limits.max_removals:g} %. "
            "Check the findings; if they are right, raise --max-removals."
        )
    if too_many_creations:
        problems.append(
            f"{number.creations:,} objects are missing from the target, which has {target_rows:,} rows: more than "
            f"{limits.max_creations:g} %, so no row is created. Check that the listing is that of the right bucket; if "
            "it is, send these objects by `bucketwire backfill`, or raise --max-creations."
        )
    if wanted > limits.max_repairs:
        problems.append(
            f"{wanted:,} differences can be repaired, and a run repairs {limits.max_repairs:,} at most "
            "(--max-repairs): the next run goes on."
        )
    return repaired, " ".join(filter(None, problems))


def write_differences(
    listing: Listing, rows: DataFrame, folder: Folder, *, has_single_rows: bool, bucket: str, **options: Any
) -> tuple[DataFrame, Mapping[str, int]]:
    """Write the DIFFERENCES between a listing and ROWS into a folder, by the `options` of `compare`.

    Returns a frame that reads them, and the numbers of `objects` and of `target_rows`. With `has_single_rows` the store
    probably returns each row once.

    To choose between several entries or rows of a key takes time, and hardly ever is there a choice. So both sides are
    compared as if each key were there once; if it was not, they are read again, and compared with a choice for each
    key.
    """
    options |= {"bucket": bucket, "versioned": listing.versioned}
    if listing.single is not None:
        single_rows = by_key(parsed(rows, bucket)) if has_single_rows else namespace_by_key(rows, bucket)
        sizes = Sizes()
        compared = compare(by_key(listing.single), single_rows, sizes=sizes, **options)
        differences = write_parquet(compared, folder / "differences.parquet")
        if not has_repeated_keys(differences, sizes):
            return _of_a_kind(differences), sizes.counts
    sizes = Sizes()
    compared = compare(listing.objects, namespace_by_key(rows, bucket), sizes=sizes, **options)
    return _of_a_kind(write_parquet(compared, folder / "chosen.parquet")), sizes.counts


def has_repeated_keys(differences: DataFrame, sizes: Sizes) -> bool:
    """Return whether a side of a comparison had a key more than once in a way that could change its DIFFERENCES."""
    if sizes.has_repeated_matches:
        return True
    # What remains are keys that one side alone has: without an object, or without a row. An object has a time.
    alone = differences.where(F.col("modified").isNull() | (F.col("kind") == DriftKind.MISSING))
    repeated = alone.groupBy(F.xxhash64("key")).count().where(F.col("count") > 1)
    return not repeated.isEmpty()


def _of_a_kind(differences: DataFrame) -> DataFrame:
    return differences.where(F.col("kind").isNotNull())
