"""One Spark session for all tests of a test process, with the connectors that `tests.provision` put into its cache."""

from __future__ import annotations

import functools
import gc
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest

from app.cli_common.run import run_command
from app.outbox.engine.clock import DatabaseClock
from app.outbox.errors import AlreadyRunning
from app.outbox.sources.rows import SourceLeases
from tests import provision, services
from tests.services import java, spark_classes
from tests.support.builders import SECRET_KEY, migrated
from tests.support.watched_bucket import WatchedBucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Frames here have a few hundred rows: compiling a plan takes longer than running it.
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.execution.arrow.localRelationThreshold": "0",  # a plan reads a frame, and is not one
    "spark.driver.extraJavaOptions": spark_classes.options(),
}


def quickly(more: Mapping[str, str]) -> dict[str, str]:
    """The same for a job that is started by its command, with more of Spark's settings: its environment."""
    options = [f"--conf={name}={value}" for name, value in {**QUICK, **more}.items()]
    return {
        "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]),
        "SPARK_LAUNCHER_OPTS": " ".join(java.QUICK),
        "SPARK_HOME": str(spark_classes.home()),
    }


QUICKLY = quickly({})
NIGHTLY = {"spark": "0 2 * * *"}
Job = Callable[..., tuple[int, str, str]]  # environment and words: exit code and outputs


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves the sockets of collected results to the garbage collector."""
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Close the sockets here, not in a later test without Spark. What is left is not looked through after each test."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _classes() -> None:
    if not provision.missing("spark_jars"):
        spark_classes.provide()


@pytest.fixture(scope="session", autouse=True)
def _models_of_boto() -> Iterator[None]:
    """Read once what boto3 knows of S3: each of its sessions would, which takes 0.2 s of processor time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))
        yield


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    services.need("spark_jars")
    from spark_jobs import connectors
    from spark_jobs.session import session

    folder = services.new_folder("spark")
    settings = QUICK | {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder)}
    settings |= spark_classes.plain_files() | {"spark.python.daemon.module": "tests.support.spark_daemon"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_HOME", str(spark_classes.home()))
        _keep_names(patch)
        with session(
            "tests", master="local[2]", jars=str(provision.SPARK_JARS), memory="768m", more=settings,
            libraries=tuple(connectors.SHA256),
        ) as spark_session:  # fmt: skip
            yield spark_session


def _keep_names(patch: pytest.MonkeyPatch) -> None:
    """Ask the JVM once what a name is. PySpark asks at each use, and for the first part of a class's full name, `org`,
    Java looks into each of Spark's 300 libraries, in each of the packages that PySpark imports.
    """
    from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView

    def keeping(asked: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def found(self: Any, name: str) -> Any:
            value = asked(self, name)
            if isinstance(value, JavaClass | JavaMember | JavaPackage):
                self.__dict__[name] = value
            return value

        return found

    for kind in (JavaClass, JavaPackage, JVMView):
        patch.setattr(kind, "__getattr__", keeping(kind.__getattr__))


def environment_of(url: str, folder: Path) -> dict[str, str]:
    """The variables of a job."""
    return {
        "BUCKETWIRE_DATABASE_URL": url, "BUCKETWIRE_DATA_DIR": str(folder), "BUCKETWIRE_SECRET_KEYS": SECRET_KEY,
        "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS), "BUCKETWIRE_BROKER_URL": "redis://127.0.0.1:9/",
    }  # fmt: skip


@pytest.fixture
def job(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Job:
    """Run a job's command in an environment, in this process and this session; exit code and outputs.

    A process of its own would be busy with starting a JVM: only where the process is what is tested it has one.
    """
    from spark_jobs.__main__ import jobs
    from spark_jobs.errors import describe_error

    jvm: list[Any] = []

    def launched(name: str, *, is_short: bool = False, cache: Path, **session: Any) -> Callable[[], None]:
        assert cache.name == "cache"
        jvm[:] = [(name, session)]
        return lambda: jvm.append("kept")

    @contextmanager
    def opened(name: str, **session: Any) -> Iterator[SparkSession]:
        assert session["jars"] == str(provision.SPARK_JARS)
        assert jvm == [(name, session)], "the JVM was started for another session"
        yield spark.newSession()  # a catalog of tables is of a session

    monkeypatch.setattr("spark_jobs.session.launch", launched)
    monkeypatch.setattr("spark_jobs.session.session", opened)

    def run(environment: Mapping[str, str], *words: str) -> tuple[int, str, str]:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_command(jobs, words, describe_error, AlreadyRunning)
        assert ended.value.code or jvm[1:] == ["kept"], "the archive of classes was not kept"
        return (ended.value.code, *capsys.readouterr())  # type: ignore[return-value]  # the code is a number

    return run


@dataclass
class ListedBucket:
    """A bucket of a real MinIO, and the job that lists it."""

    bucket: WatchedBucket
    environment: Mapping[str, str]
    job: Job

    def run(self) -> tuple[int, str]:
        """Lease the source, and run the job; exit code and its last words."""
        database = self.bucket.database
        leases, now = SourceLeases(database, 60_000), DatabaseClock(database)()
        [stored] = leases.free(now, by_spark=True)
        lease = leases.claim(stored, now)
        assert lease is not None
        return self.by_lease(lease.token)

    def by_lease(self, token: str) -> tuple[int, str]:
        code, out, err = self.job(self.environment, "watched-bucket", "--lease", token, "--", "bucket:x")
        return code, (err or out).strip().splitlines()[-1]

    def again(self) -> tuple[int, str]:
        """Resume the source, which makes it due, and run the job."""
        self.bucket.sources.registry.resume(self.bucket.source)
        return self.run()


@pytest.fixture(scope="module")
def minio() -> Iterator[services.MinIO]:
    """Start a MinIO for the module."""
    with services.minio() as server:
        yield server


@pytest.fixture
def at_minio(minio: services.MinIO, monkeypatch: pytest.MonkeyPatch) -> services.MinIO:
    """Start a MinIO and set its credentials for boto3."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", minio.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", minio.secret_key)
    return minio


@pytest.fixture(scope="session")
def elasticsearch_server() -> Iterator[services.Elasticsearch]:
    """Start an Elasticsearch with TLS, shared by the session: use your own indices."""
    with services.elasticsearch(tls=True) as server:
        yield server


@pytest.fixture
def listed_by_spark(
    minio: services.MinIO, job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ListedBucket]:
    url = f"sqlite:///{tmp_path}/outbox.db"
    environment = environment_of(url, tmp_path)
    monkeypatch.setattr("spark_jobs.runs.end_with_input", lambda: None)
    with closing(migrated(url)) as database:
        yield ListedBucket(WatchedBucket(minio, database, **NIGHTLY), environment, job)
