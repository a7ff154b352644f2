"""One Spark session for all tests of a test process, with the connectors that `tests.provision` put into its cache."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import provision, services

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Frames here have a few hundred rows: to compile a plan takes longer than to run it.
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """PySpark leaves the sockets of collected results to the garbage collector."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """The sockets are closed here, and not in a later test that knows nothing of Spark."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    services.need("spark_jars")
    from spark_jobs.session import session

    folder = services.new_folder("spark")
    settings = QUICK | {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder)}
    with session("tests", master="local[2]", jars=str(provision.SPARK_JARS), memory="768m", more=settings) as made:
        yield made


@pytest.fixture(scope="module")
def minio() -> Iterator[services.MinIO]:
    """A MinIO of the module's own."""
    with services.minio() as server:
        yield server


@pytest.fixture
def at_minio(minio: services.MinIO, monkeypatch: pytest.MonkeyPatch) -> services.MinIO:
    """The same, with the credentials as boto3 finds them."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", minio.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", minio.secret_key)
    return minio


@pytest.fixture(scope="session")
def elasticsearch_server() -> Iterator[services.Elasticsearch]:
    """An Elasticsearch with TLS shared by the session: use indices of your own."""
    with services.elasticsearch(tls=True) as server:
        yield server
