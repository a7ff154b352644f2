"""The connection to a MySQL or MariaDB server: connecting, session settings, and texts of its errors."""

import contextlib
import math
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn, cast

import pymysql
from pymysql.connections import Connection

from app.config.targets.mysql import Dsn, MysqlSettings
from workers.targets import sockets, tcp, tls
from workers.targets.base import TargetUnavailable
from workers.targets.sockets import MAX_ANSWER_BYTES, AnswerTooLong
from workers.targets.sql_target import IDLE_SECONDS

Row = tuple[Any, ...]

# Strict, because a text that is cut or replaced silently would name another object. Without backslash escapes, the
# quote is the only character of JSON to escape, which the driver does at the speed of `str.replace`. No other mode:
# EMPTY_STRING_IS_NULL and ORACLE, for instance, change what the same statement means.
_MODE = "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION'"
# The greeting says that the server commits by itself also where it does not, so the driver would not set it.
_USUAL = "SET SESSION autocommit = 1, completion_type = 'NO_CHAIN', sql_safe_updates = 0"
# Without gap locks, workers that write different keys do not wait for each other. A statement-based binary log
# needs gap locks; the server then refuses to write without them.
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
_ODD = "'\\'\\"
_LEAST_PACKET_BYTES = 1024  # the least value of max_allowed_packet
_UNREADABLE = "the server's answer cannot be read"
_FACTS = "SHOW VARIABLES WHERE variable_name IN ('version', 'max_allowed_packet', 'log_bin', 'binlog_format')"

# The server checks for expired lock waits once a second, and counts in whole seconds, so it may report one two
# seconds late; it must report it before the driver gives up.
_LATE_SECONDS = 2
_GRACE_SECONDS = 0.5


class _NoPasswordAsItIs:
    """Replaces the driver's plugins that send the password in clear text to any server that asks (as Go's driver)."""

    def __init__(self, connection: object) -> None:
        pass

    def authenticate(self, packet: object) -> NoReturn:  # noqa: ARG002 (the driver's interface)
        raise pymysql.OperationalError(
            0, "the server asks for the password in clear text; allow it by allowCleartextPasswords=true in dsn_string"
        )


@dataclass(frozen=True)
class MysqlConnection:
    """A connection on which every statement is its own transaction unless one was begun."""

    connection: Connection
    wire: socket.socket  # the same connection below the driver and below TLS
    patience: float  # seconds for a statement
    version: str = ""
    max_statement_bytes: int = 0

    @property
    def is_mariadb(self) -> bool:
        """Whether the server is MariaDB."""
        return "mariadb" in self.version.lower()

    def run(self, statement: str) -> int:
        """Execute a statement that returns no rows; return how many it has changed."""
        with self._limited(), self.connection.cursor() as cursor:
            changed = cursor.execute(statement)
            if cursor.description is not None:
                raise pymysql.OperationalError(0, f"the server answered {statement[:20]!r} with rows")
            return changed

    def ask(self, query: str, *values: str) -> list[Row]:
        """Return the rows of a query."""
        with self._limited(), self.connection.cursor() as cursor:
            cursor.execute(query, values)
            return list(cursor.fetchall())

    def quoted(self, text: str) -> str:
        """Return the text as an SQL literal."""
        return self.connection.escape(text)

    @property
    def is_stale(self) -> bool:
        """Whether the connection is closed, or the server sent unrequested data because it is about to close it."""
        return not self.connection.open or sockets.has_spoken(self.wire.fileno())

    @contextlib.contextmanager
    def _limited(self) -> Iterator[None]:
        with sockets.Deadline(self.patience, self.wire.fileno()) as limit:
            try:
                yield
            except pymysql.MySQLError as error:
                if limit.expired:
                    raise pymysql.OperationalError(0, f"no answer within {self.patience:g} s") from error
                raise
            except UnicodeEncodeError:  # of a statement
                raise
            except Exception as error:  # the driver raises any for what is malformed
                raise pymysql.OperationalError(0, _UNREADABLE) from error

    def close(self) -> None:
        """Close the connection; the server rolls back uncommitted changes."""
        with contextlib.suppress(pymysql.MySQLError):
            self.connection.close()
        self.wire.close()


