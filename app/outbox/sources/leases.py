"""Lease sources: one worker at a time pulls from each, and every write of it names the token of its lease."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from app.config.declared_types import SOURCE_TYPES
from app.outbox import tables
from app.outbox.column_values import clean_reason
from app.outbox.delivery.leases import LeaseLost, at_least, new_token
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.sources.stored import StoredSource, paused_itself, read_positions, stored_source

_S = tables.sources.c
_PULLS = (_S.enabled.is_(sa.true()), _S.paused.is_(sa.false()))


@dataclass(slots=True)
class SourceLease:
    """A worker's time-limited right to pull from a source; `positions` advance as it records."""

    stored: StoredSource
    token: str
    positions: dict[str, str] = field(default_factory=dict)


class SourceLeases:
    """Claim, renew and release sources. Times are milliseconds by the database's clock.

    A source that an operator changes, pauses or removes is revoked in the same transaction, so a worker that has it
    notices at its next write, and never overwrites the change.
    """

    def __init__(self, database: Database, lease_ms: int) -> None:
        self._database = database
        self._lease_ms = lease_ms

    def free(self, now: int, *, by_spark: bool = False) -> list[StoredSource]:
        """Return the sources that nobody has leased and that are due to be pulled from, or to be listed by Spark.

        One of a type that only a newer version knows is left to its workers.
        """
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(tables.sources).where(*_PULLS, *_free(now), _S.type.in_(SOURCE_TYPES)))
            return [stored for stored in map(stored_source, rows) if stored.by_spark is by_spark]

    @repeated_after_deadlock
    def claim(self, stored: StoredSource, now: int) -> SourceLease | None:
        """Lease a source; return None if somebody else has, or if it was changed since it was read."""
        token = new_token()
        mine = (_S.id == stored.row_id, _S.revision == stored.revision, *_PULLS, *_free(now))
        with self._database.committing() as connection:
            claim = tables.sources.update().where(*mine)
            claimed = connection.execute(claim.values(lease_token=token, leased_until=now + self._lease_ms)).rowcount
        if not claimed:
            return None
        lease = SourceLease(stored, token)
        try:
            with self._database.reading() as connection:
                lease.positions = read_positions(connection, stored.row_id)
        except BaseException:  # otherwise nobody could claim it until the lease has expired
            with suppress(*DatabaseUnavailable):
                self.release(lease)
            raise
        return lease

    def renew(self, lease: SourceLease, now: int) -> None:
        """Extend the lease. Raises `LeaseLost`."""
        self._set(lease, leased_until=at_least(_S.leased_until, now + self._lease_ms))

    def report(self, lease: SourceLease, now: int, lag: int | None) -> None:
        """Note that the queue has answered, with messages or without. Raises `LeaseLost`, as `check_positions`."""
        with self._database.reading() as connection:
            check_positions(connection, lease)
        self._set(lease, pulled_at=now, lag=lag, failures=0, error="", error_at=0)

    def answered(self, lease: SourceLease, now: int) -> None:
        """Extend the lease, and note that a bucket has answered, or is not due to be listed. Raises `LeaseLost`."""
        self._set(lease, pulled_at=now, leased_until=at_least(_S.leased_until, now + self._lease_ms))

    def wait(self, lease: SourceLease, now: int, reason: str) -> None:
        """Note why nothing is pulled although the queue answers. Raises `LeaseLost`."""
        self._set(lease, error=clean_reason(reason), error_at=now)

    def fail(self, lease: SourceLease, now: int, reason: str, resume_at: int) -> None:
        """Release a source that cannot be pulled from, until it is due again. Raises `LeaseLost`."""
        failed = {"failures": _S.failures + 1, "error": clean_reason(reason), "error_at": now, "resume_at": resume_at}
        self._set(lease, lease_token="", leased_until=0, **failed)

    def pause(self, lease: SourceLease, reason: str) -> None:
        """Release a source and pause it until an operator resumes it. Raises `LeaseLost`."""
        self._set(lease, lease_token="", leased_until=0, **paused_itself(reason))

    def rest(self, lease: SourceLease, until: int) -> None:
        """Give a source back that is not due before a time. Raises `LeaseLost`."""
        self._set(lease, lease_token="", leased_until=0, resume_at=until)

    def release(self, lease: SourceLease) -> None:
        """Give a source back; nothing if the lease is lost."""
        with suppress(LeaseLost):
            self._set(lease, lease_token="", leased_until=0)

    @repeated_after_deadlock
    def begin(self, lease: SourceLease, now: int, moved: Mapping[str, str], notice: str, risk: str = "") -> None:
        """Store the positions at which the queue begins instead of the stored ones, and what was lost before them.

        `risk` says by which settings of the queue messages are lost unnoticed. Raises `LeaseLost`.
        """
        with self._database.writing() as connection:
            lost = {"notice": clean_reason(notice), "notice_at": now} if notice else {}
            fence(connection, lease, reason=clean_reason(risk), **lost)
            store_positions(connection, lease, moved)
        lease.positions |= moved

    @repeated_after_deadlock
    def _set(self, lease: SourceLease, **values: Any) -> None:
        with self._database.committing() as connection:
            fence(connection, lease, **values)


def fence(connection: sa.Connection, lease: SourceLease, **values: Any) -> None:
    """Lock the source until the transaction ends, and set columns. Raises `LeaseLost` if another worker has it."""
    mine = tables.sources.update().where(_S.id == lease.stored.row_id, _S.lease_token == lease.token)
    if not connection.execute(mine.values(**(values or {"lease_token": lease.token}))).rowcount:
        raise LeaseLost(f"source {lease.stored.source}")


def check_positions(connection: sa.Connection, lease: SourceLease) -> None:
    """Raise `LeaseLost` if a share is not where the lease has left it, also one in which nothing happens.

    The outbox may be an older state of itself, whose events are still to be recorded.
    """
    if read_positions(connection, lease.stored.row_id) != lease.positions:
        raise LeaseLost(f"the positions of source {lease.stored.source} are not those that were recorded last")


def store_positions(connection: sa.Connection, lease: SourceLease, positions: Mapping[str, str]) -> None:
    """Move shares to other positions. The source has to be locked. Raises `LeaseLost`, as `check_positions`."""
    if not positions:
        return
    check_positions(connection, lease)
    p, row_id = tables.source_positions.c, lease.stored.row_id
    new = [share for share in positions if share not in lease.positions]
    moved = [share for share in positions if share in lease.positions]
    if new:
        rows = [{"source_id": row_id, "share": share, "position": positions[share]} for share in new]
        connection.execute(tables.source_positions.insert(), rows)
    if moved:
        move = tables.source_positions.update().where(p.source_id == row_id, p.share == sa.bindparam("moved"))
        values = [{"moved": share, "to": positions[share]} for share in moved]
        connection.execute(move.values(position=sa.bindparam("to")), values)


def _free(now: int) -> tuple[sa.ColumnElement[bool], ...]:
    return (_S.leased_until <= now, _S.resume_at <= now)
