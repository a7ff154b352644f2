"""Read the time for leases, retries and the circuit breaker from the database's clock, the same for every host.

With their own clocks, hosts whose wall clocks differ or are adjusted could consider each other's leases expired, or
valid for ever.
"""

import threading
import time
from dataclasses import dataclass

import sqlalchemy as sa

from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms
from app.outbox.policies import DATABASE

_NOW = {
    "postgresql": sa.text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"),
    # The session's time zone is UTC, so the conversion has no daylight saving gaps or overlaps.
    "mysql": sa.text("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"),
}
_NOW_MS = {
    "postgresql": sa.literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)", sa.BigInteger),
    "mysql": sa.literal_column("CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000 AS SIGNED)", sa.BigInteger),
}
# On Linux, only this clock includes the time during which the machine was suspended.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed() -> float:
    """Return seconds of a clock that cannot be set; it includes suspended time if the operating system counts it."""
    return time.clock_gettime(_ELAPSED)


def database_now(connection: sa.Connection) -> int:
    """Return milliseconds since 1970 by the database server's clock; for SQLite, by this host's clock."""
    return _read(connection) // 1000


def now_column(connection: sa.Connection) -> sa.ColumnElement[int]:
    """Return what `database_now` reads as a value of a statement, which saves a round trip."""
    return _NOW_MS.get(_family(connection), sa.literal(now_ms(), sa.BigInteger))


def _family(connection: sa.Connection) -> str:
    return "mysql" if connection.dialect.name == "mariadb" else connection.dialect.name


def _read(connection: sa.Connection) -> int:
    query = _NOW.get(_family(connection))
    return now_ms() * 1000 if query is None else int(connection.execute(query).scalar_one())


@dataclass(frozen=True, slots=True)
class _Reading:
    """The database's time (`shown`, seconds since 1970) when `elapsed()` was `at`; accurate to ± `error` seconds."""

    shown: float
    at: float
    error: float

    def now(self, at: float) -> float:
        return self.shown + (at - self.at)


class DatabaseClock:
    """Milliseconds since 1970 by the database's clock. Safe to call from any thread.

    It queries the database at most once a second. In between, and while the database is unavailable, it extrapolates
    with `elapsed()`. Jumps of this host's wall clock have no effect.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading: _Reading | None = None
        self._next = 0.0  # when to query again, by `elapsed()`
        self._asking = threading.Lock()

    def __call__(self) -> int:
        """Return the current time. Raises `DatabaseUnavailable` only if the database has never answered."""
        if self._database.dialect == "sqlite":
            return now_ms()
        if self._reading is None:
            return self.measure()
        # One thread queries; the others do not wait for a slow database.
        if elapsed() >= self._next and self._asking.acquire(blocking=False):
            try:
                self._reading = self._measured()
            except DatabaseUnavailable:
                self._next = elapsed() + DATABASE.clock_seconds
            finally:
                self._asking.release()
        return int(self._reading.now(elapsed()) * 1000)

    def measure(self) -> int:
        """Query the database now, because `elapsed()` does not include a pause of a virtual machine.

        Raises `DatabaseUnavailable`.
        """
        if self._database.dialect == "sqlite":
            return now_ms()
        with self._asking:
            self._reading = reading = self._measured()
        return int(reading.now(elapsed()) * 1000)

    def _measured(self) -> _Reading:
        with self._database.reading() as connection:
            sent = elapsed()
            shown = _read(connection) / 1e6
            received = elapsed()
        self._next = received + DATABASE.clock_seconds
        error = (received - sent) / 2
        new, old = _Reading(shown, sent + error, error), self._reading
        # Keep an earlier, more accurate reading as long as the two agree: a slow answer is less accurate.
        if old is not None and old.error < error and abs(old.now(new.at) - shown) <= error + old.error:
            return old
        return new
