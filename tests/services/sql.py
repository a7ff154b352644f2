"""PostgreSQL, MySQL and MariaDB, the genuine ones, with TLS by the session's certificate authority."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import psycopg2
import pymysql

from tests import provision
from tests.services.certificates import certificates
from tests.services.server_process import LOOPBACK, PASSWORD, USER, Server, accepting


def _verifier() -> str:
    """The password as PostgreSQL stores it, of the fewest iterations that MinIO's driver takes.

    A login of the usual 4096 takes the client 5 ms of processor time, more than all else.
    """
    salt, iterations = b"salt of a test", 1000
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), salt, iterations)
    client, server = (hmac.digest(salted, name, "sha256") for name in (b"Client Key", b"Server Key"))
    salt64, client64, server64 = (
        base64.b64encode(each).decode() for each in (salt, hashlib.sha256(client).digest(), server)
    )
    return f"SCRAM-SHA-256${iterations}:{salt64}${client64}:{server64}"


@dataclass(eq=False)
class Postgres(Server):
    """PostgreSQL with one superuser, by password over TCP with or without TLS.

    The role `client` is let in by the session's client certificate alone. A SIGKILL loses nothing that was committed;
    only `durable` also waits for the disk, which is what a benchmark has to measure. With `primary` it is a standby of
    that running server, until it is promoted.
    """

    name: ClassVar[str] = "postgres"
    newest: ClassVar[Path | None] = provision.NEWEST
    stop_signal: ClassVar[signal.Signals] = signal.SIGINT
    durable: bool = False
    primary: Postgres | None = None

    def prepare(self) -> None:
        root = self.tree or Path("/")
        initdb = max(root.glob("usr/lib/postgresql/*/bin/initdb"))
        self.binaries = "/" / initdb.parent.relative_to(root)
        user, certs = self.user(), certificates()
        copies = {"server.crt": certs.cert, "server.key": certs.key, "ca.crt": certs.ca}
        for name, source in copies.items():
            shutil.copy(source, self.folder / name)
        (self.folder / "server.key").chmod(0o600)
        stored = _verifier()
        (self.folder / "password").write_text(stored)
        if user:
            for path in (self.folder, *self.folder.iterdir()):
                shutil.chown(path, user, user)
        if self.primary is not None:
            options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", f"--pgdata={self.folder}/data"]
            dsn = self.primary.dsn().partition(" dbname")[0]
            self.set_up([self.binaries / "pg_basebackup", f"--dbname={dsn}", *options])
            return
        options = [f"--username={USER}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        data, secret = self.folder / "data", self.folder / "password"
        make: list[str | Path] = [self.binaries / "initdb", f"--pgdata={data}", f"--pwfile={secret}", *options]
        _made_once(f"postgres-data-{_digest(initdb, options, stored)}", data, lambda: self.set_up(make))
        if user:
            for path in (data, *data.rglob("*")):
                shutil.chown(path, user, user)
        access = data / "pg_hba.conf"
        access.write_text(f"hostssl all client {LOOPBACK}/32 cert\n{access.read_text()}")

    def user(self) -> str | None:
        return "postgres" if os.geteuid() == 0 else None

    def argv(self) -> Sequence[str | Path]:
        disk = "on" if self.durable else "off"
        settings = {
            "fsync": disk,
            "synchronous_commit": "on",
            "shared_buffers": "32MB",
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            "ssl": "on",
            "ssl_cert_file": f"{self.folder}/server.crt",
            "ssl_key_file": f"{self.folder}/server.key",
            "ssl_ca_file": f"{self.folder}/ca.crt",
        }
        argv: list[str | Path] = [self.binaries / "postgres", "-D", self.folder / "data", "-h", LOOPBACK]
        argv += ["-p", str(self.port), "-k", self.folder]
        return argv + [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]

    def ping(self) -> None:
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM pg_roles WHERE rolname = 'client'")
            if cursor.fetchone() == (0,):
                cursor.execute("CREATE ROLE client LOGIN SUPERUSER")

    @contextmanager
    def connection(self, dbname: str = "postgres") -> Iterator[psycopg2.extensions.connection]:
        """A psycopg2 connection in autocommit mode, closed at the end; without TLS, which takes both sides 10 ms."""
        connection = psycopg2.connect(self.dsn(dbname), connect_timeout=5, sslmode="disable")
        connection.autocommit = True
        try:
            yield connection
        finally:
            connection.close()

    def url(self, dbname: str = "postgres") -> str:
        """The SQLAlchemy URL of a database."""
        return f"postgresql+psycopg2://{USER}:{PASSWORD}@{LOOPBACK}:{self.port}/{dbname}"

    def dsn(self, dbname: str = "postgres") -> str:
        """The libpq connection string of a database, without TLS parameters."""
        return f"host={LOOPBACK} port={self.port} user={USER} password={PASSWORD} dbname={dbname}"

    def create_database(self, name: str, *, encoding: str = "UTF8") -> str:
        """Create an empty database and return its SQLAlchemy URL."""
        locale = "" if encoding == "UTF8" else f" TEMPLATE template0 LOCALE 'C' ENCODING '{encoding}'"
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute(f'CREATE DATABASE "{name}"{locale}')
        return self.url(name)

    def caught_up(self) -> bool:
        """Whether this standby has everything that its primary has written."""
        assert self.primary is not None
        with self.primary.connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_current_wal_lsn()")
            [written] = cursor.fetchone()  # type: ignore[misc]  # one row
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (written,))
            return cursor.fetchone() == (True,)

    def promote(self) -> None:
        """Make a standby a primary; returns when it accepts writes."""
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT pg_promote(true, 60)")
            assert cursor.fetchone() == (True,)

    def drop_database(self, name: str) -> None:
        """Drop a database, ending its connections."""
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@dataclass(eq=False)
class MySQL(Server):
    """Oracle's MySQL 8.0.12, or Debian's 9: caching_sha2_password, utf8mb4, TLS 1.2.

    The user `client` needs the session's client certificate, and no password. A SIGKILL loses nothing that was
    committed; only `durable` also waits for the disk, which is what a benchmark has to measure.
    """

    name: ClassVar[str] = "mysql"
    newest: ClassVar[Path | None] = provision.NEWEST_MYSQL
    durable: bool = False

    def prepare(self) -> None:
        shutil.copytree(self.tree / "data" if self.tree else provision.MYSQL_DATA, self.folder / "data")

    def program(self) -> list[str | Path]:
        """The server with the options that say where its own files are."""
        if self.tree:
            return ["/usr/sbin/mysqld", "--no-defaults", "--secure-file-priv=NULL"]
        basedir = provision.MYSQL
        return [basedir / "bin/mysqld", "--no-defaults", f"--basedir={basedir}", f"--lc-messages-dir={basedir}/share"]

    def argv(self) -> Sequence[str | Path]:
        return [
            *self.program(),
            "--skip-mysqlx",
            "--skip-log-bin",
            f"--innodb-flush-method={'fsync' if self.durable else 'nosync'}",
            *self.common(),
        ]

    def common(self) -> list[str]:
        """The options that MySQL and MariaDB share."""
        certs = certificates()
        return [
            f"--datadir={self.folder}/data",
            f"--tmpdir={self.folder}",  # one that starts removes all temporary tables there, also of those that run
            f"--socket={self.folder}/s.sock",
            f"--pid-file={self.folder}/pid",
            f"--port={self.port}",
            f"--bind-address={LOOPBACK}",
            "--skip-name-resolve",
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=32M",
            "--character-set-server=utf8mb4",
            f"--ssl-ca={certs.ca}",
            f"--ssl-cert={certs.cert}",
            f"--ssl-key={certs.key}",
            *provision.as_root(),
        ]

    def ping(self) -> None:
        accepting(self.folder / "s.sock")
        accepting(self.port)
        with self._socket() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT COUNT(*) FROM mysql.user WHERE user = %s", (USER,))
            if cursor.fetchone() == (0,):
                cursor.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", (USER, PASSWORD))
                cursor.execute("GRANT ALL ON *.* TO %s@'%%' WITH GRANT OPTION", (USER,))
                cursor.execute("CREATE USER 'client'@'%' REQUIRE X509")
                cursor.execute("GRANT ALL ON *.* TO 'client'@'%'")
        with self.connection() as connection:
            connection.ping(reconnect=False)

    @contextmanager
    def _socket(self) -> Iterator[pymysql.connections.Connection[pymysql.cursors.Cursor]]:
        """As root, who has no password on the server's socket."""
        connection = pymysql.connect(
            unix_socket=f"{self.folder}/s.sock", user="root", connect_timeout=5, autocommit=True
        )
        with connection:
            yield connection

    @contextmanager
    def connection(self, dbname: str | None = None) -> Iterator[pymysql.connections.Connection[pymysql.cursors.Cursor]]:
        """A PyMySQL connection in autocommit mode, closed at the end."""
        connection = pymysql.connect(
            host=LOOPBACK,
            port=self.port,
            user=USER,
            password=PASSWORD,
            database=dbname,
            charset="utf8mb4",
            connect_timeout=5,
            autocommit=True,
            ssl_disabled=True,  # else PyMySQL reads the system's authorities each time, which takes 40 ms
        )
        with connection:
            yield connection

    def url(self, dbname: str = "") -> str:
        """The SQLAlchemy URL of a database."""
        return f"mysql+pymysql://{USER}:{PASSWORD}@{LOOPBACK}:{self.port}/{dbname}?charset=utf8mb4"

    def create_database(self, name: str) -> str:
        """Create an empty database and return its SQLAlchemy URL."""
        with self.connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return self.url(name)

    def end_connections(self, cursor: pymysql.cursors.Cursor, name: str) -> None:
        """End every connection to a database but the cursor's own."""
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s AND id <> connection_id()", (name,))
        for (number,) in cursor.fetchall():
            with suppress(pymysql.MySQLError):  # it may be gone by now
                cursor.execute(f"KILL {int(number)}")

    def drop_database(self, name: str) -> None:
        """Drop a database, ending its connections: one left in a transaction would hold the drop up for a year."""
        with self.connection() as connection, connection.cursor() as cursor:
            self.end_connections(cursor, name)
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")


