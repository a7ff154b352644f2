"""MySQL and MariaDB: a table that mirrors the buckets or one that records every event (reference §4.11).

Delivered means: the server answered the COMMIT, or the one statement that is its own transaction. Whether the server
waited for the disk depends on its `innodb_flush_log_at_trx_commit`, which no client can change for itself.

A call is one transaction of a few statements with many rows, whatever the window. If the server refuses the data of a
batch, the batch is tried again in halves between savepoints, until the event at fault is alone and is rejected with the
server's message.
"""

import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import pymysql

from app.config.targets.mysql import MysqlSettings
from app.config.targets.mysql_dsn import Dsn
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Outcome, Rejected, Unavailable
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, TargetUnavailable
from workers.targets.mysql.connection import MysqlConnection, connect, reason
from workers.targets.mysql.table import Table, identifier, take_table
from workers.targets.payloads import change, collapse, mark_not_attempted, records, timestamp
from workers.targets.sql_batch import in_halves, set_apart

# Errors caused by the data of one event: data exception, integrity, check option, a trigger's SIGNAL; and by number
# those with the general state: a row too large for a page or the redo log, a text in another character set, check
# constraints.
_DATA_CLASSES = frozenset({"22", "23", "44", "45"})
_DATA_ERRORS = frozenset({1118, 1366, 1644, 3819})
_LONGEST_STATEMENT = 4 << 20  # longer statements are no faster
_KEYS_AT_ONCE = 500
_ROWS_AT_ONCE = 10_000
_ROOM = 4096  # bytes for the part of a statement around its rows,
_BETWEEN = 11  # and between two of them
_VERSION = "COALESCE(NULLIF(JSON_UNQUOTE(JSON_EXTRACT({value}, '$.Records[0].s3.object.versionId')), ''), 'null')"


@dataclass(frozen=True)
class _Session:
    """A connection, and the table that it reaches."""

    server: MysqlConnection
    table: Table


class MysqlTarget:
    """One table, one connection."""

    def __init__(self, settings: MysqlSettings) -> None:
        self._settings = settings
        self._dsn = settings.dsn
        self._session: _Session | None = None

    def open(self) -> None:
        """Connect; create the table if it is missing, else check its columns and keys."""
        self._connect()

    def deliver(
        self,
        events: Sequence[Event],
        window: int,  # noqa: ARG002 (one transaction)
        lease: LeaseCheck = NO_LEASE,
    ) -> Sequence[Outcome]:
        """Write one transaction; either all of it is committed or none."""
        session = self._session
        if session is None or session.server.is_stale:
            session = self._connect()
        unfit = functools.partial(_unfit, session.server)
        try:
            return set_apart(events, unfit, functools.partial(self._write, session, lease))
        except pymysql.MySQLError as error:
            self.close()
            return mark_not_attempted(events, [Unavailable(self._reason(error))] * len(events))
        except LeaseExpired:
            self.close()  # this rolls back
            raise

    def close(self) -> None:
        """Close the connection; the server rolls back uncommitted changes."""
        session, self._session = self._session, None
        if session is not None:
            session.server.close()

    def _connect(self) -> _Session:
        self.close()
        server = connect(self._settings)
        try:
            table = take_table(server, *self._settings.table_name, self._settings.format)
        except pymysql.MySQLError as error:
            server.close()
            raise TargetUnavailable(self._reason(error)) from error
        except TargetUnavailable:
            server.close()
            raise
        self._session = _Session(server, table)
        return self._session

    def _write(self, session: _Session, lease: LeaseCheck, events: Sequence[Event]) -> Sequence[Outcome]:
        statements = self._statements(session, events)
        try:
            if len(statements) > 1:
                statements = ["BEGIN", *statements, "COMMIT"]
            for statement in statements:
                lease.check()  # the last one commits
                session.server.run(statement)
        except pymysql.MySQLError as error:
            if not _is_data(error):
                raise
        else:
            return [DELIVERED] * len(events)
        for statement in ("ROLLBACK", "BEGIN"):
            session.server.run(statement)
        outcomes = in_halves(events, functools.partial(self._take, session), lease.has_time)
        lease.check()
        session.server.run("COMMIT")
        return outcomes

    def _take(self, session: _Session, events: Sequence[Event]) -> Rejected | None:
        """Apply all of the events or, if the server refuses their data, none."""
        session.server.run("SAVEPOINT part")
        try:
            for statement in self._statements(session, events):
                session.server.run(statement)
        except pymysql.MySQLError as error:
            if not _is_data(error):
                raise
            session.server.run("ROLLBACK TO SAVEPOINT part")
            return Rejected(reason(error))
        return None

    def _statements(self, session: _Session, events: Sequence[Event]) -> list[str]:
        if self._settings.format == "access":
            return list(_append(session, events, self._dsn))
        return list(_mirror(session, events))

    def _reason(self, error: pymysql.MySQLError) -> str:
        return f"MySQL, table {self._settings.table}: {reason(error)}"