def connect(settings: MysqlSettings) -> MysqlConnection:
    """Connect and set up the session. Raises `TargetUnavailable`; no message contains the password."""
    dsn = settings.dsn
    connecting = dsn.connect_timeout or settings.timeout
    with _described_errors(dsn), contextlib.ExitStack() as undo:
        connection = _login(settings, dsn)
        opened = _socket(dsn, connecting)
        undo.callback(opened.close)  # harmless if the driver, or TLS in its place, has closed it
        wire = opened.dup()
        undo.callback(wire.close)
        undo.callback(_quietly, connection)
        with sockets.Deadline(connecting, wire.fileno()):
            connection.connect(opened)
        patience = dsn.read_timeout or settings.timeout
        server = MysqlConnection(connection, wire, patience)
        facts = _facts(server)
        by_statement = facts.get("log_bin") == "ON" and facts.get("binlog_format") == "STATEMENT"
        is_mariadb = "mariadb" in facts["version"].lower()
        for statement in _session(settings.timeout, by_statement=by_statement, is_mariadb=is_mariadb):
            server.run(statement)
        for name, value in dsn.variables:
            server.run(f"SET SESSION {name} = {value if _is_number(value) else server.quoted(value)}")
        server.run(_MODE)
        # The driver escapes by what the server announced about itself; a proxy could have announced it instead.
        if server.ask("SELECT %s", _ODD) != [(_ODD,)]:
            raise pymysql.OperationalError("a proxy reports another sql_mode than the server's: texts would be changed")
        undo.pop_all()
    return MysqlConnection(connection, wire, patience, facts["version"], int(facts["max_allowed_packet"]))


def _facts(server: MysqlConnection) -> dict[str, str]:
    """Return what the server says of itself."""
    facts = {str(name): str(value) for name, value, *_ in server.ask(_FACTS)}
    most = facts.get("max_allowed_packet", "")
    if not facts.get("version") or not most.isdecimal() or int(most) < _LEAST_PACKET_BYTES:
        said = " and ".join(f"{name} = {facts.get(name)!r}" for name in ("version", "max_allowed_packet"))
        raise pymysql.OperationalError(0, f"the server says {said}, which no MySQL or MariaDB has")
    return facts


def reason(error: pymysql.MySQLError) -> str:
    """Return the server's or the driver's message with its code in one line, without the statement."""
    code, words = error.args if len(error.args) == 2 else (0, str(error))
    text = " ".join(str(words).split()) or "the connection is closed"
    return f"{text} (error {code})" if code else text


class _LimitedConnection(Connection):
    """A connection whose answers have a limit."""

    _left = MAX_ANSWER_BYTES

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if self._has_more():
            self._force_close()  # type: ignore[attr-defined]  # the stubs lack it, and what follows
            raise pymysql.OperationalError(0, "the server has answered what nobody asked")
        super()._execute_command(command, sql)  # type: ignore[misc]  # as above

    def _has_more(self) -> bool:
        """Return whether something has come that would be taken for the answer to the next statement."""
        if self._sock is None or (self._result is not None and self._result.has_next):  # type: ignore[attr-defined]
            return False
        self._sock.settimeout(0)  # type: ignore[attr-defined]  # as above
        try:
            return bool(self._rfile.peek(1))  # type: ignore[attr-defined]  # as above
        except OSError:  # nothing, or the connection is lost, which the statement will say
            return False
        finally:
            self._sock.settimeout(self._current_timeout)  # type: ignore[attr-defined]  # as above

    def _write_bytes(self, data: bytes) -> None:
        self._left = MAX_ANSWER_BYTES
        super()._write_bytes(data)  # type: ignore[misc]  # the stubs lack it, and what follows

    def _read_bytes(self, num_bytes: int) -> bytes:
        self._left -= num_bytes
        if self._left < 0:
            self._force_close()  # type: ignore[attr-defined]  # as above
            raise pymysql.OperationalError(0, str(AnswerTooLong(MAX_ANSWER_BYTES)))
        return bytes(super()._read_bytes(num_bytes))  # type: ignore[misc]  # as above


