"""Open the outbox database: SQLite, PostgreSQL, or MySQL/MariaDB, each configured so that a commit is durable."""

import math
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as sa_event
from sqlalchemy.pool import ConnectionPoolEntry

from app.events.limits import UNLIMITED
from app.outbox.engine import db_errors
from app.outbox.engine.db_errors import describe_error as describe_error  # noqa: PLC0414 - where others look for it
from app.outbox.engine.db_errors import outbox_state
from app.outbox.policies import DATABASE

# Driver errors which mean that the database cannot be reached or cannot write now; nothing was committed.
# PostgreSQL raises InternalError after it has become a read-only standby.
DatabaseUnavailable = (
    sa.exc.OperationalError,
    sa.exc.InterfaceError,
    sa.exc.InternalError,
    sa.exc.TimeoutError,
)

# Errors raised when a value cannot be stored, including `Unstorable`.
VALUE_ERRORS = db_errors.VALUE_ERRORS

_BESIDE_EVENT = 1 << 14  # bytes of a MySQL packet besides the event: the statement and the ids of its targets

_LOCK_NOT_AVAILABLE = "55P03"
_WORKED_AT = "worked_at"  # of a connection in its pool: when it was opened, or asked, last, by time.monotonic()
# No setting of PostgreSQL limits how long a COPY waits for its client, and none but another session can end it.
_END_ABANDONED_COPIES = f"""
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE usename = current_user AND datname = current_database() AND application_name = 'bucketwire'
AND state = 'active' AND wait_event = 'ClientRead'
AND query_start < clock_timestamp() - interval '{DATABASE.idle_transaction_seconds} s'
"""  # noqa: S608 - a number

# Codes for which MySQL's driver raises OperationalError although the server refused a value: row or packet too large,
# or a value or string that the column cannot hold.
_VALUE_ERRORS_OF_MYSQL = {1118, 1153, 1292, 1301, 1366, 1406, 3988}


def now_ms() -> int:
    """Return the time in milliseconds since 1970 by this host's clock, the unit of every table of the outbox."""
    return time.time_ns() // 1_000_000


def refuses_value(error: BaseException) -> bool:
    """Return whether a statement failed because of one of its values, so that repeating it fails again."""
    if isinstance(error, (*VALUE_ERRORS, sa.exc.ProgrammingError)):
        return True
    orig = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    return bool(orig and orig.args and orig.args[0] in _VALUE_ERRORS_OF_MYSQL)


