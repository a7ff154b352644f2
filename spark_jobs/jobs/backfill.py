"""Tell a target of every object that a bucket holds already: a reconciliation with nothing, so that no store is read.

Objects are told of in the order of their keys, and the last key is written down after each portion: a run that was
cut short goes on behind it with a look of its own at the bucket. What changes after a look is left to its own events;
the API sees to that when it records. An object's event is made of nothing but the object and what the bucket itself
told of it, so that the same object is the same event, whose id is recorded once.
"""

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
from app.events.effects import ContentChange, names
from app.outbox.engine.database import Database, now_ms
from app.outbox.reconcile import runs as r
from app.outbox.registry import Registry
from app.rules.model import Rule
from spark_jobs.api_client import PORTION, Api, Sender, portions
from spark_jobs.errors import reason
from spark_jobs.jobs.repair_events import BACKFILL, PARTS, PUT, day, repair_event
from spark_jobs.listings.listing_source import Source
from spark_jobs.rule_predicates import is_matched, matched_events
from spark_jobs.run_lease import LEASE, alive
from spark_jobs.schemas import LISTING

TELL, OUTSIDE, IN_FLIGHT = "tell", "outside", "in_flight"
_TASKS = 2  # ranges of keys for each processor, as they are not equally long
_PART = 50_000  # objects that the driver holds at a time


class CannotBackfill(Exception):
    """There is nothing that a backfill could do; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillConfig(Source):
    """What to tell whom. Times are milliseconds since 1970, spans are milliseconds."""

    target: TargetId
    folder: Path  # keeps how far unfinished backfills have come
    grace: int = 60_000  # objects younger than this are left to their own events
    memory: int = 7 * 86_400_000  # how long the log keeps what was delivered: a look may be half as old
    rate: float = 1000.0  # events a second
    patience: float = 60.0  # seconds that the API may be away
    most: int | None = None  # events in this run; the next one goes on
    anew: bool = False  # from the first key, wherever the last run ended

    @property
    def portion(self) -> int:
        """So many events at a time, no more than a second's."""
        return max(1, min(PORTION, int(self.rate)))

    @property
    def checkpoint(self) -> Path:
        """The file that says how far it has come; there while it is unfinished."""
        name = quote(f"{self.target.type}.{self.target.name}.{self.bucket}", safe="")
        return self.folder / f"backfill-{name}.json"


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """What a run came to; one that is unfinished goes on with the next."""

    state: str
    counts: Mapping[str, int]
    after: str  # the key that it went on behind, "" for none
    problem: str = ""


def backfill(
    spark: SparkSession, database: Database, registry: Registry, wanted: BackfillConfig, api: Api,
    shown: Callable[[int, int], None] | None = None,
) -> BackfillResult:  # fmt: skip
    """One run, registered from its beginning to its end; `shown` is called with how many of how many were told.

    Raises `CannotBackfill`, `AlreadyRunning`, `UnknownTarget`, `BadListing`, `NotPosted`, and what Spark and S3 raise;
    then the run is recorded as unfinished, and the next one goes on.
    """
    registry.target(wanted.target)
    rules = [each.rule for each in registry.rules() if each.rule.target == wanted.target]
    if not any(is_matched(rules, wanted.bucket, name) for name in (PUT, PARTS)):
        raise CannotBackfill(
            f"no rule leads created objects of {wanted.bucket} to {wanted.target}: "
            f"make one first, such as `bucketwire event add {wanted.bucket} {wanted.target} --event put`"
        )
    if wanted.listed_at and now_ms() - wanted.listed_at > wanted.memory:
        raise CannotBackfill("the listing is older than what the log remembers: what came after it may be forgotten")
    runs, counts = r.Reconciliations(database), dict[str, int]()
    run = runs.begin(wanted.target, wanted.bucket, lease=LEASE, state=r.BACKFILLING)
    try:
        with alive(runs, run) as lost:
            result = _run(spark, database, wanted, rules, api, shown or _unseen, counts, lost)
    except KeyboardInterrupt:
        runs.end(run, r.UNFINISHED, counts, problem="it was stopped before its end")
        raise
    except BaseException as error:
        runs.end(run, r.UNFINISHED, counts, problem=f"{type(error).__name__}: {reason(error)}")
        raise
    runs.end(run, result.state, result.counts, problem=result.problem)
    return result


