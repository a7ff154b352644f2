"""Backfill a queue and a mirror that were added later: each object once, also after interruptions.

The scanner's warnings are tested here too, because they need the same servers.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from minio.commonconfig import ENABLED
from minio.versioningconfig import VersioningConfig
from pyspark.sql import SparkSession

from app.config.arn import SourceId, TargetId
from app.config.settings import Settings
from app.events.minio_json import decode_key, milliseconds
from app.events.order import comparable
from app.listings.limits import BadListing
from app.outbox import tables
from app.outbox.engine.clock import DatabaseClock
from app.outbox.engine.database import now_ms
from app.outbox.log_head import begin_epoch
from app.outbox.reconcile.runs import Reconciliations
from app.outbox.reconcile.schedule import Schedule
from app.outbox.registry import open_registry
from app.outbox.sources.rows import SourceLeases
from app.rules.filters import NO_FILTERS, Filters, Pairs
from app.rules.model import Rule
from spark_jobs import scratch
from spark_jobs.api_client import Api, NotPosted
from spark_jobs.frames import LISTING
from spark_jobs.jobs.backfill import BackfillConfig, BackfillResult, CannotBackfill, backfill, classify
from spark_jobs.jobs.reconcile import ReconcileConfig, reconcile
from spark_jobs.jobs.repair_events import backfill_event
from spark_jobs.jobs.scan import ScanConfig, ScanLimits, scan
from spark_jobs.listings import s3_listing
from tests import provision, services
from tests.services import until
from tests.spark.conftest import QUICKLY, Job, quickly
from tests.support.frames import frame_of
from tests.support.properties import times
from tests.support.pulled_events import running as serving_sources
from tests.support.service_processes import BUCKETWIRE, System, system
from tests.support.watched_bucket import Watch, values

T = 1_795_000_000_000
PUT = "s3:ObjectCreated:Put"
CREATED = "s3:ObjectCreated:*"
ODD = ["dir/", "x y+%41é🎉.txt", "new\nline\ttab", "%2F", "a+b"]
KEYS = sorted([*ODD, *(f"many/{number:03}" for number in range(35))])
PATIENCE = 120


def rule(
    prefix: str = "",
    suffix: str = "",
    events: Sequence[str] = ("s3:ObjectCreated:*",),
    bucket: str = "b",
    filters: Filters = NO_FILTERS,
) -> Rule:
    target = TargetId("redis", "rows")
    return Rule(bucket=bucket, events=tuple(events), prefix=prefix, suffix=suffix, target=target, filters=filters)


def actions(spark: SparkSession, entries: Sequence[tuple[str, str, int]], rules: Sequence[Rule]) -> dict[str, str]:
    listing = frame_of(spark, [(key, etag, 5, at, "") for key, etag, at in entries], LISTING)
    moving = frame_of(spark, [("moving",), ("moving",), ("elsewhere",)], "key string")
    classified = classify(listing, moving, rules=rules, bucket="b", young=T)
    assert classified.columns == [*LISTING.names, "action"]
    return {row["key"]: row["action"] for row in classified.collect()}


def test_rules_and_events_in_flight_decide_what_is_sent(spark: SparkSession) -> None:
    entries = [("old", "e", T - 1), ("young", "e", T), ("moving", "e", T - 1), ("parts", "e-2", T - 1)]
    everything = dict.fromkeys(["old", "parts"], "send") | dict.fromkeys(["young", "moving"], "in_flight")
    assert actions(spark, entries, [rule(bucket="*", events=["*"])]) == everything
    # An object is matched by the event that would be sent for it.
    rules = [rule("o", "ld", events=[PUT]), rule("pa", events=[PUT]), rule("mo", events=["s3:ObjectRemoved:*"])]
    only_old = dict.fromkeys(["young", "moving", "parts"], "unmatched") | {"old": "send"}
    assert actions(spark, entries, rules) == only_old
    # Each object of the listing has 5 bytes.
    filters = [Filters(min_size=5, max_size=5, regex="o.*"), Filters(min_size=6), Filters(tags=Pairs(a="1"))]
    assert actions(spark, entries, [rule(filters=one) for one in filters]) == only_old
    nothing_moves = classify(
        frame_of(spark, [("k", "e", 5, T - 1, "")], LISTING), None, rules=[rule()], bucket="b", young=T
    )
    assert [row["action"] for row in nothing_moves.collect()] == ["send"]


def test_a_backfill_event_is_just_newer_than_the_events_of_the_bucket() -> None:
    entry = {"key": "a b", "etag": "e", "size": 5, "modified": T, "version": "v"}
    target = TargetId("redis", "rows")
    first = backfill_event(entry, "b", target, "")
    assert (first["eventSource"], first["eventName"]) == ("bucketwire:backfill", PUT)
    assert first["s3"]["object"] == {
        "key": "a+b", "size": 5, "eTag": "e", "versionId": "v", "sequencer": f"{T * 1_000_000:X}",
    }  # fmt: skip
    known = comparable(f"{T * 1_000_000 + 123_456:X}")  # as in MinIO's event of the same object
    assert known < comparable(backfill_event(entry, "b", target, known)["s3"]["object"]["sequencer"])
    assert backfill_event(entry, "b", target, known) == backfill_event(entry, "b", target, known) != first
    assert backfill_event(entry, "b", TargetId("redis", "other"), "") != first


@dataclass
class Stage:
    """A bucket without notifications, the service, and a Redis for its targets."""

    spark: SparkSession
    whole: System
    minio: services.MinIO
    redis: services.Redis
    folder: Path

    def target(self, name: str, form: str, events: Sequence[str], **more: Any) -> None:
        """The target `redis:name`, a list (`access`) or a hash of that name."""
        place = f"{services.LOOPBACK}:{self.redis.port}"
        self.whole.add_target(f"redis:{name}", "b-old", events, address=place, key=name, format=form, **more)

    def backfill(self, name: str, on_progress: Any = None, api: Api | None = None, **more: Any) -> BackfillResult:
        registry = open_registry(self.whole.database, Settings.from_environ(self.whole.settings))
        chosen = {"bucket": "b-old", "endpoint": self.minio.url, "grace": 0} | more
        chosen |= {"folder": self.folder, "reports": str(self.folder)}
        config = BackfillConfig(target=TargetId("redis", name), **chosen)
        return backfill(self.spark, self.whole.database, registry, config, api or Api(self.whole.api.url), on_progress)

    def listing(self) -> tuple[str, int]:
        """A listing of every version in a file, and when it was begun."""
        began = now_ms()
        lines = self.minio.mc("ls", "--recursive", "--versions", "m/b-old")
        file = self.folder / "listing.json"
        file.write_bytes(b"\n".join(map(orjson.dumps, lines)))
        return str(file), began

    @property
    def settings(self) -> dict[str, str]:
        """The environment of a job."""
        more = {"AWS_ENDPOINT_URL_S3": self.minio.url, "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS)}
        return {**self.whole.settings, **more, "BUCKETWIRE_URL": self.whole.api.url}

    @contextmanager
    def bucketwire(self, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
        """A command in the service's own environment; at the end it is killed, with all that it started."""
        more = {"BUCKETWIRE_SPARK_MASTER": "local[1]", **QUICKLY, **environment}
        with subprocess.Popen(
            [str(BUCKETWIRE), *arguments], env=os.environ | self.settings | more, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        ) as running:  # fmt: skip
            try:
                yield running
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)

    def records(self, name: str) -> list[dict[str, Any]]:
        """Return the records in the list, in order."""
        with self.redis.client() as client:
            return [orjson.loads(text)[0]["Event"][0] for text in client.lrange(name, 0, -1)]

    def keys(self, name: str) -> list[str]:
        """Return the keys of the records in the list, sorted."""
        return sorted(decode_key(record["s3"]["object"]["key"]) for record in self.records(name))

    def states(self, name: str) -> list[str]:
        """The runs for the target, oldest first."""
        runs = Reconciliations(self.whole.database).list()
        return [each.state for each in reversed(runs) if each.target.name == name]


