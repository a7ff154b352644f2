"""Spark's jobs use nothing of the machine that they run on: neither what Java's drivers nor what Python's look for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from uuid import uuid4

import pytest

from app.config.target_settings import load
from app.config.targets.postgresql import PostgresSettings
from tests import provision, services
from tests.support.asking_postgres import Asking
from tests.support.host_of_worker import HostOfWorker
from tests.support.recording_proxy import Wiretap
from tests.support.sample_events import put
from workers.systems.mysql.target import MysqlTarget
from workers.systems.postgresql.target import PostgresTarget

pytestmark = pytest.mark.nightly(
    "the same of every target and source in the contract suites; a password asked for, in test_jdbc.py"
)  # it needs a driver of its own: the variables of a JVM are those of its start


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, certificates: services.Certificates) -> Iterator[HostOfWorker]:
    services.need("spark_jars")
    meant = {"NO_PROXY": services.LOOPBACK, "BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS)}
    with HostOfWorker(tmp_path_factory.mktemp("host"), certificates, meant) as running:
        assert running.connect("start").outcome == "started"  # by all variables, which the driver inherits
        yield running


def filled(target: PostgresTarget | MysqlTarget) -> None:
    """Give a target's table one row."""
    with closing(target):
        target.open()
        target.deliver([put("k", bucket="b")], 1)


def test_a_postgresql_that_asks_java_for_a_password_gets_none_of_the_host(host: HostOfWorker) -> None:
    with services.postgres() as server, closing(Asking()) as asking:
        filled(PostgresTarget(PostgresSettings(connection_string=server.dsn(), table="rows")))
        with server.connection() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE ROLE trusted LOGIN; GRANT SELECT ON rows TO trusted")
            access = server.folder / "data/pg_hba.conf"
            access.write_text(f"host all trusted {services.LOOPBACK}/32 trust\n{access.read_text()}")
            cursor.execute("SELECT pg_reload_conf()")

        def read(tap: Wiretap | services.Postgres, login: str) -> str:
            place = f"host={services.LOOPBACK} port={tap.port} dbname=postgres sslmode=disable {login}"
            used = host.connect("store", kind="postgresql", values={"connection_string": place, "table": "rows"})
            used.assert_nothing(but=[".pg_service.conf"])  # libpq looks for what PGSERVICE names
            return used.outcome

        assert read(server, f"user={services.USER} password={services.PASSWORD}") == "1 rows"
        with Wiretap(server) as tap:
            assert read(tap, "user=trusted") == "1 rows"
            assert b"of-the-host" not in tap.said
        with Wiretap(server, then=asking) as tap:  # Python's driver is let in, Java's is asked
            assert "PSQLException" in read(tap, "user=trusted")
        assert [each["user"] for each in asking.startups] == ["trusted"]
        assert asking.sent in ([], [b""])  # no password, or an empty one


def test_a_mysql_gets_nothing_of_the_host(host: HostOfWorker, mysql_server: services.MySQL) -> None:
    mysql_server.create_database(name := f"host_{uuid4().hex[:8]}")
    values = {"username": services.USER, "host": services.LOOPBACK, "port": str(mysql_server.port)}
    values |= {"database": name, "table": "rows"}
    login = {"password": services.PASSWORD}
    filled(MysqlTarget(load("mysql", {**values, **login})))
    check(host, "mysql", values, login, mysql_server, "1 rows")


def test_a_redis_gets_nothing_of_the_host(host: HostOfWorker) -> None:
    with services.redis(password=services.PASSWORD) as server:
        values = {"address": f"{services.LOOPBACK}:{server.port}", "key": uuid4().hex, "format": "namespace"}
        check(host, "redis", values, {"password": services.PASSWORD}, server, "0 rows")


def check(
    host: HostOfWorker, kind: str, values: Mapping[str, str], login: Mapping[str, str], server: services.Server,
    read: str,
) -> None:  # fmt: skip
    """It is read with the login, and without one the server learns nothing."""
    used = host.connect("store", kind=kind, values={**values, **login})
    used.assert_nothing()
    assert used.outcome == read
    with Wiretap(server) as tap:
        there = {name: value.replace(str(server.port), str(tap.port)) for name, value in values.items()}
        used = host.connect("store", kind=kind, values=there)
        used.assert_nothing()
        used.assert_not_sent(bytes(tap.said))


def test_a_bucket_with_a_login_of_its_own_is_listed_with_nothing_else(
    host: HostOfWorker, minio: services.MinIO
) -> None:
    with closing(minio.boto3()) as s3:
        s3.create_bucket(Bucket="images")
        s3.put_object(Bucket="images", Key="a", Body=b"x")
    with Wiretap(minio) as tap:
        login = {"access_key": minio.access_key, "secret_key": minio.secret_key}
        values = {"endpoint": f"http://{services.LOOPBACK}:{tap.port}", "region": "us-east-1", **login}
        used = host.connect("listing", values=values)
        assert used.outcome == "1 objects"
        used.assert_not_sent(bytes(tap.said))
