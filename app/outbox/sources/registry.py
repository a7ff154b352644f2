"""Store and change sources. A change revokes the lease, so that no worker goes on with the settings before it."""

from collections.abc import Collection, Mapping
from typing import Any

import sqlalchemy as sa

from app.config.arn import SourceId
from app.config.declared_types import source_type
from app.config.fields.fields import fields_of
from app.config.secrets import Sealer
from app.config.sources.base import SourceSettings
from app.config.target_settings import BadSettings, changed_lines, load, texts
from app.outbox import audit, log_head, tables
from app.outbox.column_values import clean_reason
from app.outbox.declared import NOT_NAMED, SealedSettings, read_row
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database, OpenTransaction, now_ms
from app.outbox.engine.many_rows import repeated_after_deadlock
from app.outbox.errors import ReadOnlySource, SourceInUse
from app.outbox.sources import watched
from app.outbox.sources.rows import (
    INVALID_SETTINGS,
    StoredSource,
    find_source,
    read_positions,
    read_sources,
    stored_source,
)
from app.quantities import count_noun

_REVOKED = {"lease_token": "", "leased_until": 0}
_CLOCKS_MS = 1_000  # by which a worker's reading of the database's clock may be behind
_NO_NOTICE: dict[str, Any] = {"notice": "", "notice_at": 0}
_AS_NEW: dict[str, Any] = {"failures": 0, "error": "", "error_at": 0, "lag": None}


