"""Open MySQL or MariaDB as the outbox: what the session is set to, and how long its connections may be idle.

MySQL has no time limit for a transaction whose client says nothing more, only one for an idle connection. So the
server ends each of ours that is idle for `idle_transaction_seconds`, and the pool gives none out that was idle for half
of them.

Connections are opened without reading the system's certificate authorities for each of them. Unless the URL has TLS
options, the driver uses TLS if the server supports it, and does not verify the certificate. It still reads all
authorities of the system for each connection, which takes 25 ms of processor time.
"""

import ssl
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import sqlalchemy as sa
from pymysql.connections import Connection as DriverConnection
from sqlalchemy import event as sa_event
from sqlalchemy.pool import ConnectionPoolEntry

from app.outbox.policies import DATABASE


class Connection(DriverConnection):
    """The driver's connection; those without TLS options share one TLS context."""

    server_version: str  # set by the driver
    _read_timeout: float | None
    _write_timeout: float | None

    @property
    def patience(self) -> float | None:
        """For how many seconds it waits for the server; None: for any time."""
        return self._read_timeout

    @patience.setter
    def patience(self, seconds: float | None) -> None:
        self._read_timeout = self._write_timeout = seconds

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB."""
        return "mariadb" in self.server_version.lower()

    def _create_ssl_ctx(self, sslp: Mapping[str, Any] | ssl.SSLContext) -> ssl.SSLContext:
        if not sslp:
            return _without_verification()
        context: ssl.SSLContext = super()._create_ssl_ctx(sslp)  # type: ignore[misc]  # of the driver, without a type
        return context


@cache
def _without_verification() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


_SESSION = {
    # Strict, because else the server cuts values that are too long and reports success. No other mode: ORACLE,
    # ANSI_QUOTES, NO_BACKSLASH_ESCAPES, PIPES_AS_CONCAT, EMPTY_STRING_IS_NULL and PAD_CHAR_TO_FULL_LENGTH each change
    # what the same statement means.
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "time_zone": "'+00:00'",
    "wait_timeout": DATABASE.idle_transaction_seconds,
    # The same for a client that is gone in the middle of a statement or of an answer.
    "net_read_timeout": DATABASE.idle_transaction_seconds,
    "net_write_timeout": DATABASE.idle_transaction_seconds,
    "completion_type": "'NO_CHAIN'",
    "foreign_key_checks": 1,
    "unique_checks": 1,
    "sql_auto_is_null": 0,
    "sql_safe_updates": 0,
    "sql_big_selects": 1,
    "sql_select_limit": 2**64 - 1,
}


def open_engine(url: sa.URL, pool_size: int, patience: float | None, isolation: str) -> sa.Engine:
    """Return an engine whose statements take `patience` seconds at most."""
    # MySQL's greeting says that it commits by itself also where it does not, so the driver would not set it.
    settings = _SESSION | {
        "autocommit": int(isolation == "AUTOCOMMIT"),
        "innodb_lock_wait_timeout": DATABASE.lock_seconds_within(patience),
        # The same for a table, for which a migration waits while a dump reads it, and all others behind the migration.
        "lock_wait_timeout": DATABASE.lock_seconds_within(patience),
    }
    engine = sa.create_engine(
        url.update_query_dict({"charset": "utf8mb4"}),
        pool_size=pool_size,
        max_overflow=DATABASE.max_extra_connections,
        pool_use_lifo=True,  # so that those which are not needed are idle, and end
        hide_parameters=True,
        isolation_level=isolation,
        connect_args={"connect_timeout": DATABASE.connect_seconds},
    )

    @sa_event.listens_for(engine, "do_connect")
    def _connect(_dialect: sa.Dialect, _entry: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Connection:
        # Before SQLAlchemy asks for the sql_mode, once: it quotes names by what it was told then. The driver limits a
        # login by the time of statements.
        login: dict[str, Any] = {
            "read_timeout": DATABASE.connect_seconds,
            "write_timeout": DATABASE.connect_seconds,
        }
        connection = Connection(*arguments, **options, **login)
        limit = "max_statement_time" if connection.is_mariadb else "max_execution_time"
        with connection.cursor() as cursor:
            values = ", ".join(f"{name} = {value}" for name, value in {**settings, limit: 0}.items())
            cursor.execute(f"SET SESSION {values}")
            # Also where each statement commits by itself: the server's default would lock gaps.
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        connection.patience = patience
        return connection

    @sa_event.listens_for(engine, "checkin")
    def _note(_connection: Connection | None, entry: ConnectionPoolEntry) -> None:
        entry.info["idle_since"] = time.monotonic()

    @sa_event.listens_for(engine, "checkout")
    def _check(_connection: Connection, entry: ConnectionPoolEntry, _face: Any) -> None:
        since = entry.info.get("idle_since")  # None for a new one
        if since is not None and time.monotonic() - since > DATABASE.idle_transaction_seconds / 2:
            raise sa.exc.DisconnectionError  # the pool replaces the connection

    return engine
