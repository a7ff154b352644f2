"""List a watched bucket by many tasks, compare it with what is known of it, and record what no event explains.

It is what a worker of the sources does (`workers/sources/watcher.py`), by the same lease, snapshot, decisions and
limits, for a bucket of millions of objects. The listing is written to files first. One shuffle then brings its entries
into shares of successive keys, in their order, beside which each task reads its chunks of the snapshot; a snapshot is
never shuffled. What the tasks have decided is written and counted, and only then recorded by this process, chunk by
chunk, each with its events. So a listing that cannot be believed changes nothing, and a job that is killed, or runs a
second time, has recorded a difference and forgotten it, or neither.
"""

import contextlib
import itertools
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # py4j has none
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.config.fields.times import next_moment
from app.config.sources.bucket import BucketSourceSettings
from app.events.model import Event
from app.listings import s3_client, snapshot
from app.listings.comparison import Ahead, Chunk, Replacement, compared
from app.listings.differences import Content, Counts, Listed, Run
from app.listings.limits import BadListing, check_age, refused_removals
from app.outbox import log_head
from app.outbox.delivery.leases import LeaseLost
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import Database
from app.outbox.log.append import Receipt
from app.outbox.reconcile.log_queries import last_seq_before
from app.outbox.sources.intake import TargetFull
from app.outbox.sources.rows import SourceLease, SourceLeases
from app.outbox.sources.watched import FOUND_KINDS, Watched, WatchedBuckets
from app.quantities import count_noun
from spark_jobs import runs
from spark_jobs.errors import root_cause
from spark_jobs.folders import Folder
from spark_jobs.listings import s3_listing, source_inventory, source_listing
from spark_jobs.listings.source_inventory import SourceInventory
from spark_jobs.listings.source_listing import Requests, SourceBucket, SourceListing
from spark_jobs.reports import check_shared, write_parquet
from spark_jobs.scratch import frame_of_keys, write_keys

_DAY = 86_400_000  # ms
_TASKS_PER_CORE = 2  # key ranges to list, because they are not equally long
_KEYS_PER_TASK, _MAX_TASKS = 1_000_000, 4_000
_KEYS_PER_SHARE = 50_000  # compared at once: with 1,000 keys that differ, about 50 MB in Python
_SAMPLE_SIZE = 20_000  # keys by which the listing is divided
_NUMBERS = 1 << 24  # of new chunks, for each share
_MAX_EVENTS = 500  # in one commit
_FIRST_FULL_SECONDS, _MAX_FULL_SECONDS = 0.25, 8.0  # between two tries while a target has no room
_MAX_WAITED_SECONDS = 600.0  # for room, in a listing: the worker's other jobs wait meanwhile
_SHOWN = 100  # characters of a key in an error
_PART_BYTES = 16 << 20  # of what was decided, that this process reads at once

_COUNTS = tuple(Counts.__slots__)
# What an event that is made has, and its kind.
_EVENT = dict.fromkeys(("id", "name", "bucket", "key", "version", "sequencer", "record", "origin"), "string")
_EVENT["time"] = "bigint"
_DECIDED = ", ".join(
    [
        "share int",
        "place int",
        *(f"{name} bigint" for name in _COUNTS),
        "old_chunks array<bigint>",
        "new_chunks array<struct<number: bigint, first: string, body: binary>>",
        f"events array<struct<{', '.join(f'{name}: {kind}' for name, kind in _EVENT.items())}>>",
    ]
)


class NotListed(Exception):
    """The bucket could not be listed and compared; the message says why."""


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """How the job works."""

    reports: str  # a path or a URL of a folder that driver and executors share
    lease_ms: int
    log_retention: int = 7 * 86_400_000  # ms for which the log keeps events that no listing needs
    connections: int = 8  # to the outbox, at once


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a bucket, as tasks find it; it is sent to the executors."""

    url: str
    lease: SourceLease
    next_number: int  # of a chunk

    @classmethod
    def of(cls, database: Database, lease: SourceLease, chunks: Sequence[Chunk]) -> "Known":
        """Return what a source's chunks are."""
        number = max((chunk.number for chunk in chunks), default=0) + 1
        return cls(database.url.render_as_string(hide_password=False), lease, number)


