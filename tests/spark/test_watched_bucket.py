"""A bucket that Spark lists: the same events as a worker's, recorded once, and the same refusals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from app.events.model import Event
from app.events.normalize import event_of
from app.events.order import from_time
from app.events.own_events import DELETE, MARKED, PUT, object_members, own_record
from app.listings import snapshot
from app.listings.comparison import Replacement, compared
from app.listings.differences import Content, Counts, Entry, Listed, Run
from app.outbox import tables
from app.outbox.engine.clock import DatabaseClock
from app.outbox.log.append import Log
from tests import services
from tests.services import until
from tests.spark.conftest import NIGHTLY, QUICKLY, ListedBucket, environment_of
from tests.support.builders import add_target, migrated, registry
from tests.support.scripted_store import BUCKET, scripted_store
from tests.support.watched_bucket import Known, Watch, WatchedBucket, counted
from workers import scheduled_jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_jobs.listings.source_listing import SourceListing

START = 1_760_000_000_000
GRACE = 60_000
MOST = 500


@dataclass
class Bucket:
    """A bucket of some thousand keys, of which each has layers, the newest last, and the events that it reports."""

    rng: Random
    versioned: bool
    now: int = START
    layers: dict[str, list[tuple[str, Content]]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    late: list[Event] = field(default_factory=list)  # reported, and not arrived yet

    def fill(self, number: int) -> None:
        """Put objects that nobody reports."""
        for _ in range(number):
            self.now += 10
            self._put(f"{self.rng.choice('aü𐀀')}/{next(self.numbers):05}")

    def change(self, number: int) -> list[Event]:
        """Change some keys at random, and return the events that arrive, in any order: late, twice, or never."""
        events, self.late = self.late, []
        for _ in range(number):
            self.now += 700
            key = self.rng.choice([*self.layers, f"new/{next(self.numbers)}"])
            event = self._change(key)
            if self.rng.random() < 0.5:
                (self.late if self.rng.random() < 0.3 else events).extend([event] * self.rng.choice([1, 1, 2]))
        self.rng.shuffle(events)
        self.now += self.rng.choice([0, GRACE, 3 * GRACE])
        return events

    def _change(self, key: str) -> Event:
        layers = self.layers.get(key, [])
        if not layers or self.rng.random() < 0.4:
            return self._put(key)
        if self.versioned and self.rng.random() < 0.5:
            version = f"v{next(self.numbers)}"
            layers.append((version, Content("", 0, self.now, is_marker=True)))
            return self._event(MARKED, key, version)
        version, _ = layers.pop(self.rng.randrange(len(layers)))
        return self._event(DELETE, key, version)

    def _put(self, key: str) -> Event:
        version = f"v{next(self.numbers)}" if self.versioned else ""
        layers = self.layers.setdefault(key, [])
        if not self.versioned:
            layers.clear()
        content = Content(f"{self.rng.randrange(3)}", 1, self.now // 1000 * 1000)
        layers.append((version, content))
        return self._event(PUT, key, version, content.etag, 1)

    def _event(self, name: str, key: str, version: str, *told: Any) -> Event:
        members = object_members(key, version, *told) | {"sequencer": from_time((self.now + 1) * 1_000_000)}
        return event_of(own_record("minio:s3", name, "images", members, self.now, {}), 0, 100)

    def listing(self) -> list[Listed]:
        """What a listing says, each key's newest version first."""
        return [
            Listed(key, version, content, is_latest=at == len(self.layers[key]) - 1)
            for key in sorted(self.layers)
            for at, (version, content) in reversed([*enumerate(self.layers[key])])
        ]