@pytest.fixture(scope="module")
def stage(spark: SparkSession) -> Iterator[Stage]:
    folder = services.new_folder("backfill")
    with ExitStack() as stack:
        redis = stack.enter_context(services.redis())
        minio = stack.enter_context(services.minio())
        whole = stack.enter_context(system(f"sqlite:///{folder}/outbox.db", redis.url))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("AWS_ACCESS_KEY_ID", minio.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", minio.secret_key)
        s3 = minio.boto3()
        stack.callback(s3.close)
        s3.create_bucket(Bucket="b-old")
        s3.put_bucket_versioning(Bucket="b-old", VersioningConfiguration={"Status": "Enabled"})
        for key in KEYS:
            s3.put_object(Bucket="b-old", Key=key, Body=key.encode())
        for _ in range(2):
            s3.put_object(Bucket="b-old", Key="a+b", Body=b"again and again")
        for number in range(3):
            s3.put_object(Bucket="b-old", Key=f"gone/{number}/x", Body=b"x")
            s3.delete_object(Bucket="b-old", Key=f"gone/{number}/x")
        yield Stage(spark, whole, minio, redis, folder)


def settle(stage: Stage, name: str) -> None:
    until(lambda: stage.whole.settled(f"redis:{name}"), PATIENCE, what="everything delivered")


def test_a_namespace_that_came_later_is_filled_and_a_later_event_wins(stage: Stage) -> None:
    stage.target("rows", "namespace", [CREATED, "s3:ObjectRemoved:*"])
    result = stage.backfill("rows")
    assert (result.state, result.counts["repaired"], result.counts["objects"]) == ("backfilled", len(KEYS), len(KEYS))
    settle(stage, "rows")
    client = stage.minio.client()
    with stage.redis.client() as redis:
        rows = {path.decode(): orjson.loads(text)["Records"][0] for path, text in redis.hgetall("rows").items()}
        things = {path: record["s3"]["object"] for path, record in rows.items()}
        rows_found = {
            path: (thing["eTag"], thing["size"], thing.get("versionId", "null")) for path, thing in things.items()
        }
        assert rows_found == {
            f"b-old/{one.object_name}": (one.etag, one.size, one.version_id)
            for one in client.list_objects("b-old", recursive=True, include_version=True)
            if one.is_latest == "true" and not one.is_delete_marker
        }
        # A later event of the bucket is newer, because MinIO's sequencer is more precise.
        late = rows["b-old/a+b"]
        late |= {"eventSource": "minio:s3", "eventName": "s3:ObjectCreated:Copy"}
        late["s3"]["object"]["sequencer"] = late["s3"]["object"]["sequencer"][:10] + "FFFFFF"
        stage.whole.post(orjson.dumps({"Records": [late]}))
        settle(stage, "rows")
        assert orjson.loads(redis.hget("rows", "b-old/a+b"))["Records"][0]["eventName"] == "s3:ObjectCreated:Copy"


def test_a_queue_gets_each_object_once_after_repeated_and_interrupted_backfills(stage: Stage) -> None:
    stage.target("list", "access", [PUT], queue_limit=15)
    seen: list[tuple[int, int]] = []
    part = stage.backfill("list", lambda *far: seen.append(far), rate=20, limit=20)
    assert (part.state, part.after, part.counts["repaired"]) == ("unfinished", "", 20)
    assert seen == [(0, len(KEYS)), (20, len(KEYS))]

    nowhere = Api(f"http://{services.LOOPBACK}:{services.free_port()}")
    with pytest.raises(NotPosted, match="does not answer"):
        stage.backfill("list", api=nowhere, timeout=0)
    rest = stage.backfill("list")  # in batches larger than the queue, which drops nothing
    assert (rest.state, rest.after, rest.counts["repaired"]) == ("backfilled", KEYS[19], len(KEYS) - 20)
    settle(stage, "list")
    assert stage.keys("list") == KEYS
    again = stage.backfill("list", rate=10_000)
    assert (again.state, again.counts["repaired"], again.counts["target_rows"]) == ("backfilled", 0, len(KEYS))
    assert stage.states("list") == ["unfinished", "unfinished", "backfilled", "backfilled"]
    assert {record["eventSource"] for record in stage.records("list")} == {"bucketwire:backfill"}
    assert stage.whole.counters()["redis:list"].discarded == 0
    assert {entry.difference for entry in stage.whole.audits()} == {0}


def test_a_backfill_begins_again_with_an_outbox_that_was_restored(stage: Stage) -> None:
    """What was sent into the other one may be lost."""
    stage.target("restored", "access", [PUT])
    assert stage.backfill("restored", rate=5, limit=5).counts["repaired"] == 5

    def restore(done: int, _total: int) -> None:
        if done == 5:
            with stage.whole.database.writing() as connection:
                begin_epoch(connection, "restored")

    with pytest.raises(CannotBackfill, match="has failed over, so what was sent may be lost; run it again"):
        stage.backfill("restored", restore, rate=5, limit=15)
    again = stage.backfill("restored")
    assert (again.state, again.after, again.counts["repaired"]) == ("backfilled", "", len(KEYS) - 15)
    assert "It began again with the first key, because the outbox was restored" in again.problem
    settle(stage, "restored")
    assert stage.keys("restored") == KEYS
    assert stage.states("restored") == ["unfinished", "unfinished", "backfilled"]


@pytest.mark.nightly("reconciliations that end by an error, in test_listing_parts.py")
def test_a_killed_reconciliation_of_a_large_bucket_is_continued(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.target("large", "namespace", [CREATED])
    target, runs, folder = TargetId("redis", "large"), Reconciliations(stage.whole.database), stage.folder / "reports"
    runs.end(runs.begin(target, "b-old", lease=60_000), "clean", {"objects": 2_000_000, "target_rows": 2_000_000})
    with stage.bucketwire(
        "reconcile", "run", "b-old", "--target", str(target), "--grace", "0s", "--report", str(folder)
    ):
        until(lambda: len([*folder.glob("scratch/listing-*/*.done")]) > 1, PATIENCE, what="two parts")
    done = len([*folder.glob("scratch/listing-*/*.done")])
    with stage.whole.database.writing() as connection:  # a minute later
        connection.execute(tables.reconciliations.update().values(alive_until=0))
    listed, listing = list[int](), s3_listing.listing
    monkeypatch.setattr(s3_listing, "listing", lambda *args, **more: listed.append(1) or listing(*args, **more))
    config = ReconcileConfig(
        bucket="b-old",
        target=target,
        reports=str(folder),
        grace=0,
        arrival=0.0,
        endpoint=stage.minio.url,
        size=4_000_000,
    )
    registry = open_registry(stage.whole.database, Settings.from_environ(stage.whole.settings))
    result = reconcile(stage.spark, stage.whole.database, registry, config, Api(stage.whole.api.url))
    assert (result.state, result.counts["objects"], result.counts["missing"]) == ("drift", len(KEYS), len(KEYS))
    assert 0 < len(listed) <= scratch._PARTS - done
    assert not [*folder.glob("scratch/*")]


@pytest.mark.nightly("a run that an API without answers interrupts; tables whose run is killed at any commit")
def test_a_killed_run_is_continued(stage: Stage) -> None:
    stage.target("killed", "access", [CREATED])
    argv = ["backfill", "b-old", "--target", "redis:killed", "--grace", "0s", "--rate", "2"]
    with stage.bucketwire(*argv, "--folder", str(stage.folder)):
        until(lambda: stage.whole.counters()["redis:killed"].recorded >= 4, PATIENCE, what="two portions")
    settle(stage, "killed")
    assert stage.states("killed") == ["backfilling"]
    with stage.whole.database.writing() as connection:  # a minute later
        connection.execute(
            tables.reconciliations.update().where(tables.reconciliations.c.name == "killed").values(alive_until=0)
        )
    before = len(stage.keys("killed"))
    result = stage.backfill("killed")
    assert result.state == "backfilled"
    assert result.after in KEYS[1:before]
    settle(stage, "killed")
    assert stage.keys("killed") == KEYS
    assert stage.states("killed") == ["unfinished", "backfilled"]


@pytest.mark.nightly("in Hadoop's `viewfs`: one client of Hadoop's writes, reads and deletes, whatever the scheme")
def test_reports_and_keys_in_flight_in_a_bucket(stage: Stage) -> None:
    """By Hadoop's `s3a:`, in a bucket with versions, which shows what was deleted again."""
    services.need("s3a_jars")
    s3 = stage.minio.client()
    s3.make_bucket("reports")
    s3.set_bucket_versioning("reports", VersioningConfig(ENABLED))
    login = {"access.key": stage.minio.access_key, "secret.key": stage.minio.secret_key}
    hadoop = {"endpoint": stage.minio.url, "path.style.access": "true", **login}
    options = {f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()}
    environment = quickly({**options, "spark.driver.extraClassPath": f"{provision.S3A_JARS}/*"})

    def done(*words: str) -> dict[str, Any]:
        argv = [*words, "--grace", "0s", "--json"]
        with stage.bucketwire(*argv, BUCKETWIRE_REPORTS="s3a://reports/a b", **environment) as running:
            output, errors = running.communicate(timeout=5 * PATIENCE)
            assert running.returncode == 0, errors
        result: dict[str, Any] = orjson.loads(output)
        return result

    stage.target("far", "namespace", [CREATED, "s3:ObjectRemoved:*"])
    drift = done("reconcile", "run", "b-old", "--target", "redis:far")
    assert (drift["state"], drift["missing"]) == ("drift", len(KEYS))
    [run] = [one for one in Reconciliations(stage.whole.database).list() if one.target.name == "far"]
    assert run.report == f"s3a://reports/a b/{run.run}"
    now = [str(one.object_name) for one in s3.list_objects("reports", recursive=True)]
    assert {name.split("/")[1] for name in now} == {run.run}, "nothing of the scratch folder is left"
    texts = [s3.get_object("reports", name).data for name in now if "/findings.jsonl/" in name]
    assert sorted(orjson.loads(line)["key"] for text in texts for line in text.splitlines()) == KEYS
    assert f"{len(KEYS)} differences".encode() in s3.get_object("reports", f"a b/{run.run}/index.html").data

    stage.whole.add_target(
        "redis:stuck", "b-old", [CREATED], address=f"{services.LOOPBACK}:9", key="k", format="access"
    )
    words = ["backfill", "b-old", "--target", "redis:stuck"]
    assert done(*words, "--limit", "3")["repaired"] == 3
    rest = done(*words, "--restart")
    assert (rest["state"], rest["in_flight"], rest["repaired"]) == ("backfilled", 3, len(KEYS) - 3)
    ever = [str(one.object_name) for one in s3.list_objects("reports", recursive=True, include_version=True)]
    assert any(name.endswith("/undelivered.jsonl") for name in ever)
    assert [str(one.object_name) for one in s3.list_objects("reports", recursive=True)] == now


@pytest.mark.nightly("one after the other, and repeated")
def test_two_targets_are_backfilled_at_once(stage: Stage) -> None:
    """The backfill of one target does not overtake the events of the other."""
    for name in ("one", "other"):
        stage.target(name, "access", [CREATED])
    file, began = stage.listing()
    other = {"listing": file, "listed_at": began, "versions": True}
    stage.backfill("one", lambda done, total: done == 0 and stage.backfill("other", **other))
    assert stage.states("one") == stage.states("other") == ["backfilled"]
    settle(stage, "one")
    settle(stage, "other")
    assert stage.keys("one") == stage.keys("other") == KEYS


@pytest.mark.parametrize("by_spark", [False, True])
def test_a_watched_bucket_begins_with_what_a_backfill_has_sent(
    stage: Stage, job: Job, monkeypatch: pytest.MonkeyPatch, by_spark: bool
) -> None:
    """Only what differs from that becomes an event, of an object that was removed since, too."""
    name, database = f"b-watched-{by_spark}".lower(), stage.whole.database
    watch = Watch(database, name, {})
    watch.source = SourceId("bucket", f"x{by_spark}".lower())
    monkeypatch.setattr("spark_jobs.runs.end_with_input", lambda: None)
    stage.whole.add_target(
        f"redis:{name}", name, [CREATED], address=f"{services.LOOPBACK}:{stage.redis.port}", key=name, format="access"
    )
    s3 = stage.minio.boto3()
    s3.create_bucket(Bucket=name)
    for key in KEYS:
        s3.put_object(Bucket=name, Key=key, Body=key.encode())
    settings = values(stage.minio, name) | {"initial": "backfill", "grace": "0"}
    settings |= {"spark": "0 2 * * *"} if by_spark else {}
    stage.whole.ask("PUT", f"/v1/sources/{watch.source.type}/{watch.source.name}", json=settings)

    def list_once() -> str:
        """The reason why it was not listed, "" if it was."""
        if by_spark:
            watch.sources.registry.resume(watch.source)
            leases, now = SourceLeases(database, 60_000), DatabaseClock(database)()
            lease = leases.claim(watch.sources.stored(watch.source), now)
            assert lease is not None
            code, _, error = job(stage.settings, "watched-bucket", "--lease", lease.token, "--", str(watch.source))
            if code:
                leases.release(lease)
            return error
        listings = watch.state.listings
        key = Path(stage.whole.settings["BUCKETWIRE_DATA_DIR"], "secret.key").read_text()
        with serving_sources(database, secret_keys=key.strip()):
            watch.sources.registry.resume(watch.source)
            until(
                lambda: watch.state.listings > listings or watch.sources.stored(watch.source).error,
                PATIENCE, what="a listing",
            )  # fmt: skip
        return watch.sources.stored(watch.source).error

    assert f"there is no backfill of {name} to begin with: none has ended" in list_once()
    assert stage.backfill(name, bucket=name).counts["repaired"] == len(KEYS)
    s3.put_object(Bucket=name, Key=KEYS[0], Body=b"other")
    s3.delete_object(Bucket=name, Key=KEYS[1])
    s3.put_object(Bucket=name, Key="new", Body=b"new")
    s3.close()
    for _ in range(2):
        assert list_once() == ""
    assert watch.events()[len(KEYS) :] == [
        ("ObjectCreated:Put", KEYS[0]),
        ("ObjectRemoved:Delete", KEYS[1]),
        ("ObjectCreated:Put", "new"),
    ]
    state = watch.state
    assert (state.explained, state.objects, state.pending) == (len(KEYS) - 2, len(KEYS), 0)


def test_a_backfill_that_cannot_start_is_refused(stage: Stage) -> None:
    stage.target("none", "access", ["s3:ObjectRemoved:*"])
    with pytest.raises(CannotBackfill, match="no rule sends created objects of b-old to redis:none"):
        stage.backfill("none")
    stage.target("late", "access", [CREATED])
    with pytest.raises(BadListing, match="events since then may have left the log"):
        stage.backfill("late", listing="/nowhere", listed_at=1)
    late = stage.backfill("late", log_retention=0)
    assert (late.state, late.counts["repaired"], late.counts["target_rows"]) == ("unfinished", 0, 0)
    assert "is too old" in late.problem


def test_a_scheduled_scan_is_recorded_as_a_run(stage: Stage, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.target("ops", "access", ["s3:Scanner:*"], scan="0 0 1 1 *")
    schedule, runs = Schedule(stage.whole.database), Reconciliations(stage.whole.database)
    new_year = 1_798_761_600_000  # 2027-01-01
    assert schedule.register(new_year) == 1
    [waiting] = schedule.waiting()
    words, ends_with_input = ["scan", "b-old", "--scheduled", waiting.run], list[bool]()
    monkeypatch.setattr("spark_jobs.runs.end_with_input", lambda: ends_with_input.append(True))
    if times(0, 1):
        with stage.bucketwire(*words) as running:
            assert running.wait(PATIENCE) == 0  # not `communicate`, which ends its input
    else:
        code, _, error = job(stage.settings, *words)
        assert (code, ends_with_input) == (0, [True]), error
    [run] = [run for run in runs.list() if run.run == waiting.run]
    assert (run.job, run.bucket, run.state, run.problem) == ("scan", "b-old", "clean", "")
    code, _, error = job(stage.settings, *words)
    assert code == os.EX_TEMPFAIL
    assert "has already been started" in error


@pytest.mark.nightly("a scheduled scan, and the shape of a warning in test_scanner.py")
def test_a_scan_warns_by_ordinary_events(stage: Stage, job: Job) -> None:
    stage.target("warnings", "access", ["s3:Scanner:*"])
    stage.target("latest", "namespace", ["s3:Scanner:*"], policy="compatible")
    options = ["--many-versions", "2", "--large-versions", "33", "--big-prefix", "2", "--json"]
    code, out, error = job(stage.settings, "scan", "b-old", *options)
    assert code == 0, error
    assert orjson.loads(out)["s3:Scanner:BigPrefix"] == 2
    settle(stage, "warnings")
    settle(stage, "latest")
    found = {(record["eventName"], record["s3"]["object"]["key"]): record for record in stage.records("warnings")}
    many, large, big = (f"s3:Scanner:{kind}" for kind in ("ManyVersions", "LargeVersions", "BigPrefix"))
    assert sorted(found) == sorted([(many, "a%2Bb"), (large, "a%2Bb"), (big, "gone%2F"), (big, "")])
    assert len(stage.records("warnings")) == 4
    assert found[many, "a%2Bb"]["responseElements"] == {"x-minio-versions": "3"}
    assert found[large, "a%2Bb"]["responseElements"]["x-minio-versions-size"] == "33"
    assert found[big, "gone%2F"]["s3"]["object"]["size"] == 3
    with stage.redis.client() as redis:
        assert sorted(redis.hkeys("latest")) == [b"b-old/", b"b-old/a+b", b"b-old/gone/"]
    midnight = found[many, "a%2Bb"]["eventTime"]
    file, began = stage.listing()
    config = ScanConfig(bucket="b-old", listing=file, listed_at=began, versions=True, limits=ScanLimits(2, 33, 2))
    again = scan(stage.spark, config, Api(stage.whole.api.url), milliseconds(midnight) or 0)
    assert again.receipt == {"repeated": 4}
