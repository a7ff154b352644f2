"""A target's settings cannot make a JDBC driver do more than connect to the target's database."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # ships no types
from pyspark.sql import SparkSession

from app.config.errors import BadValue
from app.config.targets.mysql import MysqlSettings
from app.config.targets.postgresql import PostgresSettings
from spark_jobs.connectors import mysql_url, postgresql_url
from spark_jobs.stores import CannotRead, rows
from tests import services
from tests.support.asking_postgres import Asking
from tests.support.rogue_server import RogueServer, exactly
from tests.support.sample_events import put
from workers.delivery.outcomes import DELIVERED
from workers.systems.mysql.target import MysqlTarget
from workers.systems.postgresql.target import PostgresTarget

HOSTILE = "d?allowLoadLocalInfile=true&allowUrlInLocalInfile=true"
# Everything that separates a part of a URL from the next one, an escape, a +, and letters outside of ASCII.
ODD = "o?a=b&c/d#e %3F+;é"
_CAPABILITIES = (
    0x00000200 | 0x00000080 | 0x00008000 | 0x00080000 | 0x00000008
)  # 4.1, files, passwords, plugins, database


@dataclass(eq=False)
class RogueMySQL(RogueServer):
    """A MySQL server that lets everybody in and answers each statement by asking the client for a file."""

    asks_for: str
    logins: list[bytes] = field(default_factory=list)
    statements: int = 0
    received: bytes = b""

    def __post_init__(self) -> None:
        super().__init__()

    def talk(self, client: socket.socket) -> None:
        capabilities = struct.pack("<I", _CAPABILITIES)
        greeting = b"\x0a8.0.30\0" + struct.pack("<I", 1) + b"12345678\0" + capabilities[:2] + b"\x2d\x02\0"
        _send(client, 0, greeting + capabilities[2:] + b"\x15" + bytes(10) + b"123456789012\0mysql_native_password\0")
        self.logins.append(_receive(client)[1])
        _send(client, 2, b"\0\0\0\x02\0\0\0")
        while True:
            _, statement = _receive(client)
            if statement[:1] == b"\x01":  # COM_QUIT
                return
            self.statements += 1
            _send(client, 1, b"\xfb" + self.asks_for.encode())
            while content := _receive(client)[1]:
                self.received += content
            _send(client, 3, b"\xff\x28\x04#42000no")


def _send(client: socket.socket, number: int, payload: bytes) -> None:
    client.sendall(struct.pack("<I", len(payload))[:3] + bytes([number]) + payload)


def _receive(client: socket.socket) -> tuple[int, bytes]:
    header = exactly(client, 4)
    return header[3], exactly(client, int.from_bytes(header[:3], "little"))


def deliver(target: MysqlTarget | PostgresTarget) -> None:
    target.open()
    try:
        assert target.deliver([put("k", bucket="b")], 1) == [DELIVERED]
    finally:
        target.close()


@pytest.fixture(params=["", "file://"])
def rogue(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RogueMySQL]:
    """Asks for a file of this host, by its path and by a URL."""
    (tmp_path / "own").write_text("the service's own secret")
    server = RogueMySQL(f"{request.param}{tmp_path}/own")
    yield server
    server.close()


def test_a_mysql_server_gets_no_file_of_the_host_that_reads_it(spark: SparkSession, rogue: RogueMySQL) -> None:
    # Not by load(): this is the second line of defence.
    settings = MysqlSettings(username="u", host=services.LOOPBACK, port=rogue.port, database=HOSTILE, table="t")
    with pytest.raises(Py4JJavaError):
        rows(spark, settings, "b", tasks=1)
    assert rogue.statements, "the driver got as far as a statement"
    assert rogue.received == b""
    assert all(HOSTILE.encode() in login for login in rogue.logins), "the whole text is the database's name"


def test_a_mysql_database_of_any_name_is_read(spark: SparkSession, mysql_server: services.MySQL) -> None:
    name = f"{ODD}{uuid4().hex[:8]}"
    mysql_server.create_database(name)
    settings = MysqlSettings(
        username=services.USER, password=services.PASSWORD, host=services.LOOPBACK, port=mysql_server.port,
        database=name, table="rows",
    )  # fmt: skip
    deliver(MysqlTarget(settings))
    assert rows(spark, settings, "b", tasks=1).count()


def test_a_postgresql_database_of_any_name_is_read(spark: SparkSession, postgres_server: services.Postgres) -> None:
    name = f"{ODD}&socketFactory=java.lang.String{uuid4().hex[:8]}"
    postgres_server.create_database(name)
    settings = PostgresSettings(connection_string=postgres_server.dsn(f"'{name}'"), table="rows")
    deliver(PostgresTarget(settings))
    assert rows(spark, settings, "b", tasks=1).count()


@pytest.mark.parametrize(
    "host", ["h/d?socketFactory=java.lang.String&x", "::1%/d?loggerFile=x", "[::1]:1/d?x=y", "a,b"]
)
def test_the_host_of_a_jdbc_url_is_nothing_but_a_host(host: str) -> None:
    for url in (mysql_url, postgresql_url):
        with pytest.raises(BadValue, match="host"):
            url(host, 1, "d")


def test_a_postgresql_host_that_libpq_does_not_look_up_is_checked(postgres_server: services.Postgres) -> None:
    # libpq takes any text for the host if hostaddr says where it is.
    host = "h/d?socketFactory=java.lang.String&x"
    connection_string = f"{postgres_server.dsn()} host='{host}' hostaddr={services.LOOPBACK}"
    postgres_server.create_database(name := f"test_{uuid4().hex[:8]}")
    settings = PostgresSettings(connection_string=f"{connection_string} dbname={name}", table="rows")
    deliver(PostgresTarget(settings))
    with pytest.raises(CannotRead, match="PostgreSQL: the address has no valid host"):
        rows(None, settings, "b", tasks=1)  # type: ignore[arg-type]  # it does not get as far as Spark


def test_a_jdbc_url_has_brackets_around_an_ipv6_address() -> None:
    assert postgresql_url("::1", 5432, "a b") == "jdbc:postgresql://[::1]:5432/a%20b"
    assert mysql_url("db.example", 3306, "a/b") == "jdbc:mysql://db.example:3306/a%2Fb"


def test_no_password_of_the_host_is_sent_to_a_targets_server(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "of-the-host")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".pgpass").write_text("*:*:*:*:of-the-host\n")
    (tmp_path / ".pgpass").chmod(0o600)
    server = Asking()
    try:
        place = f"host=db.internal hostaddr={services.LOOPBACK} port={server.port} user=me dbname=d sslmode=disable"
        with pytest.raises(CannotRead, match="no password supplied"):
            rows(spark, PostgresSettings(connection_string=place, table="t"), "b", tasks=1)
        assert (len(server.startups), server.sent) == (1, [])
    finally:
        server.close()


@pytest.mark.parametrize(
    "tls", ["sslmode=require", "sslmode=verify-full sslrootcert={ca} sslcert={client_cert} sslkey={client_key}"]
)
def test_tls_is_by_jdbc_what_the_settings_say(
    spark: SparkSession, postgres_server: services.Postgres, certificates: services.Certificates, tls: str
) -> None:
    deliver(PostgresTarget(PostgresSettings(connection_string=postgres_server.dsn(), table="by_tls")))
    with postgres_server.connection() as connection, connection.cursor() as cursor:
        cursor.execute("GRANT SELECT ON by_tls TO PUBLIC")
    place = f"host={services.LOOPBACK} port={postgres_server.port} user=client dbname=postgres"  # a certificate logs in
    dsn = f"{place} {tls.format(**vars(certificates))}" if "sslcert" in tls else f"{postgres_server.dsn()} {tls}"
    assert rows(spark, PostgresSettings(connection_string=dsn, table="by_tls"), "b", tasks=1).count() == 1
