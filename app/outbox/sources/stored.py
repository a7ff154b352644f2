"""Read the configured sources; `app.outbox.sources.registry` changes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from app.config.sources.source_id import SourceId
from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.sources.errors import UnknownSource


@dataclass(frozen=True, slots=True)
class StoredSource:
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

    def state(self, now: int) -> str:
        """Return `disabled`, `paused`, `failing`, `running`, or `waiting`: no worker pulls it."""
        if not self.enabled:
            return "disabled"
        if self.paused:
            return "paused"
        if self.error:
            return "failing"
        return "running" if self.leased_until > now else "waiting"

    def state_reason(self, now: int) -> str:
        """Return why it is in this state; empty for `running`."""
        match self.state(now):
            case "paused":
                return self.reason
            case "failing":
                return self.error
            case "waiting":
                return "no worker pulls it; is a `bucketwire worker --only sources` running?"
            case _:
                return ""

    @property
    def holder(self) -> str:
        """The process that has leased it, as HOST:PID; empty if none has."""
        return self.lease_token.rpartition(":")[0]


def stored_source(row: Any) -> StoredSource:
    """Convert a row with every column of the table of sources."""
    return StoredSource(
        row_id=row.id,
        source=SourceId(row.type, row.name),
        values=orjson.loads(row.settings),
        origin=row.origin,
        enabled=bool(row.enabled),
        paused=bool(row.paused),
        reason=row.reason,
        created_at=row.created_at,
        revision=row.revision,
        lease_token=row.lease_token,
        leased_until=row.leased_until,
        failures=row.failures,
        resume_at=row.resume_at,
        error=row.error,
        error_at=row.error_at,
        notice=row.notice,
        notice_at=row.notice_at,
        pulled_at=row.pulled_at,
        messages=row.messages,
        recorded=row.recorded,
        repeated=row.repeated,
        rejected=row.rejected,
        lag=row.lag,
    )


def read_sources(connection: sa.Connection) -> list[StoredSource]:
    """Return every source, sorted by type and name."""
    s = tables.sources.c
    return [stored_source(row) for row in connection.execute(sa.select(tables.sources).order_by(s.type, s.name))]


def find_source(connection: sa.Connection, source: SourceId) -> StoredSource:
    """Return one source. Raises `UnknownSource`."""
    s = tables.sources.c
    row = connection.execute(sa.select(tables.sources).where(s.type == source.type, s.name == source.name)).first()
    if row is None:
        raise UnknownSource(source)
    return stored_source(row)


def any_source(database: Database) -> bool:
    """Return whether there is a source."""
    with database.reading() as connection:
        return connection.execute(sa.select(tables.sources.c.id).limit(1)).first() is not None


def read_positions(connection: sa.Connection, source_id: int) -> dict[str, str]:
    """Return the position in each share of a source's queue."""
    p = tables.source_positions.c
    return {
        row.share: row.position
        for row in connection.execute(sa.select(p.share, p.position).where(p.source_id == source_id))
    }
