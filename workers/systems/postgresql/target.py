"""PostgreSQL: a table that mirrors the buckets or one that records every event (reference §4.10).

Delivered means: PostgreSQL has written as many rows as there are, and answered COMMIT, with `synchronous_commit` not
off, and without a warning that it has not waited for a synchronous standby. Of what is deleted it cannot be known how
many rows there were.

A call is one transaction of a few set-based statements, whatever the window. Measured on PostgreSQL 15, 1 KB events,
batches of 500: INSERT from unnested arrays 22-38 thousand events per second, against 17-29 by execute_values; COPY for
the access format 37-44, against 25-39 and 26-41.
If PostgreSQL refuses the data of a batch, the batch is tried again in halves between savepoints, until the event at
fault is alone and is rejected with the server's message. A refusal by a rule of the table, which may be one that no
event keeps, is decided by `workers.targets.batch.resolve`.
"""

import contextlib
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import psycopg2
from psycopg2 import extensions

from app.config.targets.postgresql import PostgresSettings
from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Outcome, Rejected
from workers.systems.postgresql.connection import addresses, connect, deadline, is_stale, reason
from workers.systems.postgresql.table import RowsDiscarded, Table, append, mirror, take_table
from workers.targets.base import LeaseCheck
from workers.targets.batch import Doubt
from workers.targets.messages import entry_format
from workers.targets.payloads import records
from workers.targets.sql_target import IDLE_SECONDS, SqlTarget, in_halves
from workers.targets.tcp import Endpoint

# Errors in the data of one event, or by a rule that they break: data exception, integrity, check option, a limit, a
# trigger's own RAISE.
_DATA_CLASSES = frozenset({"22", "23", "44", "54", "P0"})
# Those that no table is the reason for: a limit, a character that text cannot hold.
_OF_ONE_EVENT = frozenset({"22021", "22P05"})
_TAKEN = frozenset({"23505", "23P01"})  # a row that is there already
_FIRST_WITH_IDLE_LIMIT = 90600  # PostgreSQL 9.6
_NOT_REPLICATED = "canceling wait for synchronous replication"  # a warning, in the server's language
# With `off` the server answers COMMIT before anything is on disk; the other values are the operator's choice.
_SYNCHRONOUS = "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"


@dataclass(frozen=True)
class _Session:
    """A connection, and the table that it reaches."""

    connection: extensions.connection
    table: Table