@dataclass(frozen=True, slots=True)
class Share:
    """The keys from `begin` on, up to the next share's, and the chunks of what is known of them; none: nothing is."""

    begin: str
    chunks: Sequence[Chunk]


def run(
    open_session: Callable[[], AbstractContextManager[SparkSession]], database: Database,
    settings: BucketSourceSettings, lease: SourceLease, config: WatchConfig,
    wake: Callable[[Receipt], None] = lambda _receipt: None,
) -> str:  # fmt: skip
    """List, compare and record; return the result in a sentence, with the source given back until its next time.

    `wake` is called for what was recorded. Raises `LeaseLost`, or `NotListed`, and the lease is still held.
    """
    where = s3_client.describe_place(settings)
    try:
        with _renewed(database, lease, config.lease_ms) as stop_renewing, open_session() as spark:
            return _Listing(spark, database, settings, lease, config, wake, stop_renewing).run()
    except BadListing as error:
        raise NotListed(f"{where}: {error}") from None
    except TargetFull as error:
        raise NotListed(str(error)) from None
    except (Py4JJavaError, PySparkException) as error:
        raise NotListed(f"{where}: {root_cause(error)}") from error


@contextmanager
def _renewed(database: Database, lease: SourceLease, lease_ms: int) -> Iterator[Callable[[], None]]:
    """Renew the lease inside; if it is lost, as when an operator pauses the source, end the process as on SIGTERM.

    Call what it yields before the lease is given back.
    """
    leases, clock, stop = SourceLeases(database, lease_ms), DatabaseClock(database), threading.Event()
    # One that has failed answers only when it is listed to its end, so that its alert stays.
    note = leases.renew if lease.stored.failures else leases.answered

    def renew() -> None:
        while not stop.is_set():
            with contextlib.suppress(Exception):  # the next renewal may succeed
                try:
                    note(lease, clock())
                except LeaseLost:
                    if not stop.is_set():
                        runs.end_early()
                    return
            stop.wait(lease_ms / 4000)

    thread = threading.Thread(target=renew, name="source-lease", daemon=True)
    thread.start()
    try:
        yield stop.set
    finally:
        stop.set()
        thread.join()