@dataclass
class Outbox:
    """One that knows the bucket, and what a listing makes of it."""

    known: Known

    def entries(self) -> list[Entry]:
        """Everything that is known."""
        watched, lease = self.known.watched, self.known.lease
        bodies = (watched.body(lease, chunk.number) for chunk in watched.chunks(lease))
        return [entry for body in bodies for entry in snapshot.decode(body)]

    def log(self) -> list[tuple[Any, ...]]:
        """Every column of the log's events that an event has, in order."""
        e = tables.events.c
        columns = (e.seq, e.id, e.name, e.key, e.version, e.sequencer, e.time, e.record, e.origin)
        with self.known.database.reading() as connection:
            return [tuple(row) for row in connection.execute(sa.select(*columns).order_by(e.seq))]

    def recent(self, after: int) -> list[str]:
        return [key for keys in self.known.watched.keys_since("images", "", after) for key in keys]

    def of_own_log(self, run: Run) -> Run:
        return replace(run, epoch=self.known.watched.log_state().epoch)

    def by_worker(self, listed: Iterable[Listed], recent: Iterable[str], run: Run) -> Counts:
        """Compare and record as a worker does."""
        watched, lease, counts = self.known.watched, self.known.lease, Counts()
        run = self.of_own_log(run)
        chunks = watched.chunks(lease)
        numbers = iter(range(max((chunk.number for chunk in chunks), default=0) + 1, 1_000_000))
        for part in compared(
            chunks, read=lambda number: watched.body(lease, number), logged=lambda keys: watched.logged("images", keys),
            listed=listed, recent=sorted(set(recent)), run=run, numbers=numbers, most=MOST,
        ):  # fmt: skip
            counts.add(part.counts)
            if part.is_changed:
                watched.replace(lease, part.replacement(), run)
        return counts

    def by_spark(
        self, spark: SparkSession, listing: SourceListing, recent: Iterable[str], run: Run, until: int | None = None
    ) -> Counts:
        """The same by Spark; one that is killed has recorded so many parts."""
        from spark_jobs.jobs.watched_bucket import counts_of, decide, replacements

        keys = spark.createDataFrame([(key,) for key in recent], "key string")
        known, run = self.known, self.of_own_log(run)
        decisions = decide(spark, known.database, known.lease, known.watched, listing, keys, run, most=MOST).cache()
        counts = counts_of(decisions)
        for number, replacement in enumerate(replacements(decisions, parts=3)):
            if number == until:
                break
            known.watched.replace(known.lease, replacement, run)
        decisions.unpersist()
        return counts


def spark_listing(spark: SparkSession, listed: list[Listed], rng: Random) -> SourceListing:
    """The listing as tasks write it, in any order of the keys, with two pages."""
    from spark_jobs.listings.source_listing import SCHEMA, summed_up

    pages = [(None,) * 8 + (answered, 0, None) for answered in (0, START)]
    rows = [
        (one.key, place, one.version, *one.content, one.is_latest, None, None, None) for place, one in enumerate(listed)
    ]  # fmt: skip
    mixed = [*pages, *rows]
    rng.shuffle(mixed)
    return summed_up(spark.createDataFrame(mixed, SCHEMA))


@pytest.fixture
def outboxes(tmp_path: Path) -> Iterator[list[Outbox]]:
    databases = [migrated(f"sqlite:///{tmp_path}/{name}.db") for name in ("worker", "spark")]
    try:
        yield [Outbox(Known(database)) for database in databases]
    finally:
        for database in databases:
            database.close()


@pytest.fixture(autouse=True)
def _many_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.jobs.watched_bucket._KEYS_PER_SHARE", 300)


@pytest.mark.parametrize("versioned", [False, True])
def test_spark_and_a_worker_make_the_same_events_of_the_same_history(
    spark: SparkSession, outboxes: list[Outbox], versioned: bool
) -> None:
    """By the events' every byte and place in the log, what is known afterwards, and the counts."""
    worker, by_spark = outboxes
    rng = Random(51 + versioned)
    bucket, seq, made = Bucket(rng, versioned), 0, Counts()
    bucket.fill(2_400)
    for turn in range(4):
        if turn:
            for event in bucket.change(300):
                for outbox in outboxes:
                    Log(outbox.known.database).append([[event]])
        last = worker.known.watched.log_state().last_seq
        run = Run(
            "images", "bucket:x", bucket.now, bucket.now + 5, last, GRACE, versioned=versioned, is_first=not turn
        )  # fmt: skip
        listed = bucket.listing()
        recent = worker.recent(seq)
        counts = worker.by_worker(listed, recent, run)
        # Reported twice while tasks read, and named twice by the log.
        listing = spark_listing(spark, listed, rng)
        assert (listing.entries, listing.store_time) == (len(listed), START)
        assert by_spark.by_spark(spark, listing, [*recent, *recent[:9]], run) == counts
        assert by_spark.log() == worker.log()
        assert by_spark.entries() == worker.entries()
        made.add(counts)
        seq = last
    assert min(made.created, made.changed or versioned, made.removed, made.explained, made.pending) > 0