def sorted_out(listing: DataFrame, moving: DataFrame, *, rules: Iterable[Rule], bucket: str, young: int) -> DataFrame:
    """A LISTING with the column `fate`: `TELL`, `OUTSIDE` of what the rules ask for, or `IN_FLIGHT`.

    `moving` holds the keys (`key`) whose creation is on its way to the target; objects written at or after `young` (ms)
    are in flight as well. An object is asked for by the event that it would be told by.
    """
    rules, key = list(rules), F.col("key")
    put, parts = (matched_events(rules, bucket, name, key) for name in (PUT, PARTS))
    is_asked_for = F.when(F.col("etag").contains("-"), parts).otherwise(put)
    on_its_way = F.col("moving").isNotNull() | (F.col("modified") >= young)
    fate = F.when(~is_asked_for, OUTSIDE).when(on_its_way, IN_FLIGHT).otherwise(TELL)
    known = moving.select(key.alias("moving")).distinct()
    return listing.join(known, key == F.col("moving"), "left").select(*LISTING.names, fate.alias("fate"))


def _run(
    spark: SparkSession, database: Database, wanted: BackfillConfig, rules: Sequence[Rule], api: Api,
    shown: Callable[[int, int], None], counts: dict[str, int], lost: threading.Event,
) -> BackfillResult:  # fmt: skip
    if wanted.anew:
        wanted.checkpoint.unlink(missing_ok=True)
    behind = _read(wanted.checkpoint)
    looked = wanted.listed_at or now_ms()
    mark = r.mark(database, wanted.target, wanted.bucket, only=names(ContentChange.CREATED))
    # An event that is older than the look can still come late; it does not come before the objects that are young.
    after = r.last_before(database, looked - wanted.grace) if wanted.listed_at else mark.seq
    listing = wanted.listed(spark, tasks=_TASKS * spark.sparkContext.defaultParallelism, after=behind)
    listed = listing.frame.persist(StorageLevel.DISK_ONLY)
    moving = spark.createDataFrame([(key,) for key in mark.moving], "key string")
    fates = sorted_out(listed, moving, rules=rules, bucket=wanted.bucket, young=looked - wanted.grace)
    found = {row["fate"]: int(row["count"]) for row in fates.groupBy("fate").count().collect()}
    total = found.get(TELL, 0)
    counts |= {
        "objects": sum(found.values()), "missing": total, "outside": found.get(OUTSIDE, 0),
        "in_flight": found.get(IN_FLIGHT, 0), "bad": listing.bad_count, "repaired": 0, "held": 0,
    }  # fmt: skip
    tell = fates.where(F.col("fate") == TELL).select(*LISTING.names)
    # In parts, as the driver holds one part at a time; in order, as the last key has to stand for all before it.
    ordered = tell.repartitionByRange(1 + total // _PART, "key").sortWithinPartitions("key")
    ordered = ordered.persist(StorageLevel.DISK_ONLY)
    said = [listing.problem, f"{counts['bad']} lines of the listing could not be read." if counts["bad"] else ""]
    done, is_old = 0, False
    shown(done, total)
    with api.to_target(wanted.target, after=after, rate=wanted.rate, patience=wanted.patience) as sender:
        for portion in portions(islice(ordered.toLocalIterator(), wanted.most), wanted.portion):
            is_old = now_ms() - looked > wanted.memory / 2
            if lost.is_set() or is_old:
                break
            _tell(database, sender, wanted, portion, counts)
            _write(wanted.checkpoint, portion[-1]["key"])
            done += len(portion)
            shown(done, total)
    for frame in (ordered, listed):
        frame.unpersist()
    if lost.is_set():
        said.append("Another run has taken over.")
    if is_old:
        said.append(f"The look at the bucket of {day(looked)} is too old to go by.")
    if done == total:
        wanted.checkpoint.unlink(missing_ok=True)
    state = r.BACKFILLED if done == total else r.UNFINISHED
    return BackfillResult(state, counts, behind, " ".join(filter(None, said)))


def _tell(
    database: Database, sender: Sender, wanted: BackfillConfig, portion: Sequence[Row], counts: dict[str, int]
) -> None:
    keys = [one["key"] for one in portion]
    # Without what backfills told: told again, an object must not become a newer event than it was.
    newest = r.newest_sequencers(database, wanted.bucket, keys, but_of=BACKFILL)
    events = [repair_event(one.asDict(), wanted.bucket, wanted.target, newest.get(one["key"], "")) for one in portion]
    receipt = sender.send(events)
    counts["repaired"] += receipt["recorded"]
    counts["held"] += receipt["repeated"]
    counts["in_flight"] += receipt["overtaken"]


def _unseen(_done: int, _total: int) -> None:
    """Nobody watches."""


def _read(checkpoint: Path) -> str:
    """The last key that was told of, "" for none."""
    try:
        return str(orjson.loads(checkpoint.read_bytes())["after"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError):
        raise CannotBackfill(f"{checkpoint} cannot be read; take it away, or start over with --anew") from None


def _write(checkpoint: Path, key: str) -> None:
    """Whole or not at all, whatever happens meanwhile."""
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    new = checkpoint.with_suffix(".new")
    with new.open("wb") as file:
        file.write(orjson.dumps({"after": key}))
        file.flush()
        os.fsync(file.fileno())
    new.replace(checkpoint)
