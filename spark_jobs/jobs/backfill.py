"""Send a target an event for every object that a bucket already has.

A backfill never reads the target, so it works with every type. Objects are sent in the order of their keys, and the
last key is written to a checkpoint after each batch: an interrupted backfill continues behind it with a new listing,
unless the outbox was restored, or has failed over, since: what was sent may be lost. An object that changes after the
listing is left to its own events; the API checks that when it records. An object's event depends only on the object and
on the events of the bucket itself, so the same object is the same event, whose id is recorded once.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import quote

import orjson
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.arn import TargetId
from app.events.names import ContentChange, selectors_with
from app.events.own_events import MULTIPART, PUT
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.reading import log_state
from app.outbox.log_head import LogState
from app.outbox.reconcile import log_queries
from app.outbox.reconcile import runs as r
from app.outbox.registry import Registry
from app.resources.reconciliation import DriftKind
from app.rules.model import Rule
from spark_jobs.api_client import BATCH_SIZE, Api, EventSender, batches
from spark_jobs.errors import root_cause
from spark_jobs.folders import Folder
from spark_jobs.frames import LISTING
from spark_jobs.jobs.repair_events import BACKFILL_SOURCE, backfill_event
from spark_jobs.listings.listing_source import ListingSource
from spark_jobs.rule_predicates import is_matched, matched_events
from spark_jobs.runs import LEASE_MS, renewed
from spark_jobs.scratch import frame_of_keys, scratch_folder, write_keys

SEND, UNMATCHED, IN_FLIGHT = "send", "unmatched", "in_flight"
_PARTITION_SIZE = 50_000  # objects; the driver has one Spark partition in memory at a time
_REPLACED = "the outbox was restored, or has failed over"


class CannotBackfill(Exception):
    """The backfill cannot start; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillConfig(ListingSource):
    """Which objects to send to which target. Times are milliseconds since 1970, periods are milliseconds."""

    target: TargetId
    folder: Path  # for the checkpoints of unfinished backfills
    reports: str  # a path or a URL of a folder, in which a run keeps keys while it goes on
    rate: float = 1000.0  # events per second
    timeout: float = 60.0  # seconds that the API may be unavailable
    limit: int | None = None  # events in this run; the next run continues
    restart: bool = False  # start from the first key, wherever the last run ended

    @property
    def batch_size(self) -> int:
        """Events in one request, no more than one second's."""
        return max(1, min(BATCH_SIZE, int(self.rate)))

    @property
    def checkpoint(self) -> Path:
        """The file with the last key that was sent, and the log's state then; it exists while one is unfinished."""
        name = quote(f"{self.target.type}.{self.target.name}.{self.bucket}", safe="")
        if self.prefix:  # a name of its own, whatever is in it and however long it is
            name += f".{hashlib.sha256(self.prefix.encode()).hexdigest()[:32]}"
        return self.folder / f"backfill-{name}.json"


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """The result of a run; after an unfinished one the next run continues."""

    state: str
    counts: Mapping[str, int]
    after: str  # the key behind which the run continued, "" for none
    problem: str = ""


def backfill(
    spark: SparkSession, database: Database, registry: Registry, config: BackfillConfig, api: Api,
    on_progress: Callable[[int, int], None] | None = None,
) -> BackfillResult:  # fmt: skip
    """Register a run, send the events, and record the result; `on_progress` gets the numbers sent and to send.

    Raises `CannotBackfill`, `AlreadyRunning`, `UnknownTarget`, `BadListing`, `NotPosted`, `NotShared`, and what Spark
    and S3 raise; then the run is recorded as unfinished, and the next one continues.
    """
    registry.target(config.target)
    rules = [stored.rule for stored in registry.rules() if stored.rule.target == config.target]
    if not any(is_matched(rules, config.bucket, name) for name in (PUT, MULTIPART)):
        raise CannotBackfill(
            f"no rule sends created objects of {config.bucket} to {config.target}: "
            f"add one first, such as `bucketwire rule add {config.bucket} {config.target} --event put`; "
            "rules with filters on metadata or tags do not count, because a listing has neither"
        )
    config.check_age()
    runs, counts = r.Reconciliations(database), dict[str, int]()
    run = runs.begin(config.target, config.bucket, lease=LEASE_MS, state=r.BACKFILLING, prefix=config.prefix)
    try:
        with (
            renewed(runs, run) as lost,
            scratch_folder(spark, Folder.of(config.reports, spark), runs, run) as scratch,
        ):
            result = _run(spark, database, config, rules, api, on_progress or _ignore_progress, counts, lost, scratch)
    except KeyboardInterrupt:
        runs.end(run, r.UNFINISHED, counts, problem=r.STOPPED_EARLY)
        raise
    except BaseException as error:
        runs.end(run, r.UNFINISHED, counts, problem=f"{type(error).__name__}: {root_cause(error)}")
        raise
    runs.end(run, result.state, result.counts, problem=result.problem)
    return result


def classify(
    listing: DataFrame, in_flight: DataFrame | None, *, rules: Iterable[Rule], bucket: str, young: int
) -> DataFrame:
    """Return a LISTING with the column `action`: `SEND`, `UNMATCHED` by the rules, or `IN_FLIGHT`.

    `in_flight` has the keys (`key`) whose creation is on its way to the target, None for no keys; objects modified at
    or after `young` (ms) are in flight as well. An object is matched by the event that would be sent for it.
    """
    rules, key = list(rules), F.col("key")
    put, multipart = (matched_events(rules, bucket, name, key, F.col("size")) for name in (PUT, MULTIPART))
    matched = F.when(F.col("etag").contains("-"), multipart).otherwise(put)
    is_in_flight = F.col("modified") >= young
    if in_flight is not None:
        listing = listing.join(in_flight.select(key.alias("moving")).distinct(), key == F.col("moving"), "left")
        is_in_flight |= F.col("moving").isNotNull()
    action = F.when(~matched, UNMATCHED).when(is_in_flight, IN_FLIGHT).otherwise(SEND)
    return listing.select(*LISTING.names, action.alias("action"))