def test_a_job_that_is_killed_and_one_that_goes_on_record_nothing_twice(
    spark: SparkSession, outboxes: list[Outbox]
) -> None:
    """What a killed first listing has left of the bucket is divided, too, though one chunk has all of it."""
    from spark_jobs.jobs.watched_bucket import shares_of

    _, outbox = outboxes
    rng = Random(7)
    bucket = Bucket(rng, versioned=False)
    bucket.fill(2_400)
    listed = bucket.listing()
    run = Run("images", "bucket:x", bucket.now, bucket.now + 5, 0, is_first=True)
    first = outbox.by_spark(spark, spark_listing(spark, listed, rng), (), run, until=2)
    assert first.created == 2_400
    assert 0 < len(outbox.log()) < 1_500
    known = outbox.known
    chunks = known.watched.chunks(known.lease)
    shares = shares_of(chunks, [one.key for one in listed], 8, lambda _: outbox.entries()[-1].key)
    assert len([share for share in shares if not share.chunks]) > 2
    recorded = len(outbox.log())
    assert known.watched.state(known.lease).created == recorded
    later = known.run(None, bucket.now + 9, is_first=True)
    listing = spark_listing(spark, listed, rng)
    second = outbox.by_spark(spark, listing, outbox.recent(0), later)
    assert second.created == 2_400 - recorded
    assert known.watched.state(known.lease).created == 2_400
    assert outbox.by_spark(spark, listing, outbox.recent(0), later) == Counts(objects=2_400, known=2_400)
    assert counted((name, key) for _, _, name, key, *_ in outbox.log()) == {one.key: 1 for one in listed}
    assert [entry.key for entry in outbox.entries()] == [one.key for one in listed]


def test_keys_of_new_events_are_divided_too_though_neither_a_listing_nor_a_chunk_has_them(
    spark: SparkSession, outboxes: list[Outbox]
) -> None:
    from spark_jobs.jobs.watched_bucket import decide

    known, listed = outboxes[1].known, [Listed("m", "", Content("a", 1, START))]
    keys = [f"k/{number:04}" for number in range(1_500)]
    frame = spark.createDataFrame([(key,) for key in [*keys, *keys[:1] * 9]], "key string")
    run = known.run(0, START + 9 * GRACE, grace=GRACE)
    listing = spark_listing(spark, listed, Random(3))
    decisions = decide(spark, known.database, known.lease, known.watched, listing, frame, run, most=MOST)
    assert decisions.select("share").distinct().count() == 5


def test_what_is_new_within_one_chunk_is_divided(spark: SparkSession, outboxes: list[Outbox]) -> None:
    """A bucket of two objects has got thousands between them."""
    from spark_jobs.jobs.watched_bucket import decide

    worker, by_spark = outboxes
    content, rng = Content("0", 1, START), Random(4)
    listed = [Listed(f"k/{number:04}", "", content) for number in range(2_400)]
    ends = [Entry(one.key, "", content) for one in (listed[0], listed[-1])]
    for outbox in outboxes:
        chunk = (1, ends[0].key, snapshot.encode(ends))
        outbox.known.replace(Replacement([], [chunk]))
    run = by_spark.known.run(0, START + 9)
    counts = worker.by_worker(listed, (), run)
    known, listing = by_spark.known, spark_listing(spark, listed, rng)
    decisions = decide(spark, known.database, known.lease, known.watched, listing, None, run, most=MOST)
    assert decisions.select("share").distinct().count() > 4
    assert by_spark.entries() == ends
    assert by_spark.by_spark(spark, listing, (), run) == counts
    assert by_spark.log() == worker.log()
    assert by_spark.entries() == worker.entries()


