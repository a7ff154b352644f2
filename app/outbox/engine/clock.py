"""The time by which leases, retries and the circuit breaker are compared: the database's, the same for every host.

Hosts whose wall clocks differ, or are set while they run, would else take each other's leases for expired or for
held without end.
"""

import threading
import time
from dataclasses import dataclass

import sqlalchemy as sa

from app.outbox.engine.database import Database, DatabaseUnavailable, now_ms

_MEASURE_EVERY = 1.0  # seconds
_NOW = {
    "postgresql": sa.text("SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"),
    # The session's time zone is UTC, so no hour is missing or doubled between the two functions.
    "mysql": sa.text("SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)"),
}
# Linux counts the time that a suspended machine slept on this clock only.
_ELAPSED = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed() -> float:
    """Seconds on a clock that nobody can set; a suspended machine's sleep is counted where the system counts it."""
    return time.clock_gettime(_ELAPSED)


def database_now(connection: sa.Connection) -> int:
    """Milliseconds since 1970 by the database server's clock; by this host's for SQLite, which has no server."""
    return _read(connection) // 1000


def _read(connection: sa.Connection) -> int:
    query = _NOW.get("mysql" if connection.dialect.name == "mariadb" else connection.dialect.name)
    return now_ms() * 1000 if query is None else int(connection.execute(query).scalar_one())


@dataclass(frozen=True, slots=True)
class _Reading:
    """What the database's clock showed (seconds since 1970) when `elapsed()` was `at`, give or take `error`."""

    shown: float
    at: float
    error: float

    def now(self, at: float) -> float:
        return self.shown + (at - self.at)


class DatabaseClock:
    """Milliseconds since 1970 by the database's clock. Any thread may call it.

    The database is asked at most once a second; in between, and while it is away, the answer is extrapolated by
    `elapsed()`. Jumps of this host's wall clock change nothing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._reading: _Reading | None = None
        self._next = 0.0  # when to ask again, by `elapsed()`
        self._asking = threading.Lock()

    def __call__(self) -> int:
        """The time now. Raises `DatabaseUnavailable` only while the database has never answered."""
        if self._database.dialect == "sqlite":
            return now_ms()
        if self._reading is None:
            return self.measure()
        # One thread asks; the others need not wait for a database that is slow to answer.
        if elapsed() >= self._next and self._asking.acquire(blocking=False):
            try:
                self._reading = self._measured()
            except DatabaseUnavailable:
                self._next = elapsed() + _MEASURE_EVERY
            finally:
                self._asking.release()
        return int(self._reading.now(elapsed()) * 1000)

    def measure(self) -> int:
        """Ask the database now: a virtual machine that was paused has not counted the pause.

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
        self._next = received + _MEASURE_EVERY
        error = (received - sent) / 2
        new, old = _Reading(shown, sent + error, error), self._reading
        # A slow answer tells less than a quick one did before, as long as the two agree.
        if old is not None and old.error < error and abs(old.now(new.at) - shown) <= error + old.error:
            return old
        return new