class PostgresTarget(SqlTarget[_Session, psycopg2.Error]):
    """One table, one connection."""

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(psycopg2.Error)
        self._settings = settings
        self._write_entry = entry_format(settings, records)

    def endpoints(self) -> Sequence[Endpoint]:
        """Return each host."""
        return [Endpoint(address) for address in addresses(self._settings)]

    def _open_session(self) -> _Session:
        connection = connect(self._settings)
        try:
            with self._deadline(connection), connection.cursor() as cursor:
                cursor.execute(self._begin(connection))
                table = take_table(cursor, self._settings.table_name, self._settings.format)
                self._commit(cursor)
        except BaseException:
            connection.close()
            raise
        return _Session(connection, table)

    def _close_session(self, session: _Session) -> None:
        with contextlib.suppress(psycopg2.Error):
            session.connection.close()

    def _is_stale(self, session: _Session) -> bool:
        return is_stale(session.connection)

    def _unfit(self, _: _Session, event: Event) -> Rejected | None:
        """Reject U+0000: PostgreSQL's text type cannot hold it, and the driver would refuse the whole batch."""
        if "\0" in event.path or "\0" in (event.version or ""):
            return Rejected("PostgreSQL cannot hold U+0000, which the object's name contains")
        return None

    def _write(self, session: _Session, lease: LeaseCheck, events: Sequence[Event]) -> Sequence[Outcome]:
        if not events:
            return []
        with session.connection.cursor() as cursor:
            return self._write_transaction(cursor, session.table, lease, events)

    def _write_transaction(
        self, cursor: extensions.cursor, table: Table, lease: LeaseCheck, events: Sequence[Event]
    ) -> Sequence[Outcome]:
        try:
            with self._deadline(cursor.connection):
                self._apply(cursor, table, events, self._begin(cursor.connection))
                lease.check()
                self._commit(cursor)
        except psycopg2.Error as error:
            if not _is_data(error, table):
                raise
        else:
            return [DELIVERED] * len(events)
        with self._deadline(cursor.connection):
            cursor.execute("ROLLBACK")
            # A constraint deferred until COMMIT would refuse all events without identifying one.
            cursor.execute(self._begin(cursor.connection) + "; SET CONSTRAINTS ALL IMMEDIATE")
        is_mirror = self._settings.format == "namespace"
        outcomes = in_halves(events, functools.partial(self._take, cursor, table), lease.has_time, is_mirror=is_mirror)
        with self._deadline(cursor.connection):
            lease.check()
            self._commit(cursor)
        return outcomes

    def _take(self, cursor: extensions.cursor, table: Table, events: Sequence[Event]) -> Rejected | Doubt | None:
        """Apply all of the events or, if PostgreSQL refuses their data, none."""
        try:
            with self._deadline(cursor.connection):  # one deadline per step, so that many refusals in a batch end too
                self._apply(cursor, table, events, "SAVEPOINT part")
                cursor.execute("RELEASE SAVEPOINT part")
        except psycopg2.Error as error:
            if not _is_data(error, table):
                raise
            cursor.execute("ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part")
            code = error.pgcode or ""
            is_certain = code[:2] == "54" or code in _OF_ONE_EVENT or (code == "22P02" and "json" in str(error))
            is_certain |= code in _TAKEN and _is_of_event(error, table)
            return Rejected(reason(error)) if is_certain else Doubt(reason(error))
        return None

    def _apply(self, cursor: extensions.cursor, table: Table, events: Sequence[Event], first: str) -> None:
        """Apply the events; `first` and the first statement are one round trip."""
        if self._settings.format == "access":
            cursor.execute(first)
            append(cursor, table, events, self._write_entry)
        else:
            mirror(cursor, table, events, first)

    def _begin(self, connection: extensions.connection) -> str:
        # For this transaction only, so that a connection pooler in between passes no settings on.
        milliseconds = max(1, round(self._settings.timeout * 1000))
        limits = f"SET LOCAL statement_timeout = {milliseconds}"
        if connection.server_version >= _FIRST_WITH_IDLE_LIMIT:
            limits += f"; SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'"
        return f"BEGIN; {limits}; SET LOCAL client_min_messages = warning; {_SYNCHRONOUS}"

    def _deadline(self, connection: extensions.connection) -> contextlib.AbstractContextManager[object]:
        return deadline(connection, self._settings.timeout)

    @staticmethod
    def _commit(cursor: extensions.cursor) -> None:
        # A timed-out wait for a standby commits with a warning, hence no statement timeout; `deadline` limits the wait.
        notices = cursor.connection.notices
        notices.clear()
        cursor.execute("SET LOCAL statement_timeout = 0; COMMIT")
        if cursor.statusmessage != "COMMIT":
            raise psycopg2.OperationalError(f"COMMIT was answered {cursor.statusmessage}")
        if any(_NOT_REPLICATED in notice for notice in notices):
            raise psycopg2.OperationalError(
                "COMMIT is done, but not by the synchronous standby, which was not waited for"
            )

    def _reason(self, error: psycopg2.Error) -> str:
        return f"PostgreSQL, table {self._settings.table}: {reason(error)}"


def _is_data(error: psycopg2.Error, table: Table) -> bool:
    """Return whether the data of an event may be at fault.

    A required column of others is the table's fault, and so is a missing partition, which has the code of a check.
    """
    if isinstance(error, RowsDiscarded):
        return True
    if (error.pgcode or "")[:2] not in _DATA_CLASSES:
        return False
    if error.pgcode == "23514":
        return bool(error.diag.constraint_name)
    return error.pgcode != "23502" or error.diag.column_name in (table.key, table.value)


def _is_of_event(error: psycopg2.Error, table: Table) -> bool:
    """Return whether what is there already was written by us, and not by a default, as of a sequence that is behind."""
    columns = (error.diag.message_detail or table.key).partition(")=(")[0]
    return table.key in columns or table.value in columns
