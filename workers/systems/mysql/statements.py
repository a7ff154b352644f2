"""Write the statements of a batch: many rows each, and none longer than the server accepts."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from app.config.targets.mysql_dsn import Dsn
from app.events.model import Event
from workers.systems.mysql.connection import MysqlConnection
from workers.systems.mysql.table import Table, identifier
from workers.targets.messages import Write
from workers.targets.payloads import change, collapse, timestamp

BATCH_BYTES = 4 << 20  # longer statements are no faster
BATCH_KEYS = 500
BATCH_ROWS = 10_000
_STATEMENT_BYTES = 4096  # of a statement without its rows,
_SEPARATOR_BYTES = 11  # and between two of them
_ENVELOPE_BYTES = 32_768  # more than is ever written around a record besides the path, as by a CloudEvent
_VERSION = "COALESCE(NULLIF(JSON_UNQUOTE(JSON_EXTRACT({value}, '$.Records[0].s3.object.versionId')), ''), 'null')"


@dataclass(frozen=True)
class Session:
    """A connection, and the table that it reaches."""

    server: MysqlConnection
    table: Table


def is_too_long(server: MysqlConnection, event: Event, write: Write) -> bool:
    """Return whether the event makes a statement too long: the server would close the connection, at each retry."""
    # Four bytes per character, each doubled.
    max_bytes = server.max_statement_bytes - _STATEMENT_BYTES
    if 8 * (len(event.record) + len(event.path)) < max_bytes - _ENVELOPE_BYTES:
        return False
    return _bytes(server.quoted(write(event))) + _bytes(server.quoted(event.path)) >= max_bytes


def mirror(session: Session, events: Sequence[Event]) -> Iterator[str]:
    """Yield the statements that leave the table as the events, applied one after the other, would."""
    table, quoted = session.table, session.server.quoted
    rows = collapse(change(event, "namespace") for event in events)
    # In the order of the index, so that two writers of the same rows wait for each other without a deadlock.
    yield from _deletions(session, sorted((_hash(path), "") for path in rows.removed))
    described = _VERSION.format(value=f"held.{table.value}")
    named = sorted((_hash(path), version) for path, version in rows.versions)
    yield from _deletions(session, named, f" AND {described} = given.v COLLATE utf8mb4_bin")
    columns = [table.key, table.value] + ["key_hash"] * table.fills_hash
    ordered = sorted((_hash(path), path, document) for path, document in rows.documents.items())
    values = (
        f"({quoted(path)}, {quoted(document)}, '{key}')"
        if table.fills_hash
        else f"({quoted(path)}, {quoted(document)})"
        for key, path, document in ordered
    )
    end = f" ON DUPLICATE KEY UPDATE `{table.value}` = VALUES(`{table.value}`)"
    yield from _inserts(session, columns, values, end)


def _deletions(session: Session, given: Sequence[tuple[str, str]], condition: str = "") -> Iterator[str]:
    """Delete rows by single lookups: IN is a range, which locks the next, another writer's row if one is missing.

    Measured, 500 rows: IN 3.3 ms, JSON_TABLE 6.3, this 7.1; on MariaDB 3.6, 3.6, 4.9. But MySQL 8.0.12 requires a
    privilege for JSON_TABLE that it cannot grant, and older servers do not have it.
    """
    table, quoted = session.table, session.server.quoted
    join = f"AS held FORCE INDEX ({identifier(table.index)}) ON held.key_hash = {table.compared}"
    rows = (f"SELECT {quoted(key)} AS k, {quoted(version)} AS v" for key, version in given)
    for part in _parts(session, rows, BATCH_KEYS):
        yield f"DELETE held FROM ({' UNION ALL '.join(part)}) AS given STRAIGHT_JOIN {table.name} {join}{condition}"


def append(session: Session, events: Sequence[Event], dsn: Dsn, write: Write) -> Iterator[str]:
    """Yield the statements that insert a row for each event, as it is written."""
    quoted = session.server.quoted
    rows = (f"('{_moment(event, dsn)}', {quoted(write(event))})" for event in events)
    yield from _inserts(session, [session.table.key, session.table.value], rows, "")


def _inserts(session: Session, columns: Sequence[str], rows: Iterable[str], end: str) -> Iterator[str]:
    names = ", ".join(map(identifier, columns))
    start = f"INSERT INTO {session.table.name} ({names}) VALUES "  # noqa: S608 (names are quoted, rows escaped)
    for part in _parts(session, rows, BATCH_ROWS):
        yield f"{start}{', '.join(part)}{end}"


def _parts(session: Session, rows: Iterable[str], most: int) -> Iterator[list[str]]:
    """Yield the rows in parts that each fit one statement; a longer row is alone, and fits the packet."""
    max_bytes = min(session.server.max_statement_bytes, BATCH_BYTES) - _STATEMENT_BYTES
    part: list[str] = []
    size = 0
    for row in rows:
        length = _bytes(row) + _SEPARATOR_BYTES
        if part and (size + length > max_bytes or len(part) == most):
            yield part
            part, size = [], 0
        part.append(row)
        size += length
    if part:
        yield part


def _moment(event: Event, dsn: Dsn) -> str:
    """Return the event's time in the DSN's time zone; the column has no time zone, nor do MinIO's rows."""
    if dsn.zone == "UTC" and not dsn.truncate:
        return timestamp(event)[:-1]
    step = round(dsn.truncate * 1000)
    time = event.time - event.time % step if step else event.time
    return datetime.fromtimestamp(time / 1000, dsn.time_zone).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]


def _hash(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
