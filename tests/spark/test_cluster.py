"""End to end: a schedule becomes due, and a worker reconciles on a cluster of two, each part in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import psycopg2.extras
import pytest

import spark_jobs
from app.config.arn import parse_target
from app.outbox import tables
from app.outbox.engine.database import now_ms
from app.outbox.reconcile.runs import Reconciliation, Reconciliations
from app.outbox.reconcile.schedule import Schedule
from spark_jobs import connectors
from spark_jobs.reports import LINES
from tests import provision, services
from tests.services import spark_classes, speed, until
from tests.services.spark import SparkMaster, SparkWorker
from tests.spark.conftest import quickly
from tests.support.service_processes import BUCKETWIRE, Role, System, start_all, stop_all, system
from tests.support.target_contents import TABLE, PostgresContents

pytestmark = pytest.mark.nightly(
    "processes of runs in test_reconcile_jobs.py, test_nightly.py, test_problems.py; drift within this process"
)

BUCKET, TARGET, LONG_AGO = "old-things", "postgresql:rows", "2026-11-01T00:00:00Z"
KEYS = ["dir/", "x y+%41é🎉.txt", "a+b", *(f"many/{number % 3}/{number:02}" for number in range(60))]
DRIFT = {"objects": len(KEYS), "target_rows": len(KEYS) - 1, "missing": 2, "stale": 1, "orphaned": 1, "malformed": 1}
PATIENCE = 240  # seconds for a run; on a quiet machine it takes fifteen


@dataclass
class Stage:
    whole: System
    worker: Role
    minio: services.MinIO
    contents: PostgresContents
    cluster: list[SparkWorker]
    events: Path  # what Spark notes of its runs

    def last(self) -> Reconciliation | None:
        """The newest run."""
        return next(iter(Reconciliations(self.whole.database).list(limit=1)), None)

    def register_next(self) -> None:
        """The next minute's run, not waited for."""
        last = self.last()
        assert last is not None
        Schedule(self.whole.database).register(max(now_ms(), last.started_at) + 60_000)

    def run(self, name: str) -> Reconciliation:
        return next(each for each in Reconciliations(self.whole.database).list() if each.run == name)

    def awaited(self, *states: str) -> Reconciliation:
        until(lambda: (last := self.last()) and last.state in states, PATIENCE, what=f"a run that is {states}")
        last = self.last()
        assert last is not None
        return last