@pytest.mark.parametrize("versioned", [False, True])
def test_a_real_bucket_is_followed_and_many_removals_wait_for_an_approval(
    listed_by_spark: ListedBucket, minio: services.MinIO, versioned: bool
) -> None:
    listed = listed_by_spark
    if versioned:
        listed.bucket = WatchedBucket(minio, listed.bucket.database, versioned=True, **NIGHTLY)
    bucket = listed.bucket
    keys = [f"{number % 7}/ü {number:03}" for number in range(60)]
    bucket.put(*keys)
    source = bucket.watch(initial="events")
    code, words = listed.run()
    assert (code, words) == (0, "60 objects: 60 created, 0 changed, 0 removed, 0 explained, 0 undecided")
    assert bucket.mirrored() == set(keys)
    assert bucket.sources.state(source) == "running"  # until it is due
    assert bucket.state.due_at == bucket.sources.stored(source).resume_at > bucket.state.began_at
    bucket.remove(*keys[:3])
    bucket.put("new", body=b"new")
    bucket.put(keys[9], body=b"other")
    assert listed.again()[0] == 0
    assert bucket.mirrored() == set(bucket.keys())
    assert len(bucket.events()) == 65
    assert listed.again()[1].endswith("0 created, 0 changed, 0 removed, 0 explained, 0 undecided")
    assert len(bucket.events()) == 65
    bucket.remove(*keys[20:40])
    assert "paused: the listing lacks 20 objects" in listed.again()[1] or versioned
    if not versioned:  # a marker removes nothing from a listing
        assert bucket.sources.state(source) == "paused"
        assert len(bucket.events()) == 65
        listed.again()
    assert bucket.mirrored() == set(bucket.keys())
    assert bucket.state.listings == 4
    assert bucket.state.requests > 4 * 5  # versioning, what divides the bucket, and a page of each range
    assert [
        path.name for path in Path(listed.environment["BUCKETWIRE_DATA_DIR"]).glob("reconciliations/scratch/*")
    ] == []


def test_what_cannot_be_believed_and_a_lost_lease_change_nothing(listed_by_spark: ListedBucket) -> None:
    listed, bucket = listed_by_spark, listed_by_spark.bucket
    bucket.put("a", "b")
    source = bucket.watch(initial="events", access_key="nobody")
    code, words = listed.run()
    assert code == 1
    assert words.startswith(f"bucketwire: bucket {bucket.name} at {bucket.minio.url} cannot be listed:")
    assert (bucket.state.bucket, bucket.state.complete) == (bucket.name, False)  # so that the log keeps its events
    bucket.watch(initial="events", versions="off")
    assert listed.run()[0] == 0
    before = bucket.state.requests
    bucket.watch(initial="events", versions="off", access_key="nobody")  # only the tasks ask
    code, words = listed.run()
    assert (code, "InvalidAccessKeyId" in words) == (1, True)
    assert bucket.state.requests > before  # what fails is paid for, too
    bucket.watch(initial="events")
    assert listed.by_lease("another")[0] == 75
    w = tables.watched_buckets
    assert listed.run()[0] == 0
    with bucket.database.writing() as connection:
        connection.execute(w.update().values(store_time=w.c.store_time + 3_600_000))
    bucket.put("c")
    code, words = listed.again()
    assert (code, "a cache has answered" in words) == (1, True)
    assert len(bucket.events()) == 2
    assert bucket.sources.stored(source).recorded == 2