class Database:
    """Connections: `writing()` commits or rolls back as a whole, `reading()` and `snapshot()` never lock.

    A statement that takes longer than `patience` seconds raises `DatabaseUnavailable`; with None it may take any time.
    Create the object in the process that uses it; a forked child must call `forked()` first.
    """

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = DATABASE.pool_connections,
        patience: float | None = DATABASE.statement_seconds,
    ) -> None:
        self.url = sa.make_url(url)
        self._patience = patience
        self._own = threading.local()  # `seconds` of this thread, and the connection that it has `opened` and not used
        self.engine = _open(self.url, pool_size, patience)
        self._reader: sa.Engine = self.engine.execution_options(reading=True)
        if self.dialect == "sqlite":
            sa_event.listen(self.engine, "checkout", self._limit_locks)
        else:
            # Autocommit saves BEGIN and COMMIT around a single SELECT. It needs an engine of its own: resetting a
            # connection when it is returned costs a round trip, and if the connection breaks just then, the pool never
            # stops counting it.
            self._reader = _open(self.url, pool_size, patience, autocommit=True)
            for engine in (self.engine, self._reader):
                sa_event.listen(engine, "connect", self._note_connected)
                sa_event.listen(engine, "checkout", self._check)
                sa_event.listen(engine, "checkout", self._limit)
                sa_event.listen(engine, "handle_error", self._failed)
        self._largest_event: int | None = None if self.dialect == "mysql" else UNLIMITED
        if self.dialect == "mysql":
            sa_event.listen(self.engine, "connect", self._learn_limit)

    @property
    def largest_event(self) -> int | None:
        """The most bytes that an event may have (`app.events.limits`); None before the first connection."""
        return self._largest_event

    @property
    def dialect(self) -> str:
        """`sqlite`, `postgresql` or `mysql` (MariaDB included)."""
        name = self.engine.dialect.name
        return "mysql" if name == "mariadb" else name

    @property
    def is_connected(self) -> bool:
        """Whether a connection is open and free: to open one may take longer than a caller can wait."""
        pool: Any = self._reader.pool
        return bool(pool.checkedin())

    @contextmanager
    def answering_within(self, seconds: float) -> Iterator[None]:
        """Have no statement of this thread take longer than `seconds`, nor than `patience`, until the block ends.

        It holds for connections that are taken within the block. SQLite waits no longer than that for a lock.
        """
        self._own.seconds = seconds
        try:
            yield
        finally:
            self._own.seconds = None

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """Return a context manager for a connection in a transaction that commits at the end or rolls back."""
        return self.engine.begin()

    def committing(self) -> AbstractContextManager[sa.Connection]:
        """Return a context manager for a connection that is used for one statement, which commits by itself if it can.

        Without BEGIN and COMMIT, each of which is a round trip of its own, it takes a third of the time.
        """
        return self._reader.connect()

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Return a context manager for a connection that is used for SELECTs only."""
        return self._reader.connect()

    def in_one_trip(self, statement: str, values: Sequence[Any]) -> Any:
        """Execute a statement that commits by itself, on PostgreSQL, and return the value that it selects.

        Raises what SQLAlchemy would, whose own work would take a quarter of the time of a post.
        """
        driver_error = self._reader.dialect.loaded_dbapi.Error
        try:
            pooled = self._reader.raw_connection()
        except driver_error as error:  # without the statement: it was not sent
            outbox_state.not_opened(error)
            raise sa.exc.DBAPIError.instance(None, None, error, driver_error) from error
        driver: Any = pooled.driver_connection
        worked_at = pooled.info.get(_WORKED_AT, math.inf)
        try:
            with db_errors.as_sqlalchemy(driver, statement, pooled.invalidate), driver.cursor() as cursor:
                cursor.execute(statement, values)
                return cursor.fetchone()[0]
        except sa.exc.DBAPIError as error:
            self._recover(error.orig, is_lost=driver.closed and _breaks(driver, error.orig, worked_at))
            raise
        finally:
            pooled.close()

    @contextmanager
    def snapshot(self) -> Iterator[sa.Connection]:
        """Yield a connection whose SELECTs all read the same snapshot."""
        with self.engine.connect() as connection:
            if self.dialect == "sqlite":
                connection.execution_options(snapshot=True)  # of the WAL: no writer waits for it
            else:
                # For this transaction only: resetting the connection when it is returned could fail.
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            yield connection

    def _limit(self, connection: Any, _entry: ConnectionPoolEntry, _face: Any) -> None:
        limits = [seconds for seconds in (self._patience, getattr(self._own, "seconds", None)) if seconds is not None]
        connection.patience = min(limits, default=None)

    def _limit_locks(self, connection: sqlite3.Connection, _entry: ConnectionPoolEntry, _face: Any) -> None:
        seconds = min(DATABASE.statement_seconds, getattr(self._own, "seconds", None) or math.inf)
        connection.execute(f"PRAGMA busy_timeout = {seconds * 1000:.0f}")

    def _note_connected(self, connection: Any, entry: ConnectionPoolEntry) -> None:
        self._own.opened = connection
        entry.info[_WORKED_AT] = time.monotonic()
        outbox_state.connected(connection)

    def _check(self, connection: Any, entry: ConnectionPoolEntry, _face: Any) -> None:
        """Ask a connection whether it works if another one has got no answer since it was known to work."""
        is_new, self._own.opened = connection is getattr(self._own, "opened", None), None
        if outbox_state.doubts(entry.info.get(_WORKED_AT, math.inf)):
            dialect: Any = self.engine.dialect
            connection.patience = DATABASE.ping_seconds
            try:
                dialect.do_ping(connection)
            except dialect.loaded_dbapi.Error as error:
                is_late = db_errors.ran_out_of_time(connection, error)
                outbox_state.lost(TimeoutError(f"no answer within {DATABASE.ping_seconds:g} s") if is_late else error)
                if is_new:
                    # The pool tries two connections at most, and its error after them is no error of the database.
                    raise sa.exc.OperationalError(None, None, error) from error
                raise sa.exc.InvalidatePoolError from error  # the pool replaces it, and all others at once
            entry.info[_WORKED_AT] = time.monotonic()
            outbox_state.answered()

    def _failed(self, context: sa.engine.ExceptionContext) -> None:
        error, is_lost = context.original_exception, context.is_disconnect
        if context.connection is None:
            outbox_state.not_opened(error)
        elif is_lost:
            driver = context.connection.connection.driver_connection
            is_lost = _breaks(driver, error, context.connection.info.get(_WORKED_AT, math.inf))
            context.invalidate_pool_on_disconnect = is_lost
        self._recover(error, is_lost=is_lost)

    def _recover(self, error: BaseException | None, *, is_lost: bool) -> None:
        """After a lost connection close the others, most likely lost too; SQLAlchemy does so for one engine only."""
        if is_lost:
            self.close()
        elif getattr(error, "pgcode", None) == _LOCK_NOT_AVAILABLE:
            self._end_abandoned_copies()

    def _end_abandoned_copies(self) -> None:
        """On PostgreSQL, end what has had a lock for long while it waits in a COPY for a client that says nothing."""
        with suppress(*DatabaseUnavailable), self._reader.connect() as connection:
            connection.exec_driver_sql(_END_ABANDONED_COPIES)

    def _learn_limit(self, connection: Any, _entry: ConnectionPoolEntry) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            packet = int(cursor.fetchone()[0])
        self._largest_event = max(1, packet - _BESIDE_EVENT)
        if packet < 2 * connection.cursorclass.max_stmt_length:
            # The driver puts many rows into one statement, up to its own limit.
            length = {"max_stmt_length": packet // 2}
            connection.cursorclass = type("Cursor", (connection.cursorclass,), length)

    def forked(self) -> None:
        """Discard the connections inherited from the parent process, without closing the parent's sockets."""
        for engine in (self.engine, self._reader):
            engine.dispose(close=False)

    def close(self) -> None:
        """Close every connection that is not in use; the next use opens another one."""
        for engine in (self.engine, self._reader):
            engine.dispose()


