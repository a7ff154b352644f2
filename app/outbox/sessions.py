"""Keep the console's sessions: a cookie is worth something only while its session is in the table.

So a sign-out ends every copy of a cookie, at every API process at once, and a revoked token ends its sessions. The
table is bounded: a session that begins removes those that have expired, and its subject's oldest beyond
`SESSIONS.max_sessions`. Who begins a session, or signs out, is in the audit log.
"""

import hashlib

import sqlalchemy as sa

from app.outbox import audit, tables
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.policies import SESSIONS

AUDITED = "session:console"  # what entries of the audit log are about
_sessions = tables.console_sessions.c


class Sessions:
    """The sessions that are active now, by the numbers in the browsers' cookies."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @repeated_after_deadlock
    def begin(self, number: str, subject: str, lifetime: int) -> None:
        """Begin a session of so many seconds; `subject` is a SHA-256 digest of the token or the person.

        With more than `SESSIONS.max_sessions` of the subject, its oldest end.
        """
        with self._database.reading() as connection:
            now = database_now(connection)
            expired = sa.select(_sessions.id).where(_sessions.ends_at < now).order_by(_sessions.ends_at)
            newest = sa.select(_sessions.id).where(_sessions.subject == subject).order_by(_sessions.ends_at.desc())
            ended = {
                *connection.execute(expired.limit(SESSIONS.batch_expired)).scalars(),
                *connection.execute(newest.offset(SESSIONS.max_sessions - 1).limit(SESSIONS.batch_expired)).scalars(),
            }
        row = {"id": _digest(number), "subject": subject, "ends_at": now + lifetime * 1000}
        with self._database.writing() as connection:
            # By their ids and in order: a range would lock its gaps on MySQL, and two sign-ins wait for each other.
            for session_id in sorted(ended):
                connection.execute(tables.console_sessions.delete().where(_sessions.id == session_id))
            connection.execute(tables.console_sessions.insert().values(**row))
            audit.record(connection, "session.begin", AUDITED)

    def is_active(self, number: str) -> bool:
        """Return whether a session has begun and has not been ended; whether it has expired, its cookie says.

        One round trip. Raises `DatabaseUnavailable`.
        """
        with self._database.reading() as connection:
            query = sa.select(_sessions.id).where(_sessions.id == _digest(number))
            return connection.execute(query).first() is not None

    @repeated_after_deadlock
    def end(self, number: str) -> None:
        """End a session everywhere; does nothing if it has ended. Raises `DatabaseUnavailable`."""
        with self._database.writing() as connection:
            if connection.execute(tables.console_sessions.delete().where(_sessions.id == _digest(number))).rowcount:
                audit.record(connection, "session.end", AUDITED)


def end_all(connection: sa.Connection, subject: str) -> None:
    """End every session of a subject, in the caller's transaction."""
    ids = connection.execute(sa.select(_sessions.id).where(_sessions.subject == subject)).scalars().all()
    for session_id in sorted(ids):
        connection.execute(tables.console_sessions.delete().where(_sessions.id == session_id))


def _digest(number: str) -> str:
    return hashlib.sha256(number.encode()).hexdigest()