def test_a_job_whose_source_is_paused_ends(listed_by_spark: ListedBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_jobs.jobs import watched_bucket

    listed, bucket = listed_by_spark, listed_by_spark.bucket
    ended = []
    monkeypatch.setattr("spark_jobs.runs.end_early", lambda: ended.append("ended"))
    bucket.put("a")
    source = bucket.watch(initial="events")
    write = watched_bucket.write_parquet

    def paused(*arguments: Any) -> Any:
        bucket.sources.registry.pause(source, "an operator")
        return write(*arguments)

    monkeypatch.setattr(watched_bucket, "write_parquet", paused)
    assert listed.run()[0] == 75
    assert bucket.events() == []
    assert bucket.sources.state(source) == "paused"


def test_keys_that_no_event_can_have_are_skipped_counted_and_named(listed_by_spark: ListedBucket) -> None:
    """Each by the task whose range has it, also if another reads its page, too."""
    with scripted_store() as store:
        listed = listed_by_spark
        watch = Watch(listed.bucket.database, BUCKET, store.settings | NIGHTLY)
        for number in range(1_500):
            store.put(f"k{number:04}")
        unheard = ["b\0c", "k0500\0", "k1400\0"]
        for key in unheard:
            store.put(key)
        watch.watch(initial="remember")
        while unheard:
            assert listed.run()[0] == 0
            assert (watch.state.objects, watch.state.skipped) == (1_500, len(unheard))
            reason = watch.sources.stored(watch.source).reason
            assert f"of its listing skipped, such as the key {unheard[0]!r}: no event can have it" in reason
            for key in unheard[:2]:
                del store.objects[key]
            unheard = unheard[2:]
            watch.sources.registry.resume(watch.source)


def test_a_target_that_stays_full_ends_the_job_and_what_was_recorded_stays(
    listed_by_spark: ListedBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_jobs.jobs import watched_bucket

    listed, bucket = listed_by_spark, listed_by_spark.bucket
    monkeypatch.setattr(watched_bucket, "_MAX_EVENTS", 1)
    monkeypatch.setattr(watched_bucket, "_MAX_WAITED_SECONDS", 0.5)
    full = add_target(bucket.database, queue_limit="1", queue_full="reject")
    bucket.put("a", "b")
    bucket.watch(initial="events")
    code, words = listed.run()
    assert (code, "is full" in words) == (1, True)
    assert [key for _, key in bucket.events()] == ["a"]
    registry(bucket.database).put(full, {"endpoint": "http://127.0.0.1:9/"})
    assert listed.again()[0] == 0
    assert [key for _, key in bucket.events()] == ["a", "b"]


@pytest.mark.nightly(
    "the same in this process, and what a worker does with the process's end, in test_listings_by_spark.py"
)
@pytest.mark.timeout(600)
def test_a_process_that_is_killed_while_it_records_is_followed_by_another(
    minio: services.MinIO, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.need("spark_jars")
    url = f"sqlite:///{tmp_path}/outbox.db"
    for name, value in (environment_of(url, tmp_path) | QUICKLY).items():
        monkeypatch.setenv(name, value)
    with closing(migrated(url)) as database, ThreadPoolExecutor(1) as pool:
        bucket, clock = WatchedBucket(minio, database, **NIGHTLY), DatabaseClock(database)
        keys = [f"{number:04}" for number in range(1_300)]
        bucket.put(*keys)
        full = add_target(database, queue_limit="700", queue_full="reject")
        source = bucket.watch(initial="events")
        running = pool.submit(scheduled_jobs.list_bucket, database, clock, source)
        until(lambda: "is full" in bucket.sources.stored(source).error, 300, what="a job that waits for room")
        [process] = scheduled_jobs.jobs._running
        process.kill()
        reason = "its process was ended by signal 9; was there too little memory?"
        assert running.result(60) == bucket.sources.stored(source).error == reason
        assert bucket.sources.state(source) == "failing"
        assert 0 < len(bucket.events()) <= 700
        registry(database).put(full, {"endpoint": "http://127.0.0.1:9/"})
        bucket.sources.registry.resume(source)
        words = scheduled_jobs.list_bucket(database, clock, source)
        assert words.startswith("1,300 objects: ")
        assert counted(bucket.events()) == dict.fromkeys(keys, 1)
        assert bucket.sources.state(source) == "running"
        assert scheduled_jobs.list_bucket(database, clock, source) == "not due"