@dataclass(eq=False)
class OldMySQL(MySQL):
    """Oracle's MySQL 5.7.19: the oldest line with JSON, and no TLS that a client of today would use."""

    name: ClassVar[str] = "old_mysql"
    newest: ClassVar[Path | None] = None

    def prepare(self) -> None:
        shutil.copytree(provision.OLD_MYSQL_DATA, self.folder / "data")

    def argv(self) -> Sequence[str | Path]:
        basedir = provision.OLD_MYSQL
        options = [f"--basedir={basedir}", f"--lc-messages-dir={basedir}/share", "--innodb-flush-method=nosync"]
        return [basedir / "bin/mysqld", "--no-defaults", *options, "--skip-ssl", *self.common()]


@dataclass(eq=False)
class MariaDB(MySQL):
    """MariaDB, a second server of the same protocol with a mind of its own."""

    name: ClassVar[str] = "mariadb"
    newest: ClassVar[Path | None] = provision.NEWEST

    def prepare(self) -> None:
        options = ["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db", *provision.as_root()]
        data, server = self.folder / "data", (self.tree or Path("/")) / "usr/sbin/mariadbd"
        make: list[str | Path] = ["mariadb-install-db", *options, f"--datadir={data}"]
        _made_once(f"mariadb-data-{_digest(server, options)}", data, lambda: self.set_up(make))

    def argv(self) -> Sequence[str | Path]:
        return ["/usr/sbin/mariadbd", "--no-defaults", *self.common()]


def _digest(program: Path, *rest: object) -> str:
    """What tells apart what a program makes when it is given other words, or is another one."""
    return hashlib.blake2b(repr((program.stat().st_mtime_ns, *rest)).encode(), digest_size=6).hexdigest()


def _made_once(name: str, data: Path, make: Callable[[], None]) -> None:
    """Fill the folder `data`, with what `make` has made before: two data folders differ in a number at most."""
    kept = provision.CACHE / name
    if kept.exists():
        shutil.copytree(kept, data)
        return
    make()
    provision.CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=provision.CACHE) as folder, suppress(OSError):  # another was faster
        shutil.copytree(data, Path(folder) / "data").rename(kept)


def postgres(*, durable: bool = False) -> Postgres:
    """A running PostgreSQL of its own."""
    return Postgres(durable).start()


def mysql(*, durable: bool = False) -> MySQL:
    """A running MySQL 8 of its own."""
    return MySQL(durable).start()


def mariadb() -> MariaDB:
    """A running MariaDB of its own."""
    return MariaDB().start()