def _login(settings: MysqlSettings, dsn: Dsn) -> Connection:
    context = None
    if dsn.tls in ("true", "skip-verify"):
        skip = dsn.tls == "skip-verify"
        context = tls.context(
            settings,
            settings.tls_ca,
            skip_verify=skip,
            client_cert=settings.client_cert,
            client_key=settings.client_key,
        )
    refused = {} if dsn.cleartext else dict.fromkeys(("mysql_clear_password", "dialog"), _NoPasswordAsItIs)
    connection = _LimitedConnection(
        user=dsn.user,
        password=dsn.password.encode(),  # the driver would encode a str as Latin-1
        host="localhost" if dsn.socket else dsn.host,
        port=dsn.port,
        database=dsn.database,
        charset="utf8mb4",
        collation=dsn.collation or None,
        ssl=context,
        ssl_disabled=not dsn.tls,  # neither: TLS if the server supports it, without verification, as `preferred` means
        autocommit=True,
        read_timeout=dsn.read_timeout or settings.timeout + _GRACE_SECONDS,
        write_timeout=dsn.write_timeout or settings.timeout,
        program_name="bucketwire",
        auth_plugin_map={**refused},
        defer_connect=True,
    )
    if dsn.tls == "preferred":
        context = cast(Any, connection).ctx  # the stubs do not know it
        context.keylog_filename = None  # Python takes it from SSLKEYLOGFILE
    return connection


def _socket(dsn: Dsn, timeout: float) -> socket.socket:
    if not dsn.socket:
        return tcp.connect(dsn.host, dsn.port, timeout, tcp.OPTIONS)
    opened = socket.socket(socket.AF_UNIX)
    try:
        opened.settimeout(timeout)
        opened.connect(dsn.socket)
    except OSError:
        opened.close()
        raise
    return opened


def _session(timeout: float, *, by_statement: bool, is_mariadb: bool) -> Iterator[str]:
    """Yield the statements that set up the session; the variables of the DSN are set later, and so override them."""
    yield _USUAL
    seconds = max(1, math.floor(timeout) - _LATE_SECONDS)
    yield f"SET SESSION innodb_lock_wait_timeout = {seconds}, lock_wait_timeout = {seconds}"
    # MySQL has a limit for every idle connection only; one that it has ended is replaced before the next delivery.
    idle = "idle_transaction_timeout" if is_mariadb else "wait_timeout"
    yield f"SET SESSION {idle} = {IDLE_SECONDS}, net_read_timeout = {IDLE_SECONDS}"
    if not by_statement:
        yield _ISOLATION


def _is_number(value: str) -> bool:
    return value.lstrip("+-").isdigit()


@contextlib.contextmanager
def _described_errors(dsn: Dsn) -> Iterator[None]:
    """Raise errors of connecting and logging in as `TargetUnavailable`."""
    try:
        yield
    except pymysql.MySQLError as error:
        raise TargetUnavailable(f"MySQL at {dsn.place}: {reason(error)}") from error
    except (OSError, RuntimeError) as error:  # RuntimeError if a login method needs a package that is not installed
        words = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise TargetUnavailable(f"MySQL at {dsn.place}: {words}") from error
    except TargetUnavailable:
        raise
    except Exception as error:  # as in `_limited`
        raise TargetUnavailable(f"MySQL at {dsn.place}: {_UNREADABLE}") from error


def _quietly(connection: Connection) -> None:
    with contextlib.suppress(pymysql.MySQLError):
        connection.close()
