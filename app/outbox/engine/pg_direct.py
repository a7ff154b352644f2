"""One PostgreSQL connection beside the pools, for a statement that is executed for nearly every request."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.outbox.engine import db_errors, pg_timeouts

_LOCK_TIMEOUT = "SET lock_timeout = '1s'"  # then the caller waits for the lock by a pooled connection
_LOCKED = "55P03"
# A pooler that gives each transaction another server connection: the statement is not known there, or already.
_NOT_KEPT = ("26000", "42P05")


class Prepared(NamedTuple):
    """A statement that prepares another one, and the statement that executes it with the same values."""

    prepare: str
    execute: str


class ConnectionBusy(Exception):
    """The connection is in use, or has to be opened, which may take longer than the caller can wait."""


class DirectConnection:
    """A connection that commits each statement by itself. Safe to use from any thread: one after the other.

    A pooled connection would cost a tenth of the time of such a statement, and could not keep what is prepared. It
    opens with the first statement, and again after it was lost; `lost` is called then.
    """

    def __init__(self, engine: sa.Engine, lost: Callable[[], None]) -> None:
        self._engine = engine  # its connections are in autocommit mode
        self._lost = lost
        self._using = threading.Lock()
        self._driver: Any = None
        self._opened = 0.0  # by `time.monotonic()`
        self._prepared: set[str] = set()
        self._keeps_prepared = True

    def execute(
        self,
        statement: str,
        values: Sequence[Any],
        *,
        prepared: Prepared | None = None,
        patience: float | None = None,
    ) -> int:
        """Execute a statement, in its prepared form if there is one, and return the number of its rows.

        It is 0, and nothing was executed, if a lock was not free within a second. With `patience`, the server gets no
        longer than that many seconds, and up to one more; raises `ConnectionBusy` and has sent nothing if the
        connection is not open and free. Otherwise raises what SQLAlchemy would.
        """
        if not self._using.acquire(blocking=patience is None):
            raise ConnectionBusy
        try:
            driver = self._connected(may_open=patience is None)
            driver.hurry = patience
            try:
                return self._execute(driver, statement, values, prepared, may_prepare=patience is None)
            except sa.exc.DBAPIError as error:
                if _code(error) != _LOCKED:
                    raise
                return 0
            finally:
                driver.hurry = None
        finally:
            self._using.release()

    def close(self) -> None:
        """Close the connection if no statement is under way; the next statement opens another."""
        if self._using.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._using.release()

    def forked(self) -> None:
        """Forget the connection of the parent process, which is not closed: the driver leaves it to that process."""
        self._using, self._driver = threading.Lock(), None

    @property
    def backend(self) -> int:
        """The process id of the server's side; 0 while the connection is not open."""
        return 0 if self._driver is None else int(self._driver.info.backend_pid)

    def _execute(
        self, driver: Any, statement: str, values: Sequence[Any], prepared: Prepared | None, *, may_prepare: bool
    ) -> int:
        if prepared is not None and self._keeps_prepared:
            try:
                if may_prepare and prepared.prepare not in self._prepared:
                    self._send(driver, prepared.prepare)
                    self._prepared.add(prepared.prepare)
                if prepared.prepare in self._prepared:
                    return self._send(driver, prepared.execute, values)
            except sa.exc.DBAPIError as error:
                if _code(error) not in _NOT_KEPT:
                    raise
                self._keeps_prepared = False
        return self._send(driver, statement, values)

    def _send(self, driver: Any, statement: str, values: Sequence[Any] | None = None) -> int:
        with db_errors.as_sqlalchemy(driver, statement, self._drop), driver.cursor() as cursor:
            cursor.execute(statement, values)
            return int(cursor.rowcount)

    def _connected(self, *, may_open: bool) -> Any:
        driver = self._driver
        if driver is not None and (driver.closed or pg_timeouts.opened_before_last_timeout(self._opened)):
            self._close()
        if self._driver is None:
            if not may_open:
                raise ConnectionBusy
            self._open()
        return self._driver

    def _open(self) -> None:
        dbapi = self._engine.dialect.loaded_dbapi
        opening = time.monotonic()
        try:
            pooled = self._engine.raw_connection()
        except dbapi.Error as error:  # without the statement: it was not sent
            raise sa.exc.DBAPIError.instance(None, None, error, dbapi.Error) from error
        driver = pooled.driver_connection
        pooled.detach()
        self._driver, self._opened, self._prepared = driver, opening, set()
        try:
            self._send(driver, _LOCK_TIMEOUT)
        except BaseException:
            self._close()  # a statement must not wait for a lock for longer
            raise

    def _drop(self, _error: BaseException) -> None:
        self._close()
        self._lost()

    def _close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()


def _code(error: sa.exc.DBAPIError) -> str | None:
    return getattr(error.orig, "pgcode", None)