def _breaks(driver: Any, error: BaseException | None, worked_at: float) -> bool:
    """Note a connection that is closed; return whether it broke, and was not given up for want of an answer in time."""
    if db_errors.ran_out_of_time(driver, error):
        outbox_state.doubt(driver.patience)
        return False
    outbox_state.lost(error, worked_at)
    return True


class OpenTransaction:
    """An open transaction, used in place of a database."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Return the transaction's own connection, which reads its uncommitted changes."""
        return nullcontext(self._connection)

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """Return the transaction itself; the end of the block does not end it."""
        return nullcontext(self._connection)


def _open(url: sa.URL, pool_size: int, patience: float | None, *, autocommit: bool = False) -> sa.Engine:
    name, isolation = url.get_backend_name(), "AUTOCOMMIT" if autocommit else "READ COMMITTED"
    if name == "sqlite":
        return _open_sqlite(url, pool_size)
    # Only what opens the database in use: the drivers take a while to import.
    if name == "postgresql":
        from app.outbox.engine.postgresql import open_engine  # noqa: PLC0415 - as above
    elif name in ("mysql", "mariadb"):
        from app.outbox.engine.mysql import open_engine  # noqa: PLC0415 - as above
    else:
        raise ValueError(f"BUCKETWIRE_DATABASE_URL: {name!r} is no outbox database; use sqlite, postgresql or mysql")
    # Do not use the server's default: a SELECT after locking the log's head must see every earlier commit.
    return open_engine(url, pool_size, patience, isolation)


def _open_sqlite(url: sa.URL, pool_size: int) -> sa.Engine:
    engine = sa.create_engine(
        url,
        pool_size=pool_size,
        max_overflow=DATABASE.max_extra_connections,
        hide_parameters=True,
    )

    @sa_event.listens_for(engine, "connect")
    def _set_up(connection: Any, _entry: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver's own BEGIN comes too late for a write lock
        _keep_a_write_ahead_log(connection)
        for pragma in ("synchronous=FULL", "foreign_keys=ON", "temp_store=MEMORY"):
            connection.execute(f"PRAGMA {pragma}")

    @sa_event.listens_for(engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        options = connection.get_execution_options()
        if options.get("snapshot"):
            connection.exec_driver_sql("BEGIN")
        elif not options.get("reading"):
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    return engine


def _keep_a_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Of several that open a new file at once SQLite refuses one without waiting, since none would ever go on."""
    end = time.monotonic() + DATABASE.statement_seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def inserted_id(result: sa.CursorResult[Any]) -> int:
    """Return the id that the database gave to the row of an INSERT of one row."""
    key: Any = result.inserted_primary_key
    return int(key[0])