def _run(
    spark: SparkSession, database: Database, config: BackfillConfig, rules: Sequence[Rule], api: Api,
    on_progress: Callable[[int, int], None], counts: dict[str, int], lost: threading.Event, scratch: Folder,
) -> BackfillResult:  # fmt: skip
    if config.restart:
        config.checkpoint.unlink(missing_ok=True)
    (_, reached), problems = log_state(database), list[str]()
    checkpoint, known = _read_checkpoint(config.checkpoint)
    if checkpoint and not reached.still_has(known.epoch, known.last_seq):
        checkpoint = ""
        problems.append(f"It began again with the first key, because {_REPLACED} since the last run.")
    listed_at = config.listed_at or now_ms()
    creations = selectors_with(ContentChange.CREATED)
    mark = log_queries.log_mark(
        database, config.target, config.bucket, lambda keys: write_keys(scratch, "undelivered", keys),
        event_names=creations,
    )  # fmt: skip
    # An event that is older than the listing can still arrive late, but not for objects that are older than `grace`.
    after = log_queries.last_seq_before(database, listed_at - config.grace) if config.listed_at else mark.seq
    listing = config.list_bucket(spark, tasks=config.tasks(spark), after=checkpoint, needs_etags=True)
    objects = listing.frame.persist(StorageLevel.DISK_ONLY)
    in_flight = frame_of_keys(spark, scratch)
    classified = classify(objects, in_flight, rules=rules, bucket=config.bucket, young=listed_at - config.grace)
    by_action = {row["action"]: int(row["count"]) for row in classified.groupBy("action").count().collect()}
    total = by_action.get(SEND, 0)
    counts |= {
        "objects": sum(by_action.values()), DriftKind.MISSING.value: total, "unmatched": by_action.get(UNMATCHED, 0),
        "in_flight": by_action.get(IN_FLIGHT, 0), "unreadable": listing.unreadable_count, "repaired": 0,
        "target_rows": 0,
    }  # fmt: skip
    to_send = classified.where(F.col("action") == SEND).select(*LISTING.names)
    # In partitions, because the driver has one of them in memory at a time; in order, because the checkpoint's key
    # stands for all keys before it.
    ordered = to_send.repartitionByRange(1 + total // _PARTITION_SIZE, "key").sortWithinPartitions("key")
    ordered = ordered.persist(StorageLevel.DISK_ONLY)
    problems.append(listing.describe_problem(counts["unreadable"]))
    done, too_old = 0, ""
    on_progress(done, total)
    with api.to_target(config.target, after=after, rate=config.rate, timeout=config.timeout) as sender:
        for batch in batches(islice(ordered.toLocalIterator(), config.limit), config.batch_size):
            too_old = config.problem_of_age(listed_at)
            if lost.is_set() or too_old:
                break
            _send(database, sender, config, batch, counts)
            before, (_, reached) = reached, log_state(database)
            if not reached.still_has(before.epoch, before.last_seq):
                raise CannotBackfill(f"{_REPLACED}, so what was sent may be lost; run it again")
            _write_checkpoint(config.checkpoint, batch[-1]["key"], reached)
            done += len(batch)
            on_progress(done, total)
    for frame in (ordered, objects):
        frame.unpersist()
    if lost.is_set():
        problems.append(r.LEASE_LOST)
    if too_old:
        problems.append(too_old)
    if done == total:
        config.checkpoint.unlink(missing_ok=True)
    state = r.BACKFILLED if done == total else r.UNFINISHED
    return BackfillResult(state, counts, checkpoint, " ".join(filter(None, problems)))


def _send(
    database: Database, sender: EventSender, config: BackfillConfig, batch: Sequence[Row], counts: dict[str, int]
) -> None:
    keys = [row["key"] for row in batch]
    # Without the events of backfills: sent again, an object must not become a newer event than it was.
    newest = log_queries.newest_sequencers(database, config.bucket, keys, excluding_source=BACKFILL_SOURCE)
    events = [backfill_event(row.asDict(), config.bucket, config.target, newest.get(row["key"], "")) for row in batch]
    receipt = sender.send(events)
    counts["repaired"] += receipt["recorded"]
    counts["target_rows"] += receipt["repeated"]
    counts["in_flight"] += receipt["overtaken"]


def _ignore_progress(_done: int, _total: int) -> None:
    """Do nothing."""


def _read_checkpoint(checkpoint: Path) -> tuple[str, LogState]:
    """Return the last key that was sent, "" for none, and the state of the log then."""
    try:
        known = orjson.loads(checkpoint.read_bytes())
        return str(known["after"]), LogState(int(known["seq"]), str(known["epoch"]), is_current=True)
    except FileNotFoundError:
        return "", LogState(0, "", is_current=True)
    except (ValueError, KeyError, TypeError):
        raise CannotBackfill(f"{checkpoint} cannot be read; delete it, or start over with --restart") from None


def _write_checkpoint(checkpoint: Path, key: str, state: LogState) -> None:
    """Write the checkpoint atomically."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    new = checkpoint.with_suffix(".new")
    with new.open("wb") as file:
        file.write(orjson.dumps({"after": key, "seq": state.last_seq, "epoch": state.epoch}))
        file.flush()
        os.fsync(file.fileno())
    new.replace(checkpoint)
