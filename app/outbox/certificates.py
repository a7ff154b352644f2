"""Keep when the certificates are valid that targets and sources meet and use, those of the APIs, and those they meet.

What was seen with other settings does not count: it has another revision.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.config.tls import Validity
from app.outbox import tables
from app.outbox.column_values import clean_reason
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.policies import CERTIFICATES
from app.outbox.processes import API, Process, processes_of


class Certificate(NamedTuple):
    """A certificate: who meets or uses it, its name there, when it is valid, and when it was last seen (ms)."""

    of: str  # `target TYPE:NAME`, `source TYPE:NAME`, `api on HOST`, or what an API connects to, as `broker`
    name: str  # a host or a file, or the address of an API or what it connects to
    valid: Validity
    seen_at: int


class _Known(NamedTuple):
    valid: Validity
    seen_at: int


def near_end(begins_at: int, ends_at: int, notice_ms: int = CERTIFICATES.notice_ms) -> int:
    """Return from when on (ms) the end of what is valid so long is near. A beginning that is not known is 0."""
    return ends_at - min(notice_ms, max(0, ends_at - begins_at) // CERTIFICATES.notice_share)


def record_of_target(database: Database, row_id: int, revision: int, valid: Mapping[str, Validity], now: int) -> None:
    """Add what the connections of a target have seen, by names. Raises `DatabaseUnavailable`."""
    _record(database, tables.targets, row_id, revision, valid, now)


def record_of_source(database: Database, row_id: int, revision: int, valid: Mapping[str, Validity], now: int) -> None:
    """Add what the connections of a source have seen, as of a target."""
    _record(database, tables.sources, row_id, revision, valid, now)


@repeated_after_deadlock
def _record(
    database: Database, table: sa.Table, row_id: int, revision: int, valid: Mapping[str, Validity], now: int
) -> None:
    seen = {clean_reason(name)[: CERTIFICATES.max_name_characters]: _Known(one, now) for name, one in valid.items()}
    mine = (table.c.id == row_id, table.c.revision == revision)
    with database.writing() as connection:
        row = connection.execute(sa.select(table.c.certificates).where(*mine).with_for_update()).one_or_none()
        if row is not None:
            known = {**_of_revision(row.certificates, revision), **seen}
            first = sorted(_without_gone(known, now).items(), key=lambda one: one[1].valid.ends_at)
            first = first[: CERTIFICATES.max_names]
            ends = {name: [one.valid.ends_at, one.seen_at] for name, one in first}
            begins = {name: one.valid.begins_at for name, one in first}  # apart, as older code reads the ends
            kept = orjson.dumps({"revision": revision, "ends": ends, "begins": begins}).decode()
            connection.execute(table.update().where(*mine).values(certificates=kept))


def read_certificates(connection: sa.Connection, processes: list[Process], now: int) -> list[Certificate]:
    """Return the certificates of targets and sources that are enabled, and of APIs that are there or missed.

    What several APIs connect to is returned as the last of them has met it.
    """
    found = [*_of_rows(connection, tables.targets, "target", now), *_of_rows(connection, tables.sources, "source", now)]
    met = [
        Certificate(one.of or f"api on {api.host}", one.name, one.valid, one.seen_at)
        for api in processes_of(API, processes, now)
        if not api.ended_at
        for one in api.certificates
    ]
    last = {(one.of, one.name): one for one in sorted(met, key=lambda one: one.seen_at)}
    return found + [last[place] for place in sorted(last)]


def _of_rows(connection: sa.Connection, table: sa.Table, kind: str, now: int) -> Iterator[Certificate]:
    columns = (table.c.type, table.c.name, table.c.revision, table.c.certificates)
    enabled = sa.select(*columns).where(table.c.enabled, table.c.certificates.is_not(None))
    for row in connection.execute(enabled.order_by(table.c.type, table.c.name)):
        known = _without_gone(_of_revision(row.certificates, row.revision), now)
        for name, one in sorted(known.items()):
            yield Certificate(f"{kind} {row.type}:{row.name}", name, one.valid, one.seen_at)


def _of_revision(text: str | None, revision: int) -> dict[str, _Known]:
    kept: dict[str, Any] = orjson.loads(text) if text else {}
    if kept.get("revision") != revision:
        return {}
    begins = kept.get("begins", {})
    return {
        name: _Known(Validity(begins.get(name, 0), ends_at), seen_at)
        for name, (ends_at, seen_at) in kept["ends"].items()
    }


def _without_gone(known: dict[str, _Known], now: int) -> dict[str, _Known]:
    """Return what is known without those near their end that were not seen for days while others were: a former host's.

    After its end a certificate is refused, so it does not count that it is not seen then.
    """
    newest = max((one.seen_at for one in known.values()), default=0)
    return {
        name: one
        for name, one in known.items()
        if now < near_end(*one.valid) or one.seen_at >= min(newest, one.valid.ends_at) - CERTIFICATES.gone_ms
    }