class _Listing:
    """One listing of a bucket."""

    def __init__(
        self, spark: SparkSession, database: Database, settings: BucketSourceSettings, lease: SourceLease,
        config: WatchConfig, wake: Callable[[Receipt], None], stop_renewing: Callable[[], None],
    ) -> None:  # fmt: skip
        self._stop_renewing = stop_renewing
        self._spark, self._database, self._settings, self._lease = spark, database, settings, lease
        self._config, self._wake = config, wake
        self._clock = DatabaseClock(database)
        self._leases = SourceLeases(database, config.lease_ms)
        self._watched = WatchedBuckets(database, self._clock, config.lease_ms)
        self._waited = 0.0  # seconds, for a target's room
        self._log_state = self._watched.log_state()  # before anything is read that it has to agree with

    def run(self) -> str:
        state, began = self._watched.state(self._lease), self._clock()
        due_at = next_moment(self._settings.spark, began) or began + _DAY
        if state.due_at > began:  # one that was killed when it had ended
            self._rest(min(state.due_at, due_at))
            return "not due"
        with self._scratch() as scratch:
            return self._list(state, began, due_at, scratch)

    @contextmanager
    def _scratch(self) -> Iterator[Folder]:
        """Open a folder of its own, and delete those that earlier listings of the source have left."""
        with self._database.reading() as connection:
            epoch = log_head.read_state(connection).epoch
        scratch = Folder.of(self._config.reports, self._spark) / "scratch"
        prefix = f"source-{epoch}-{self._lease.stored.row_id}-"
        for name in scratch.names():
            if name.startswith(prefix):
                (scratch / name).delete()
        own = scratch / f"{prefix}{uuid4().hex}"
        try:
            check_shared(self._spark, own)
            yield own
        finally:
            own.delete()

    def _list(self, state: Watched, began: int, due_at: int, scratch: Folder) -> str:
        settings, watched, lease = self._settings, self._watched, self._lease
        if by_backfill := not state.complete and settings.initial == "backfill":
            watched.check_backfill(lease, settings.recorded_bucket, settings.prefix, self._config.log_retention)
        watched.begin(lease, settings.recorded_bucket)
        requests = Requests(self._database.url.render_as_string(hide_password=False), lease)
        bucket = SourceBucket.of(settings, requests)
        try:
            if settings.inventory:
                taken = self._opened(bucket)
                # Events of what it shows may come until then. A clock that is ahead must not have it wait longer.
                if (readable_at := min(taken.written, began) + int(settings.grace * 1000)) > began:
                    self._rest(min(readable_at, due_at))
                    return f"{taken.where} is read when its grace is over"
                listing, run = self._read(taken, bucket, state, began, scratch / "listing")
            else:
                listing, run = self._list_bucket(bucket, state, began, scratch / "listing")
        finally:
            requests.write()
        run = replace(run, by_backfill=by_backfill)
        if not run.remembers:
            named = watched.keys_since(run.bucket, settings.prefix, state.seq)
            write_keys(scratch / "recent", "keys", (key for keys in named for key in keys))
        recent = frame_of_keys(self._spark, scratch / "recent")
        counts = self._compare(listing, recent, state, run, scratch / "decided")
        if isinstance(counts, str):
            return f"paused: {counts}"
        store_time = min(listing.store_time, run.ended)  # a clock that was ahead must not refuse what follows
        watched.finish(lease, run, counts, store_time=store_time, due_at=due_at, skipped=listing.skipped)
        self._rest(due_at)
        found = ", ".join(
            f"{getattr(counts, name):,} {name}" for name in ("created", "changed", "removed", "explained")
        )
        return f"{count_noun(counts.objects, 'object')}: {found}, {counts.pending:,} undecided"

    def _list_bucket(
        self, bucket: SourceBucket, state: Watched, began: int, folder: Folder
    ) -> tuple[SourceListing, Run]:
        sample = [chunk.first for chunk in self._watched.chunks(self._lease)]
        cores = self._spark.sparkContext.defaultParallelism
        tasks = max(_TASKS_PER_CORE * cores, min(state.objects // _KEYS_PER_TASK, _MAX_TASKS))
        with self._describing_store_errors():
            versioned, ranges = bucket.is_versioned(), s3_listing.divided(bucket, sample=sample, tasks=tasks)
        listing = source_listing.write(self._spark, bucket, ranges, folder, versioned=versioned)
        check_age(listing.store_time, state.store_time, began - state.began_at)
        behind = max(0, began - listing.store_time) if listing.store_time else 0
        run = self._run(state, began, self._clock(), self._log_state.last_seq, versioned=versioned, behind=behind)
        return listing, replace(run, grace=int(self._settings.grace * 1000))

    def _opened(self, bucket: SourceBucket) -> SourceInventory:
        try:
            return source_inventory.opened(self._spark, bucket)
        except s3_client.STORE_ERRORS as error:
            where = s3_client.describe_place(self._settings)
            raise NotListed(f"{where}: its inventory {self._settings.inventory} cannot be read: {error}") from error

    def _read(
        self, taken: SourceInventory, bucket: SourceBucket, state: Watched, began: int, folder: Folder
    ) -> tuple[SourceListing, Run]:
        """Read an inventory as a listing of its time: of keys with later events it decides nothing."""
        known = (state.store_time or state.began_at) if state.complete else 0
        taken.check_age(known, began, state.complete_since(began, self._config.log_retention))
        with self._describing_store_errors():
            versioned = bucket.is_versioned()
        listing = taken.write(folder, self._settings.prefix, versioned=versioned)
        seq = max(state.seq, last_seq_before(self._database, taken.time))
        return listing, self._run(state, taken.begun, taken.written, seq, versioned=versioned, behind=taken.margin)

    @contextmanager
    def _describing_store_errors(self) -> Iterator[None]:
        try:
            yield
        except s3_client.STORE_ERRORS as error:
            where = s3_client.describe_place(self._settings)
            raise NotListed(s3_client.describe_failure(where, error)) from error

    def _run(self, state: Watched, began: int, ended: int, seq: int, *, versioned: bool, behind: int) -> Run:
        return Run(
            self._settings.recorded_bucket,
            str(self._lease.stored.source),
            began,
            ended,
            seq,
            versioned=versioned,
            remembers=not state.complete and self._settings.initial == "remember",
            is_first=not state.complete,
            behind=behind,
            epoch=self._log_state.epoch,
        )

    def _compare(
        self, listing: SourceListing, recent: DataFrame | None, state: Watched, run: Run, decided: Folder
    ) -> Counts | str:
        """Compare and record; return the counts, or why the source is paused."""
        decisions = decide(
            self._spark, self._database, self._lease, self._watched, listing, recent, run, most=_MAX_EVENTS,
            connections=self._config.connections,
        )  # fmt: skip
        decisions = write_parquet(decisions, decided)
        counts = counts_of(decisions)
        name, percent = str(self._lease.stored.source), self._settings.max_removals
        refused = refused_removals(counts, listing.entries, percent=percent, approved=state.asked, source=name)
        if refused is not None:
            self._stop_renewing()
            self._watched.ask(self._lease, refused.lacking, refused.reason)
            return refused.reason
        for replacement in replacements(decisions, parts=decided.size() // _PART_BYTES + 1):
            self._replace(replacement, run)
        return counts

    def _rest(self, due_at: int) -> None:
        """Give the source back until it is due."""
        self._stop_renewing()
        self._leases.rest(self._lease, due_at)

    def _replace(self, replacement: Replacement, run: Run) -> None:
        """Replace chunks with the events of their keys, and wait for some minutes if a target has no room for these."""
        pause = _FIRST_FULL_SECONDS
        while True:
            try:
                receipt = self._watched.replace(self._lease, replacement, run)
            except TargetFull as error:
                if self._waited >= _MAX_WAITED_SECONDS:
                    raise
                self._leases.wait(self._lease, self._clock(), str(error))
                time.sleep(pause)
                self._waited += pause
                pause = min(2 * pause, _MAX_FULL_SECONDS)
            else:
                self._wake(receipt)
                return


def decide(
    spark: SparkSession, database: Database, lease: SourceLease, watched: WatchedBuckets, listing: SourceListing,
    recent: DataFrame | None, run: Run, *, most: int, connections: int = 8,
) -> DataFrame:  # fmt: skip
    """Return what becomes of what is known of a bucket, and the events of what was found, at most so many at once.

    `recent` has the keys of which the log has new events, perhaps several times each; None for no keys.
    """
    chunks, keys = watched.chunks(lease), listing.rows.select("key")
    size = max(listing.entries, len(chunks) * snapshot.CHUNK_ENTRIES)
    if recent is not None:
        recent = recent.select("key").distinct()
        keys = keys.union(recent)  # also those that no listing and no chunk has
        size += recent.count()
    count = max(1, min(size // _KEYS_PER_SHARE, _MAX_TASKS))
    sample = _sampled(keys) if count > 1 else ()
    chunks = _cut(watched, lease, chunks, bounds_within(chunks, sample, count), run)
    shares = shares_of(chunks, sample, count, lambda chunk: snapshot.decode(watched.body(lease, chunk.number))[-1].key)
    known, share = Known.of(database, lease, chunks), number_of(F.col("key"), shares).alias("share")
    listed = listing.rows.select(share, F.lit(True).alias("listed"), *_LISTED)
    no_entry = [F.lit(None).cast(kind).alias(name) for name, kind in listed.dtypes[3:]]
    every = spark.range(len(shares)).select(
        F.col("id").cast("int"), F.lit(False), F.lit(None).cast("string"), *no_entry
    )
    rows = listed.union(every)  # also a share without an entry is compared
    if recent is not None:
        rows = rows.union(recent.select(share, F.lit(False), "key", *no_entry))
    # Each task has a connection of its own, and as many tasks run at once as there are cores.
    cores = spark.sparkContext.defaultParallelism
    partitions = len(shares) if cores <= connections else min(len(shares), connections)
    ordered = rows.repartition(partitions, "share").sortWithinPartitions("share", "listed", "key", "place", "version")
    decided = ordered.rdd.mapPartitions(lambda some: _decided(some, known, shares, run, most))
    return spark.createDataFrame(decided, _DECIDED, verifySchema=False)


_LISTED = ("key", "place", "version", "etag", "size", "modified", "marker", "latest")


def counts_of(decisions: DataFrame) -> Counts:
    """Return what recording will do."""
    [sums] = decisions.select(*(F.coalesce(F.sum(name), F.lit(0)).alias(name) for name in _COUNTS)).collect()
    return Counts(**sums.asDict())


def replacements(decisions: DataFrame, *, parts: int = 1) -> Iterator[Replacement]:
    """Yield what has to be written, each part of a chunk before the rest of it; memory holds one of so many parts."""
    changed = decisions.where("place >= 0").select("share", "place", *FOUND_KINDS, "old_chunks", "new_chunks", "events")
    ordered = changed.repartitionByRange(parts, "share", "place").sortWithinPartitions("share", "place")
    for row in ordered.toLocalIterator():
        added = [(one.number, one.first, bytes(one.body)) for one in row.new_chunks]
        found = Counts(**{kind: row[kind] for kind in FOUND_KINDS})
        yield Replacement(row.old_chunks, added, [Event(**one.asDict()) for one in row.events], found)


def _cut(
    watched: WatchedBuckets, lease: SourceLease, chunks: list[Chunk], bounds: Mapping[Chunk, Sequence[str]], run: Run
) -> list[Chunk]:
    """Replace chunks by smaller ones at the bounds of shares, and return all: what is known stays the same."""
    numbers = itertools.count(max((chunk.number for chunk in chunks), default=0) + 1)
    is_cut = False
    for chunk, some in bounds.items():
        pieces = snapshot.cut(snapshot.decode(watched.body(lease, chunk.number)), some)
        if len(pieces) > 1:
            added = [(next(numbers), piece[0].key, snapshot.encode(piece)) for piece in pieces]
            watched.replace(lease, Replacement([chunk.number], added), run)
            is_cut = True
    return watched.chunks(lease) if is_cut else chunks


def _sampled(keys: DataFrame) -> list[str]:
    sampled = keys.orderBy(F.xxhash64("key")).limit(_SAMPLE_SIZE)
    return [row["key"] for row in sampled.collect()]


def _decided(
    rows: Iterable[Row], known: Known, shares: Sequence[Share], run: Run, most: int
) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each part of a chunk that changes, and one for what does not change in each share."""
    database = Database(known.url, pool_size=1, patience=None)
    try:
        watched = WatchedBuckets(database, DatabaseClock(database), 0)
        for number, some in groupby(rows, key=itemgetter(0)):
            yield from _decided_share(Ahead(some), number, shares[number], watched, known, run, most)
    finally:
        database.close()


def _decided_share(
    rows: Ahead[Any], number: int, share: Share, watched: WatchedBuckets, known: Known, run: Run, most: int
) -> Iterator[tuple[Any, ...]]:
    recent = list[str]()
    while rows.next is not None and not rows.next[1]:  # not listed
        key = rows.take()[2]
        if key is not None and recent[-1:] != [key]:
            recent.append(key)
    first = known.next_number + number * _NUMBERS
    parts = compared(
        share.chunks,
        read=lambda chunk: watched.body(known.lease, chunk),
        logged=lambda keys: watched.logged(run.bucket, keys, by_backfill=run.by_backfill),
        listed=_listed(rows),
        recent=recent,
        run=run,
        numbers=iter(range(first, first + _NUMBERS)),
        most=most,
    )
    unchanged, place = Counts(), 0
    for part in parts:
        if part.is_changed:
            new = part.replacement()
            events = [tuple(getattr(event, name) for name in _EVENT) for event in new.events]
            yield (number, place, *_numbers(part.counts), new.removed, new.added, events)
            place += 1
        else:
            unchanged.add(part.counts)
    yield (number, -1, *_numbers(unchanged), None, None, None)


def _listed(rows: Ahead[Any]) -> Iterator[Listed]:
    """Yield the entries. Raises `BadListing` for one that is there twice, as in an inventory, which has no order."""
    last, versions = None, set[str]()
    while rows.next is not None:
        _, _, key, _, version, etag, size, modified, marker, latest = rows.take()
        if key != last:
            last, versions = key, set()
        if version in versions:
            raise BadListing(f"it has the entry {key[:_SHOWN]!r} twice, with the version {version[:_SHOWN]!r}")
        versions.add(version)
        yield Listed(key, version, Content(etag, size, modified, marker), latest)


def _numbers(counts: Counts) -> list[int]:
    return [getattr(counts, name) for name in _COUNTS]


def shares_of(
    chunks: Sequence[Chunk], sample: Sequence[str], count: int, last_key: Callable[[Chunk], str]
) -> list[Share]:
    """Return about `count` shares of as many keys of a listing each, of which `sample` has some.

    A chunk is never divided, but what follows its last key is: a first listing that was interrupted leaves all of the
    rest of the bucket there, and one that is cut at the bounds `within` it has such a rest at each. `last_key` reads a
    chunk.
    """
    bounds = _bounds(sample, count)
    if not chunks:
        return [Share(begin, ()) for begin in ["", *sorted(bounds - {""})]]
    firsts = [chunk.first for chunk in chunks]
    cuts = set[str]()
    for number, some in _by_chunk(firsts, bounds).items():
        if number < 0:  # nothing is known of what comes before the first chunk
            cuts |= {*some, firsts[0]}
            continue
        cuts.add(firsts[number] if number else "")
        if len(some) > 1 and (beyond := {bound for bound in some if bound > last_key(chunks[number])}):
            cuts |= beyond | {*firsts[number + 1 : number + 2]}
    begins = ["", *sorted(cuts - {""})]
    shares: list[list[Chunk]] = [[] for _ in begins]
    for chunk in chunks:
        shares[bisect_right(begins, chunk.first) - 1].append(chunk)
    return [Share(begin, tuple(some)) for begin, some in zip(begins, shares, strict=True)]


def bounds_within(chunks: Sequence[Chunk], sample: Sequence[str], count: int) -> dict[Chunk, list[str]]:
    """Return the chunks that have keys of more than one of so many shares, and the bounds of these."""
    places = _by_chunk([chunk.first for chunk in chunks], _bounds(sample, count)) if chunks else {}
    return {chunks[number]: bounds for number, bounds in places.items() if number >= 0 and len(bounds) > 1}


def _bounds(sample: Sequence[str], count: int) -> set[str]:
    ordered = sorted(set(sample))
    return {ordered[len(ordered) * number // count] for number in range(1, count)} if ordered else set()


def _by_chunk(firsts: Sequence[str], bounds: Iterable[str]) -> dict[int, list[str]]:
    """Return the bounds within each chunk, by its place among the chunks; -1 for what comes before them."""
    inside: dict[int, list[str]] = {}
    for bound in bounds:
        inside.setdefault(bisect_right(firsts, bound) - 1, []).append(bound)
    return inside


def number_of(key: Column, shares: Sequence[Share]) -> Column:
    """Return the number of a key's share: a tree of comparisons, of which each key needs a few."""

    def among(low: int, high: int) -> Column:
        if low == high:
            return F.lit(low)
        middle = (low + high + 1) // 2
        return F.when(key < F.lit(shares[middle].begin), among(low, middle - 1)).otherwise(among(middle, high))

    return among(0, len(shares) - 1)
