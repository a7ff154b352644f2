"""Read the rows of sources, and lease each source: one worker at a time pulls from it.

Every write of that worker names the token of its lease. `app.outbox.sources.registry` changes the settings.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from app.config.arn import SourceId
from app.config.declared_types import SOURCE_TYPES
from app.outbox import tables
from app.outbox.column_values import clean_reason
from app.outbox.declared import EnvironmentRow, converted, read_row, read_rows, some_names
from app.outbox.delivery.leases import LeaseLost, at_least, new_token
from app.outbox.engine.database import Database, DatabaseUnavailable
from app.outbox.engine.many_rows import repeated_after_deadlock
from app.outbox.errors import UnknownSource

INVALID_SETTINGS = "its settings in the environment are invalid"  # a reason
QUEUED_MS = 3_600_000  # for which a listing by Spark may be due: its worker does one job after the other
_UNSERVED_MS = 30_000  # after a failed source is due again, before it counts as one that no worker tries


@dataclass(frozen=True, slots=True)
class StoredSource(EnvironmentRow):
    """A row of the table of sources; `values` are its settings as texts, with sealed secrets. Times are ms."""

    row_id: int
    source: SourceId
    values: Mapping[str, str]
    origin: str
    enabled: bool
    paused: bool
    reason: str
    created_at: int
    revision: int
    lease_token: str
    leased_until: int
    failures: int
    resume_at: int
    error: str
    error_at: int
    notice: str
    notice_at: int
    pulled_at: int
    messages: int
    recorded: int
    repeated: int
    rejected: int
    lag: int | None

    @property
    def identity(self) -> SourceId:
        """Type and name."""
        return self.source

    @property
    def lists(self) -> bool:
        """Whether it is a bucket that is listed, as far as this version knows its type."""
        return self.source.type in SOURCE_TYPES and SOURCE_TYPES[self.source.type].lists

    @property
    def by_spark(self) -> bool:
        """Whether it is a bucket that Spark lists at its times."""
        return self.lists and bool(self.values.get("spark"))

    def answer_age(self, now: int) -> int:
        """Return for how long (ms) its queue has not answered; a bucket that Spark lists is asked when it is due."""
        due = self._queued_until if self.by_spark and not self.failures else 0
        return max(0, now - max(self.pulled_at, self.created_at, due))

    @property
    def _queued_until(self) -> int:
        """When Spark has to have begun to list it; one that is new was never due before."""
        return max(self.resume_at, self.created_at) + QUEUED_MS

    @property
    def notice_key(self) -> int:
        """What its rows in the table of notices have in place of a target's row id, which may be equal to its own."""
        return -self.row_id

    def state(self, now: int) -> str:
        """Return `disabled`, `paused`, `failing`, `running`, or `waiting`: no worker pulls it."""
        if not self.enabled:
            return "disabled"
        if self.paused:
            return "paused"
        is_leased = self.leased_until > now
        if self.error and (is_leased or now < max(self.error_at, self.resume_at) + _UNSERVED_MS):
            return "failing"
        rests = self.by_spark and now < self._queued_until
        return "running" if is_leased or rests else "waiting"

    @property
    def paused_itself(self) -> bool:
        """Whether what it was pulled or listed by has paused it, and no operator."""
        return self.enabled and self.paused and bool(self.error)

    def state_reason(self, now: int) -> str:
        """Return why it is in this state; for `running` by which settings of the queue messages are lost unnoticed."""
        match self.state(now):
            case "paused" | "disabled" | "running":
                return self.reason
            case "failing":
                return self.error
            case _:
                before = f"; before that: {self.error}" if self.error else ""
                role = "spark" if self.by_spark else "sources"
                does = "has begun to list it, an hour after its time" if self.by_spark else "pulls it"
                return f"no worker {does}; is a `bucketwire worker --only {role}` running?{before}"

    @property
    def holder(self) -> str:
        """The process that has leased it, as HOST:PID; empty if none has."""
        return self.lease_token.rpartition(":")[0]


def paused_itself(reason: str) -> dict[str, Any]:
    """Return the columns of a source that is paused by what pulls or lists it: with an error."""
    return {"paused": True, "reason": clean_reason(reason), "error": clean_reason(reason)}


def stored_source(row: Any) -> StoredSource:
    """Convert a row with every column of the table of sources."""
    return converted(row, StoredSource, source=SourceId(row.type, row.name))


def read_sources(connection: sa.Connection) -> list[StoredSource]:
    """Return every source, sorted by type and name."""
    return [stored_source(row) for row in read_rows(connection, tables.sources)]


def find_source(connection: sa.Connection, source: SourceId) -> StoredSource:
    """Return one source. Raises `UnknownSource`."""
    row = read_row(connection, tables.sources, source)
    if row is None:
        raise UnknownSource(source, [SourceId(*name) for name in some_names(connection, tables.sources)])
    return stored_source(row)


def any_source(database: Database) -> bool:
    """Return whether there is a source."""
    with database.reading() as connection:
        return connection.execute(sa.select(tables.sources.c.id).limit(1)).first() is not None


def any_by_spark(database: Database) -> bool:
    """Return whether Spark lists the bucket of a source."""
    with database.reading() as connection:
        return any(stored.by_spark and stored.enabled for stored in read_sources(connection))


def read_positions(connection: sa.Connection, source_id: int) -> dict[str, str]:
    """Return the position in each share of a source's queue."""
    p = tables.source_positions.c
    return {
        row.share: row.position
        for row in connection.execute(sa.select(p.share, p.position).where(p.source_id == source_id))
    }


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