class SourceRegistry(SealedSettings[SourceSettings]):
    """Read and change sources."""

    def __init__(self, database: Database | OpenTransaction, sealer: Sealer) -> None:
        super().__init__(sealer, tables.sources, source_type)
        self._database = database

    def sources(self) -> list[StoredSource]:
        """Return every source, sorted by type and name."""
        with self._database.reading() as connection:
            return read_sources(connection)

    def source(self, source: SourceId) -> StoredSource:
        """Return one source. Raises `UnknownSource`."""
        with self._database.reading() as connection:
            return find_source(connection, source)

    def positions(self, stored: StoredSource) -> dict[str, str]:
        """Return the position in each share of its queue."""
        with self._database.reading() as connection:
            return read_positions(connection, stored.row_id)

    def _is_watched(self, stored: StoredSource) -> bool:
        """Return whether a bucket was listed to its end."""
        with self._database.reading() as connection:
            listings = watched.read_watched(connection).get(stored.row_id)
        return listings is not None and listings.complete

    @repeated_after_deadlock
    def put(
        self,
        source: SourceId,
        values: Mapping[str, object],
        *,
        origin: str = "stored",
        invalid: bool = False,
        lenient: bool = False,
    ) -> None:
        """Create a source or replace its settings. Raises `BadSettings` or `ReadOnlySource`; then nothing has changed.

        One that the environment no longer names is taken over, and keeps its positions. A source of another queue than
        before begins as a new one. Settings that are `invalid` are stored unchecked; the
        worker that reads them reports why it cannot pull. With `lenient`, settings without effect are accepted.
        """
        declaration = source_type(source.type)
        if invalid:
            enabled, stored = True, {key: str(value) for key, value in values.items()}
        else:
            settings = load(declaration, values, lenient=lenient or origin == "environment")
            enabled, stored = settings.enable, texts(declaration, values)
        sealed = self.seal(source.type, stored)
        columns: dict[str, Any] = {"settings": sealed, "enabled": enabled, "origin": origin}
        s = tables.sources.c
        with self._database.writing() as connection:
            log_head.lock(connection)  # two processes that start at once have the same new sources in their environment
            known = read_row(connection, tables.sources, source, lock=True)
            before = self.unseal_to_compare(known, source)
            details = {"settings": changed_lines(declaration, before, stored)}
            if known is None:
                new = {"type": source.type, "name": source.name, "created_at": now_ms()}
                connection.execute(tables.sources.insert().values(new | columns))
                audit.record(connection, "source.create", _resource(source), details)
                return
            if origin != "environment" and stored_source(known).is_read_only:
                raise ReadOnlySource(source)
            columns |= _AS_NEW | _REVOKED | {"resume_at": _due(connection), "revision": s.revision + 1}
            columns |= {"reason": ""} if not known.paused or known.reason == NOT_NAMED else {}
            connection.execute(tables.sources.update().where(s.id == known.id).values(**columns))
            if _queue(declaration, before) != _queue(declaration, stored):
                positions = tables.source_positions
                connection.execute(positions.delete().where(positions.c.source_id == known.id))
                watched.forget(connection, known.id)
                connection.execute(tables.sources.update().where(s.id == known.id).values(_NO_NOTICE))
            # Of one that is disabled the purge keeps events until a day after it was due, whenever it is set again.
            if enabled and declaration.lists:
                watched.make_due(connection, known.id)
            audit.record(connection, "source.change", _resource(source), details)

    def sync_environment(self, found: Mapping[SourceId, Mapping[str, str]], invalid: Collection[SourceId]) -> None:
        """Store the sources that the environment configures, each in a transaction of its own.

        Sources that the environment no longer configures are disabled, not deleted: their positions stay. So is one
        with positions, or whose bucket was listed, if its settings became `invalid`: without the name of its queue or
        bucket, it would begin as a new one.
        """
        stored = {entry.source: entry for entry in self.sources()}
        for source, values in found.items():
            entry = stored.get(source)
            if entry and entry.origin == "environment" and entry.enabled:
                try:
                    if self.texts(entry) == dict(values):
                        continue
                except BadSettings:
                    pass  # sealed with a key that is not known any more: store the environment's secret again
            if source in invalid and entry and (self.positions(entry) or self._is_watched(entry)):
                if entry.enabled or entry.reason != INVALID_SETTINGS:
                    self._update(source, "disable", enabled=False, reason=INVALID_SETTINGS)
                continue
            self.put(source, values, origin="environment", invalid=source in invalid)
        for source, entry in stored.items():
            if entry.is_read_only and source not in found:
                self._update(source, "disable", enabled=False, reason=NOT_NAMED)

    @repeated_after_deadlock
    def remove(self, source: SourceId, *, force: bool = False) -> int:
        """Delete a source with its positions and rejected messages, and return how many of these there were.

        Raises `UnknownSource`, `ReadOnlySource`, and without `force` `SourceInUse` if it has rejected messages. What it
        recorded stays.
        """
        r = tables.rejected_messages.c
        with self._database.writing() as connection:
            log_head.lock(connection)  # a declaration that is being applied has read that it is there
            stored = find_source(connection, source)
            if stored.origin == "environment" and stored.enabled:
                raise ReadOnlySource(source)
            connection.execute(tables.sources.delete().where(tables.sources.c.id == stored.row_id))
            count = sa.select(sa.func.count()).select_from(tables.rejected_messages).where(r.source_id == stored.row_id)
            rejected = int(connection.execute(count).scalar_one())
            if rejected and not force:
                messages = count_noun(rejected, "rejected message")
                raise SourceInUse(f"{source} has {messages}; --force (`force=true`) removes it with them")
            for table in (tables.source_positions, tables.rejected_messages):
                connection.execute(table.delete().where(table.c.source_id == stored.row_id))
            watched.forget(connection, stored.row_id)
            connection.execute(tables.notices.delete().where(tables.notices.c.target_id == stored.notice_key))
            audit.record(connection, "source.remove", _resource(source), {"rejected": rejected})
        return rejected

    def pause(self, source: SourceId, reason: str) -> None:
        """Stop pulling until the source is resumed; its messages wait in the queue. Raises `UnknownSource`."""
        self._update(source, "pause", paused=True, reason=clean_reason(reason), error="")

    def resume(self, source: SourceId) -> None:
        """End a pause, forget what was lost, and try again at once. Raises `UnknownSource`."""
        self._update(source, "resume", due=True, paused=False, reason="", **_AS_NEW, **_NO_NOTICE)

    @repeated_after_deadlock
    def _update(self, source: SourceId, action: str, *, due: bool = False, **values: Any) -> None:
        s = tables.sources.c
        with self._database.writing() as connection:
            stored = find_source(connection, source)
            change = {**values, **_REVOKED, "revision": s.revision + 1}
            change |= {"resume_at": _due(connection)} if due else {}
            connection.execute(tables.sources.update().where(s.id == stored.row_id).values(**change))
            if stored.lists:
                watched.make_due(connection, stored.row_id)
            details = {"reason": values["reason"]} if values["reason"] else {}
            audit.record(connection, f"source.{action}", _resource(source), details)


def _due(connection: sa.Connection) -> int:
    """Return a time at which a source is due now, for every worker."""
    return database_now(connection) - _CLOCKS_MS


def _queue(declaration: type[SourceSettings], values: Mapping[str, str]) -> list[str | None]:
    """Return what names the queue; a default is the same whether it is written or left out."""
    return [values.get(name) or fields_of(declaration)[name].default for name in declaration.names_queue]


def _resource(source: SourceId) -> str:
    return f"source:{source}"
