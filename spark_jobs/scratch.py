"""Files that a run needs while it goes on, and parts of a listing that a later run needs, beside the reports.

There driver and executors both reach them. So memory holds no keys of the log, and Spark knows their size when it plans
a join.

A large bucket is listed in parts that are written, so that a run goes on where one that ended early has stopped. Their
folder has the key ranges and the time at which listing began, each part, a file for each part that is complete, and one
for each run that has used it. Every run writes its parts to folders of its own, because one that was taken for dead may
go on.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.listings.limits import BadListing
from app.outbox.engine.database import now_ms
from app.outbox.errors import UnknownRun
from app.outbox.reconcile.runs import Reconciliations
from spark_jobs.folders import Folder
from spark_jobs.frames import LISTING
from spark_jobs.listings import s3_listing
from spark_jobs.listings.listing import Listing
from spark_jobs.reports import check_shared, write_parquet
from spark_jobs.runs import LEASE_MS

_SCRATCH = "scratch"


@contextmanager
def scratch_folder(spark: SparkSession, reports: Folder, runs: Reconciliations, run: str) -> Iterator[Folder]:
    """Open the folder of a run, delete those of killed runs, and in the end delete its own. Raises `NotShared`."""
    scratch = reports / _SCRATCH / run
    try:
        check_shared(spark, scratch)
        _delete_killed(reports, runs, run)
        yield scratch
    finally:
        scratch.delete()


def write_keys(folder: Folder, name: str, keys: Iterable[str]) -> None:
    """Write keys to a file of a folder for `frame_of_keys`. Memory holds few at a time."""
    # Not by orjson, which refuses half of a surrogate pair: that is the key of no object, and must not end a run.
    folder.write(f"{name}.jsonl", (json.dumps({"key": key}) + "\n" for key in keys))


def frame_of_keys(spark: SparkSession, folder: Folder) -> DataFrame | None:
    """Return the keys in a folder's files as the column `key`; None for no keys.

    A frame made of Python's objects would need Python workers, and has no size by which Spark could plan a join.
    """
    return spark.read.schema("key string").json(folder.reading_url) if folder.size() else None


def _delete_killed(reports: Folder, runs: Reconciliations, run: str) -> None:
    """Delete the files of runs that were killed. What is not of a run that this service knows is left alone."""

    def is_dead(name: str) -> bool:
        with suppress(UnknownRun):
            known = runs.get(name)
            return name != run and bool(known.finished_at or known.alive_until < now_ms() - LEASE_MS)
        return False

    for name in filter(is_dead, (reports / _SCRATCH).names()):
        (reports / _SCRATCH / name).delete()
        if not runs.get(name).report:
            (reports / name).delete()
    delete_old_parts(reports / _SCRATCH, is_dead)


_PARTS = 16
_MAX_AGE = 24 * 3_600_000  # ms; since an older listing too much has changed
_PARTS_PREFIX = "listing-"  # of the names of the folders
_BEGUN, _DONE, _USED = "begun.json", ".done", ".used"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """What a folder says of its listing."""

    listed_at: int  # milliseconds since 1970
    versioned: bool
    ranges: Sequence[s3_listing.KeyRange]


class ListingParts:
    """The listing of a place, which an earlier run may have begun; one run at a time has it.

    `listed_at` is when listing began: what is newer may not be in it.
    """

    def __init__(self, scratch: Folder, run: str, *, oldest: int, **place: Any) -> None:
        """Find what was begun; delete it if it is older than `oldest` or cannot be read."""
        name = sha256(json.dumps(place, sort_keys=True).encode()).hexdigest()[:32]
        self.folder, self._run = scratch / f"{_PARTS_PREFIX}{name}", run
        self._begun = _read_begun(self.folder)
        if self._begun is None or not max(oldest, now_ms() - _MAX_AGE) < self._begun.listed_at <= now_ms():
            self._begun = None
            self.folder.delete()
        self.listed_at = self._begun.listed_at if self._begun else now_ms()

    @property
    def is_begun(self) -> bool:
        """Whether an earlier run has begun it."""
        return self._begun is not None

    def listing(
        self, spark: SparkSession, bucket: s3_listing.Bucket, *, versioned: bool, sample: Sequence[str], tasks: int
    ) -> Listing:
        """List the parts that are not there yet, each by `tasks` or more, and return the whole listing.

        Raises `BadListing` if versioning was enabled since it was begun, and what Spark and S3 raise.
        """
        begun = self._begun
        self.folder.write(f"{self._run}{_USED}", ())
        if begun is None:
            ranges = s3_listing.divided(bucket, sample=sample, tasks=_PARTS * tasks)
            begun = _Begun(listed_at=self.listed_at, versioned=versioned, ranges=ranges)
            self.folder.write(_BEGUN, [json.dumps(asdict(begun))])
        if begun.versioned != versioned:
            self.folder.delete()
            raise BadListing("versioning was enabled since an earlier run began to list the bucket; run again")
        total, count = len(begun.ranges), min(_PARTS, len(begun.ranges))
        parts = [begun.ranges[total * number // count : total * (number + 1) // count] for number in range(count)]
        for number, part in enumerate(parts):
            if number not in self._complete():
                listed = s3_listing.listing(spark, bucket, part, versioned=versioned)
                write_parquet(listed.objects, self.folder / f"{number}-{self._run}.parquet")
                self.folder.write(f"{number}-{self._run}{_DONE}", ())
        made = self._complete()
        frame = spark.read.schema(LISTING).parquet(*(made[number].reading_url for number in range(count)))
        return Listing(frame, versioned, spark.range(0).select(F.lit("").alias("line")), single=frame)

    def _complete(self) -> dict[int, Folder]:
        """Return the folders of the complete parts, one for each."""
        done = (name.removesuffix(_DONE) for name in self.folder.names() if name.endswith(_DONE))
        return {int(name.partition("-")[0]): self.folder / f"{name}.parquet" for name in done}


def delete_old_parts(scratch: Folder, is_dead: Callable[[str], bool]) -> None:
    """Delete the listings that no run uses or will continue. Of another service's run `is_dead` is False."""
    for folder in (scratch / name for name in scratch.names() if name.startswith(_PARTS_PREFIX)):
        users = [name.removesuffix(_USED) for name in folder.names() if name.endswith(_USED)]
        if users and all(map(is_dead, users)):
            begun = _read_begun(folder)
            if begun is None or begun.listed_at < now_ms() - _MAX_AGE:
                folder.delete()


def _read_begun(folder: Folder) -> _Begun | None:
    """Return what a folder says of its listing; None if there is none, it is just deleted, or was not written whole."""
    try:
        if _BEGUN not in folder.names():
            return None
        text = json.loads(folder.read(_BEGUN))
        return _Begun(**text | {"ranges": [tuple(keys) for keys in text["ranges"]]})
    except (OSError, AnalysisException, ValueError, TypeError, KeyError):
        return None