def _is_data(error: pymysql.MySQLError) -> bool:
    """Return whether the data of an event are at fault."""
    state = getattr(error, "sqlstate", None) or ""
    return state[:2] in _DATA_CLASSES or (bool(error.args) and error.args[0] in _DATA_ERRORS)


def _unfit(server: MysqlConnection, event: Event) -> Rejected | None:
    """Reject an event that makes a statement too long: the server would close the connection, at each retry."""
    if 8 * (len(event.record) + len(event.path)) < server.longest - _ROOM:  # four bytes per character, each doubled
        return None
    if _bytes(server.quoted(records(event))) + _bytes(server.quoted(event.path)) < server.longest - _ROOM:
        return None
    return Rejected(f"the event is larger than the server's max_allowed_packet of {server.longest} bytes")


def _mirror(session: _Session, events: Sequence[Event]) -> Iterator[str]:
    """Yield the statements that leave the table as the events, applied one after the other, would."""
    table, quoted = session.table, session.server.quoted
    rows = collapse(change(event, "namespace") for event in events)
    # In the order of the index, so that two writers of the same rows wait for each other without a deadlock.
    yield from _deletions(session, sorted((_hash(path), "") for path in rows.removed))
    described = _VERSION.format(value=f"held.{table.value}")
    given = sorted((_hash(path), version) for path, version in rows.versions)
    yield from _deletions(session, given, f" AND {described} = given.v COLLATE utf8mb4_bin")
    columns = [table.key, table.value] + ["key_hash"] * table.fills_hash
    ordered = sorted((_hash(path), path, document) for path, document in rows.documents.items())
    made = (
        f"({quoted(path)}, {quoted(document)}, '{key}')"
        if table.fills_hash
        else f"({quoted(path)}, {quoted(document)})"
        for key, path, document in ordered
    )
    end = f" ON DUPLICATE KEY UPDATE `{table.value}` = VALUES(`{table.value}`)"
    yield from _inserts(session, columns, made, end)


def _deletions(session: _Session, given: Sequence[tuple[str, str]], condition: str = "") -> Iterator[str]:
    """Delete rows by single lookups: IN is a range, which locks the next, another writer's row if one is missing.

    Measured, 500 rows: IN 3.3 ms, JSON_TABLE 6.3, this 7.1; on MariaDB 3.6, 3.6, 4.9. But MySQL 8.0.12 requires a
    privilege for JSON_TABLE that it cannot grant, and older servers do not have it.
    """
    table, quoted = session.table, session.server.quoted
    join = f"AS held FORCE INDEX ({identifier(table.index)}) ON held.key_hash = {table.sought}"
    rows = (f"SELECT {quoted(key)} AS k, {quoted(version)} AS v" for key, version in given)
    for part in _parts(session, rows, _KEYS_AT_ONCE):
        yield f"DELETE held FROM ({' UNION ALL '.join(part)}) AS given STRAIGHT_JOIN {table.name} {join}{condition}"


def _append(session: _Session, events: Sequence[Event], dsn: Dsn) -> Iterator[str]:
    quoted = session.server.quoted
    made = (f"('{_moment(event, dsn)}', {quoted(records(event))})" for event in events)
    yield from _inserts(session, [session.table.key, session.table.value], made, "")


def _inserts(session: _Session, columns: Sequence[str], rows: Iterable[str], end: str) -> Iterator[str]:
    names = ", ".join(map(identifier, columns))
    start = f"INSERT INTO {session.table.name} ({names}) VALUES "  # noqa: S608 (names are quoted, rows escaped)
    for part in _parts(session, rows, _ROWS_AT_ONCE):
        yield f"{start}{', '.join(part)}{end}"


def _parts(session: _Session, rows: Iterable[str], most: int) -> Iterator[list[str]]:
    """Yield the rows in parts that each fit one statement; a longer row is alone, and fits the packet."""
    longest = min(session.server.longest, _LONGEST_STATEMENT) - _ROOM
    held: list[str] = []
    size = 0
    for row in rows:
        taken = _bytes(row) + _BETWEEN
        if held and (size + taken > longest or len(held) == most):
            yield held
            held, size = [], 0
        held.append(row)
        size += taken
    if held:
        yield held


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
