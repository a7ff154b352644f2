"""Read the configured sources; `app.outbox.sources.registry` changes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from app.config.arn import SourceId
from app.config.declared_types import SOURCE_TYPES
from app.outbox import tables
from app.outbox.column_values import clean_reason
from app.outbox.declared_rows import EnvironmentRow, converted, read_row, read_rows, some_names
from app.outbox.engine.database import Database
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
