"""The connection to a MySQL or MariaDB server: how it is made, watched, and what its errors say."""

import contextlib
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import pymysql
from pymysql.connections import Connection

from app.config.targets.mysql import MysqlSettings
from app.config.targets.mysql_dsn import Dsn
from workers.targets import socket_deadline, tls
from workers.targets.base import TargetUnavailable

Row = tuple[Any, ...]

# Texts that are cut or replaced silently would be another object's; and with backslashes that mean nothing, what
# has to be escaped in JSON is a quote, which the driver does at the speed of `str.replace`.
_MODE = "SET SESSION sql_mode = CONCAT(@@sql_mode, ',STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES')"
# Without gaps between rows being locked, workers that write different keys do not wait for each other. A binary log
# of statements needs those locks, and the server refuses to write without them.
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
_ODD = "'\\'\\"
_FACTS = "SHOW VARIABLES WHERE variable_name IN ('version', 'max_allowed_packet', 'log_bin', 'binlog_format')"

# The server looks once a second whose wait for a lock is over, and counts in whole seconds, so that it may say so two
# seconds late; it shall have said it before the driver gives up.
_LATE = 2
_GRACE = 0.5


class _NoPasswordAsItIs:
    """In place of the driver's plugins that hand the password to whoever calls itself the server (as Go's driver)."""

    def __init__(self, connection: object) -> None:
        pass

    def authenticate(self, packet: object) -> NoReturn:  # noqa: ARG002 (the driver's interface)
        raise pymysql.OperationalError(
            0, "the server asks for the password in clear text; allow it by allowCleartextPasswords=true in dsn_string"
        )


@dataclass(frozen=True)
class MysqlConnection:
    """A connection on which every statement is a transaction of its own unless one was begun.

    The driver itself gives up on an answer that does not come; a watch on top, which the few packets of a login need,
    would cost as much as a statement.
    """

    connection: Connection
    wire: socket.socket  # the same connection below the driver and below TLS
    version: str = ""
    longest: int = 0  # bytes that one statement may have

    @property
    def is_mariadb(self) -> bool:
        """Whether it is the other one of the two."""
        return "mariadb" in self.version.lower()

    def run(self, statement: str) -> None:
        """Execute a statement that has no rows."""
        self.connection.query(statement)

    def ask(self, query: str, *values: str) -> list[Row]:
        """The rows of a query."""
        with self.connection.cursor() as cursor:
            cursor.execute(query, values)
            return list(cursor.fetchall())

    def quoted(self, text: str) -> str:
        """The text as a literal."""
        return self.connection.escape(text)

    @property
    def is_stale(self) -> bool:
        """Whether the connection is gone, or the server has said something unasked: it is about to close it."""
        return not self.connection.open or socket_deadline.has_spoken(self.wire.fileno())

    def close(self) -> None:
        """Close the connection; what was not committed is rolled back by the server."""
        with contextlib.suppress(pymysql.MySQLError):
            self.connection.close()
        self.wire.close()


def connect(settings: MysqlSettings) -> MysqlConnection:
    """A connection with its session made ready. Raises `TargetUnavailable`; the password is in no message."""
    dsn = settings.dsn
    connecting = dsn.connect_timeout or settings.timeout
    with _words(dsn), contextlib.ExitStack() as undo:
        connection = _login(settings, dsn)
        opened = _socket(dsn, connecting)
        undo.callback(opened.close)  # which does no harm where the driver, or TLS in its place, has done it
        wire = opened.dup()
        undo.callback(wire.close)
        undo.callback(_quietly, connection)
        with socket_deadline.deadline(wire.fileno(), connecting):
            connection.connect(opened)
        server = MysqlConnection(connection, wire)
        facts: dict[str, str] = dict(server.ask(_FACTS))
        by_statement = facts.get("log_bin") == "ON" and facts.get("binlog_format") == "STATEMENT"
        for statement in _session(settings.timeout, by_statement=by_statement):
            server.run(statement)
        for name, value in dsn.variables:
            server.run(f"SET SESSION {name} = {value if _is_number(value) else server.quoted(value)}")
        server.run(_MODE)
        # What the driver escapes, and how, is what the server said of itself; some proxy could have said it instead.
        if server.ask("SELECT %s", _ODD) != [(_ODD,)]:
            raise pymysql.OperationalError(
                "the server's sql_mode is not what is reported of it: texts would be changed"
            )
        undo.pop_all()
    return MysqlConnection(connection, wire, facts["version"], int(facts["max_allowed_packet"]))


def reason(error: pymysql.MySQLError) -> str:
    """The server's words, or the driver's, with their code in one line; the statement is not among them."""
    code, words = error.args if len(error.args) == 2 else (0, str(error))
    text = " ".join(str(words).split()) or "the connection is closed"
    return f"{text} (error {code})" if code else text


def _login(settings: MysqlSettings, dsn: Dsn) -> Connection:
    context = None
    if dsn.tls in ("true", "skip-verify"):
        skip = dsn.tls == "skip-verify"
        context = tls.context(
            settings.tls_ca, skip_verify=skip, client_cert=settings.client_cert, client_key=settings.client_key
        )
    refused = {} if dsn.cleartext else dict.fromkeys(("mysql_clear_password", "dialog"), _NoPasswordAsItIs)
    return Connection(
        user=dsn.user,
        password=dsn.password.encode(),  # of a text the driver would take Latin-1
        host="localhost" if dsn.socket else dsn.host,
        port=dsn.port,
        database=dsn.database,
        charset="utf8mb4",
        collation=dsn.collation or None,
        ssl=context,
        ssl_disabled=not dsn.tls,  # neither: TLS if the server has it, whoever it is, which is what `preferred` means
        autocommit=True,
        read_timeout=dsn.read_timeout or settings.timeout + _GRACE,
        write_timeout=dsn.write_timeout or settings.timeout,
        program_name="bucketwire",
        auth_plugin_map={**refused},
        defer_connect=True,
    )


def _socket(dsn: Dsn, timeout: float) -> socket.socket:
    if not dsn.socket:
        made = socket.create_connection((dsn.host, dsn.port), timeout)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return made
    made = socket.socket(socket.AF_UNIX)
    try:
        made.settimeout(timeout)
        made.connect(dsn.socket)
    except OSError:
        made.close()
        raise
    return made


def _session(timeout: float, *, by_statement: bool) -> Iterator[str]:
    """What the session is told before the variables of the DSN are set, so that those have the last word."""
    seconds = max(1, math.floor(timeout) - _LATE)
    yield f"SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"
    if not by_statement:
        yield _ISOLATION


def _is_number(value: str) -> bool:
    return value.lstrip("+-").isdigit()


@contextlib.contextmanager
def _words(dsn: Dsn) -> Iterator[None]:
    """What goes wrong on the way in, as `TargetUnavailable`."""
    try:
        yield
    except pymysql.MySQLError as error:
        raise TargetUnavailable(f"MySQL at {dsn.place}: {reason(error)}") from error
    except (OSError, RuntimeError) as error:  # the latter where a way to log in needs a package that is not there
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise TargetUnavailable(f"MySQL at {dsn.place}: {words}") from error


def _quietly(connection: Connection) -> None:
    with contextlib.suppress(pymysql.MySQLError):
        connection.close()
