"""MySQL and MariaDB: a table that mirrors the buckets or one that records every event (reference §4.11).

Delivered means: the server has inserted as many rows as an `access` table was given, and answered the COMMIT. Whether
it waited for the disk depends on its `innodb_flush_log_at_trx_commit`, which no client can change for itself.

A call is one transaction of a few statements with many rows, whatever the window. COMMIT is sent after the answers to
these: a statement that arrives late is rolled back, and a late COMMIT still holds the locks of its rows, so that newer
writes come after it. If the server refuses the data of a
batch, the batch is tried again in halves between savepoints, until the event at fault is alone and is rejected with the
server's message. A refusal by a rule of the table, which may be one that no event keeps, is decided by
`workers.targets.batch.resolve`.
"""

import functools
import re
from collections.abc import Callable, Sequence

import pymysql

from app.config.fields.addresses import HostPort
from app.config.targets.mysql import MysqlSettings
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Outcome, Rejected
from workers.systems.mysql.connection import connect, reason
from workers.systems.mysql.table import Session, Table, append, is_too_long, mirror, take_table
from workers.targets.base import LeaseCheck
from workers.targets.batch import Doubt
from workers.targets.messages import entry_format
from workers.targets.payloads import records
from workers.targets.sql_target import SqlTarget, in_halves
from workers.targets.tcp import Endpoint

# Errors in the data of one event, or by a rule that they break: data exception, integrity, check option, a trigger's
# SIGNAL; and by number those with the general state: a row too large for a page or the redo log, a text in another
# character set, check constraints.
_DATA_CLASSES = frozenset({"22", "23", "44", "45"})
_DATA_ERRORS = frozenset({1118, 1366, 1644, 3819})
# Those that no table is the reason for: a row that is there already, JSON that cannot be read or is too deep.
_OF_ONE_EVENT = frozenset({1062, 3140, 3157})
_INDEX = re.compile(r"for key '([^']*)'$")  # of 1062; later servers name the table, too


class MysqlTarget(SqlTarget[Session, pymysql.MySQLError]):
    """One table, one connection."""

    def __init__(self, settings: MysqlSettings) -> None:
        super().__init__(pymysql.MySQLError)
        self._settings = settings
        self._dsn = settings.dsn
        self._write_entry = entry_format(settings, records)

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the server, or its socket."""
        return [
            Endpoint(HostPort(self._dsn.socket, 0) if self._dsn.socket else HostPort(self._dsn.host, self._dsn.port))
        ]

    def _open_session(self) -> Session:
        server = connect(self._settings)
        try:
            return Session(server, take_table(server, *self._settings.table_name, self._settings.format))
        except BaseException:
            server.close()
            raise

    def _close_session(self, session: Session) -> None:
        session.server.close()

    def _is_stale(self, session: Session) -> bool:
        return session.server.is_stale

    def _unfit(self, session: Session, event: Event) -> Rejected | None:
        if not is_too_long(session.server, event, self._write_entry):
            return None
        max_bytes = session.server.max_statement_bytes
        return Rejected(f"the event is larger than the server's max_allowed_packet of {max_bytes} bytes")

    def _write(self, session: Session, lease: LeaseCheck, events: Sequence[Event]) -> Sequence[Outcome]:
        statements = self._statements(session, events)
        try:
            if statements:
                self._run(session, ["BEGIN", *statements], events, lease.check)
                lease.check()
                session.server.run("COMMIT")
        except pymysql.MySQLError as error:
            if not _is_data(error):
                raise
        else:
            return [DELIVERED] * len(events)
        for statement in ("ROLLBACK", "BEGIN"):
            session.server.run(statement)
        is_mirror = self._settings.format == "namespace"
        outcomes = in_halves(events, functools.partial(self._take, session), lease.has_time, is_mirror=is_mirror)
        lease.check()
        session.server.run("COMMIT")
        return outcomes

    def _take(self, session: Session, events: Sequence[Event]) -> Rejected | Doubt | None:
        """Apply all of the events or, if the server refuses their data, none."""
        session.server.run("SAVEPOINT part")
        try:
            self._run(session, self._statements(session, events), events)
        except pymysql.MySQLError as error:
            if not _is_data(error):
                raise
            session.server.run("ROLLBACK TO SAVEPOINT part")
            is_certain = (
                bool(error.args) and error.args[0] in _OF_ONE_EVENT and not _is_of_default(error, session.table)
            )
            return Rejected(reason(error)) if is_certain else Doubt(reason(error))
        return None

    def _run(
        self,
        session: Session,
        statements: Sequence[str],
        events: Sequence[Event],
        check: Callable[[], object] = lambda: None,
    ) -> None:
        """Execute the statements of these events. Of a row that is replaced the server counts what has changed."""
        changed = 0
        for statement in statements:
            check()
            changed += session.server.run(statement)
        if self._settings.format == "access" and changed != len(events):
            raise pymysql.OperationalError(0, f"the server says that it has inserted {changed} of {len(events)} rows")

    def _statements(self, session: Session, events: Sequence[Event]) -> list[str]:
        if self._settings.format == "access":
            return list(append(session, events, self._dsn, self._write_entry))
        return list(mirror(session, events))

    def _reason(self, error: pymysql.MySQLError) -> str:
        return f"MySQL, table {self._settings.table}: {reason(error)}"


def _is_data(error: pymysql.MySQLError) -> bool:
    """Return whether the data of an event are at fault."""
    state = getattr(error, "sqlstate", None) or ""
    return state[:2] in _DATA_CLASSES or (bool(error.args) and error.args[0] in _DATA_ERRORS)


def _is_of_default(error: pymysql.MySQLError, table: Table) -> bool:
    """Return whether a value is there already that we did not write, as of a default."""
    index = _INDEX.search(str(error.args[-1]))
    return index is not None and index[1].rpartition(".")[2] in table.defaulted