@pytest.fixture(scope="module")
def stage(postgres_server: services.Postgres) -> Iterator[Stage]:
    outbox, database = (f"{name}_{uuid4().hex[:12]}" for name in ("outbox", "target"))
    postgres_server.create_database(database)
    events = services.new_folder("spark-events")
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        broker, minio = stack.enter_context(services.redis()), services.MinIO()
        master = SparkMaster()
        cluster = [SparkWorker(master=master) for _ in range(2)]
        options = {
            "spark.driver.bindAddress": services.LOOPBACK,
            "spark.driver.host": services.LOOPBACK,
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": spark_classes.options(),
            "spark.cores.max": "2",
            "spark.locality.wait": "0",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{PATIENCE}s",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": f"file://{events}",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
        more = {"spark_master": master.url, "spark_jars": provision.SPARK_JARS, "spark_memory": "512m"}
        whole = stack.enter_context(system(postgres_server.create_database(outbox), broker.url, start=False, **more))
        login = {"AWS_ACCESS_KEY_ID": minio.access_key, "AWS_SECRET_ACCESS_KEY": minio.secret_key}
        place = {"AWS_ENDPOINT_URL_S3": minio.url, "SPARK_LOCAL_IP": services.LOOPBACK, "BUCKETWIRE_URL": whole.api.url}
        place |= quickly(options)
        worker = Role(["worker", "--only", "spark"], {**whole.settings, **login, **place}, " ready.")
        stack.callback(stop_all, [minio, master, *cluster, worker])
        parts = pool.submit(start_all, [minio, *whole.roles, worker])
        start_all([master])
        start_all(cluster)
        parts.result()
        contents = PostgresContents(postgres_server, database)
        fill(minio, contents)
        compared_before(whole)
        nightly = {"reconcile": "* * * * *", "reconcile_repair": "on"}
        names = ["s3:ObjectCreated:*", "s3:ObjectRemoved:*"]
        whole.add_target(TARGET, BUCKET, names, connection_string=postgres_server.dsn(database), table=TABLE, **nightly)
        yield Stage(whole, worker, minio, contents, cluster, events)


def compared_before(whole: System) -> None:
    """A run of an hour ago, which has found drift: the next one repairs, if the target says so."""
    runs, started_at = Reconciliations(whole.database), tables.reconciliations.c.started_at
    runs.end(runs.begin(parse_target(TARGET), BUCKET, lease=60_000), "drift", {"missing": 9})
    with whole.database.writing() as connection:
        connection.execute(tables.reconciliations.update().values(started_at=started_at - 3_600_000))


def fill(minio: services.MinIO, contents: PostgresContents) -> None:
    """Old objects in a bucket, and the rows that a target of them has, but for some drift of every kind."""
    s3 = minio.boto3()
    s3.meta.events.register("before-sign.s3.PutObject", _long_ago)
    s3.create_bucket(Bucket=BUCKET)
    rows = {}
    for key in KEYS:
        etag = s3.put_object(Bucket=BUCKET, Key=key, Body=key.encode())["ETag"].strip('"')
        rows[key] = _document(key, etag, len(key.encode()))
    s3.close()
    for key in ("many/0/00", "a+b"):
        del rows[key]
    rows["many/1/01"] = _document("many/1/01", "0" * 32, 9)
    rows["gone"] = _document("gone", "0" * 32, 1)
    rows["many/2/02"] = {"Records": []}
    with contents.server.connection(contents.database) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {TABLE} (key varchar PRIMARY KEY, value jsonb)")
        pairs = [(f"{BUCKET}/{key}", psycopg2.extras.Json(document)) for key, document in rows.items()]
        psycopg2.extras.execute_values(cursor, f"INSERT INTO {TABLE} VALUES %s", pairs)


def _long_ago(request: Any, **_: Any) -> None:
    request.headers["X-Minio-Source-Mtime"] = LONG_AGO


def _document(key: str, etag: str, size: int) -> dict[str, Any]:
    thing = {"key": quote_plus(key), "eTag": etag, "size": size, "sequencer": "18E9E833E5D35CED"}
    record = {"eventName": "s3:ObjectCreated:Put", "eventTime": LONG_AGO, "s3": {"bucket": {"name": BUCKET}}}
    record["s3"] |= {"object": thing}  # type: ignore[operator]
    return {"Records": [record]}


def test_a_scheduled_run_is_executed_once_by_executors_on_every_machine_and_repairs(stage: Stage) -> None:
    begun = stage.awaited("running")
    [job] = stage.worker.children()
    job.send_signal(signal.SIGSTOP)  # so that it cannot have ended before the other one comes
    try:
        by_person = by_hand(stage)
    finally:
        job.send_signal(signal.SIGCONT)
    assert (by_person.returncode, by_person.stdout) == (os.EX_TEMPFAIL, ""), by_person.stderr
    assert f"{TARGET} is already being reconciled with {BUCKET} (started " in by_person.stderr
    until(lambda: stage.run(begun.run).state != begun.state, PATIENCE, what="the end of the run")
    found = stage.run(begun.run)
    assert (found.state, found.problem) == ("repaired", ""), stage.worker.said()
    assert {name: count for name, count in found.counts.items() if count} == DRIFT | {"repaired": 5}
    lines = [line for part in Path(found.report, LINES).glob("*.json") for line in part.read_text().splitlines()]
    assert {one["key"]: one["kind"] for one in map(json.loads, lines)} == {
        "many/0/00": "missing", "a+b": "missing", "many/1/01": "stale", "gone": "orphaned", "many/2/02": "malformed",
    }  # fmt: skip
    assert {worker["port"] for worker in stage.cluster[0].master.alive()} == {each.port for each in stage.cluster}
    assert executors(stage.events) == {"0", "1"}

    listed = {each["id"]: each for each in stage.whole.ask("GET", "/v1/reconciliations").json()["reconciliations"]}
    assert (listed[found.run]["state"], listed[found.run]["missing"]) == ("repaired", 2)
    figure = f'bucketwire_reconcile_drift{{bucket="{BUCKET}",name="rows",type="postgresql"}} 0.0'
    until(lambda: figure in stage.whole.ask("GET", "/metrics").text, 30, what=figure)
    until(lambda: f"with {BUCKET}: repaired: 5 differences" in stage.worker.said(), 30, what=stage.worker.said())

    until(stage.whole.settled, 60, what="the repairs delivered")
    things = {path: row["Records"][0]["s3"]["object"] for path, row in stage.contents.all().items()}
    assert {path: (thing["eTag"], thing.get("size", 0)) for path, thing in things.items()} == {
        f"{BUCKET}/{key}": (md5(key.encode(), usedforsecurity=False).hexdigest(), len(key.encode())) for key in KEYS
    }


def test_a_stopped_worker_stops_its_job_and_the_run_is_recorded_as_failed(stage: Stage) -> None:
    stage.register_next()
    running = stage.awaited("running")
    stage.worker.stop()
    ended = stage.run(running.run)
    assert (ended.state, ended.problem) == ("failed", "the run was stopped before it finished")


def test_spark_submit_runs_a_job_with_its_own_master_settings_and_libraries(stage: Stage, tmp_path: Path) -> None:
    libraries = [provision.SPARK_JARS / connectors.jar_name(each) for each in connectors.DRIVERS]
    options = {
        "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{tmp_path}", "spark.cores.max": "2",
        "spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false",
        "spark.executor.memory": "512m", "spark.driver.host": services.LOOPBACK, "spark.app.name": "theirs",
    }  # fmt: skip
    argv: list[str | Path] = [
        Path(sys.executable).with_name("spark-submit"), "--master", stage.cluster[0].master.url,
        "--driver-memory", "700m", "--jars", ",".join(map(str, libraries)),
        *(word for option in options.items() for word in ("--conf", "=".join(option))),
        Path(spark_jobs.__path__[0], "__main__.py"), "reconcile", "run", BUCKET, "--target", TARGET, "--json",
    ]  # fmt: skip
    environment = os.environ | dict(stage.worker.settings) | {"PYSPARK_PYTHON": sys.executable}
    for name in ("BUCKETWIRE_SPARK_MASTER", "BUCKETWIRE_SPARK_JARS", "PYSPARK_SUBMIT_ARGS"):
        environment.pop(name, None)
    seconds = PATIENCE * speed.slowness()
    ran = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["objects"] == len(KEYS)
    assert executors(tmp_path) == {"0", "1"}


def by_hand(stage: Stage) -> subprocess.CompletedProcess[str]:
    """Start the same reconciliation by hand meanwhile."""
    argv = [BUCKETWIRE, "reconcile", "run", BUCKET, "--target", TARGET]
    environment = os.environ | dict(stage.worker.settings)
    seconds = 120 * speed.slowness()
    return subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=seconds, check=False)


def executors(events: Path) -> set[str]:
    """The executors that have ended tasks well, by Spark's own notes of its first run."""
    found = set()
    log = min(events.glob("app-*"))
    for event in map(json.loads, log.read_text().splitlines()):
        if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
            found.add(event["Task Info"]["Executor ID"])
    return found
