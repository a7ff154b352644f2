"""Keep until when the certificates are valid that targets and sources meet and use, and those of the APIs.

What was seen with other settings does not count: it has another revision.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import clean_reason
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.policies import CERTIFICATES
from app.outbox.processes import API, Process, processes_of


class Certificate(NamedTuple):
    """A certificate: who meets or uses it, its name there, its end, and when it was last seen (ms)."""

    of: str  # `target TYPE:NAME`, `source TYPE:NAME`, or `api on HOST`
    name: str  # a host or a file, or the address of an API
    ends_at: int
    seen_at: int


def record_of_target(database: Database, row_id: int, revision: int, ends: Mapping[str, int], now: int) -> None:
    """Add what the connections of a target have seen: ends (ms) by names. Raises `DatabaseUnavailable`."""
    _record(database, tables.targets, row_id, revision, ends, now)


def record_of_source(database: Database, row_id: int, revision: int, ends: Mapping[str, int], now: int) -> None:
    """Add what the connections of a source have seen, as of a target."""
    _record(database, tables.sources, row_id, revision, ends, now)


@repeated_after_deadlock
def _record(database: Database, table: sa.Table, row_id: int, revision: int, ends: Mapping[str, int], now: int) -> None:
    seen = {clean_reason(name)[: CERTIFICATES.max_name_characters]: [end, now] for name, end in ends.items()}
    mine = (table.c.id == row_id, table.c.revision == revision)
    with database.writing() as connection:
        row = connection.execute(sa.select(table.c.certificates).where(*mine).with_for_update()).one_or_none()
        if row is not None:
            known = {**_of_revision(row.certificates, revision), **seen}
            first = sorted(_without_gone(known, now).items(), key=lambda one: one[1])[: CERTIFICATES.max_names]
            kept = orjson.dumps({"revision": revision, "ends": dict(first)}).decode()
            connection.execute(table.update().where(*mine).values(certificates=kept))


def read_certificates(connection: sa.Connection, processes: list[Process], now: int) -> list[Certificate]:
    """Return the certificates of the targets and sources that are enabled, and of the APIs that are there or missed."""
    found = [*_of_rows(connection, tables.targets, "target", now), *_of_rows(connection, tables.sources, "source", now)]
    apis = [one for one in processes_of(API, processes, now) if one.certificate_ends_at and not one.ended_at]
    return found + [Certificate(f"api on {api.host}", api.address, api.certificate_ends_at, api.at) for api in apis]


def _of_rows(connection: sa.Connection, table: sa.Table, kind: str, now: int) -> Iterator[Certificate]:
    columns = (table.c.type, table.c.name, table.c.revision, table.c.certificates)
    enabled = sa.select(*columns).where(table.c.enabled, table.c.certificates.is_not(None))
    for row in connection.execute(enabled.order_by(table.c.type, table.c.name)):
        known = _without_gone(_of_revision(row.certificates, row.revision), now)
        for name, (ends_at, seen_at) in sorted(known.items()):
            yield Certificate(f"{kind} {row.type}:{row.name}", name, ends_at, seen_at)


def _of_revision(text: str | None, revision: int) -> dict[str, Any]:
    known = orjson.loads(text) if text else {}
    ends: dict[str, Any] = known["ends"] if known.get("revision") == revision else {}
    return ends


def _without_gone(ends: dict[str, Any], now: int) -> dict[str, Any]:
    """Return the ends without those that are near and were not seen for days while others were, as of a former host.

    After its end a certificate is refused, so it does not count that it is not seen then.
    """
    newest, near = max((seen_at for _, seen_at in ends.values()), default=0), now + CERTIFICATES.notice_ms
    return {
        name: [end, seen_at]
        for name, (end, seen_at) in ends.items()
        if end > near or seen_at >= min(newest, end) - CERTIFICATES.gone_ms
    }
