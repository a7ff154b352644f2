"""Open PostgreSQL as the outbox: what the session is set to, and when its connections are given up.

A connection limits how long it waits: without an answer in time it shuts its socket down, which raises an error. libpq
has no such limit. The kernel's limits (`tcp_user_timeout`, keep-alive) detect a machine that has failed, but not a
proxy, tunnel or pooler that keeps the connection open after it has lost the server.
"""

import contextlib
import math
import time
from typing import Any

import sqlalchemy as sa
from psycopg2 import extensions
from sqlalchemy import event as sa_event

from app import socket_watchdog
from app.outbox.policies import DATABASE


class _Wait:
    """A block in which a connection waits for the server; it is shut down if that takes longer than `seconds`.

    (A duplicate of the descriptor would need a free one.)
    """

    __slots__ = ("_connection", "_descriptor", "_seconds", "ends")

    def __init__(self, connection: "Connection", seconds: float) -> None:
        self._connection, self._descriptor, self._seconds = connection, connection.fileno(), seconds
        self.ends = math.inf

    def __enter__(self) -> None:
        self.ends = time.monotonic() + self._seconds
        socket_watchdog.add(self)

    def __exit__(self, *_error: object) -> None:
        socket_watchdog.remove(self)

    def cut(self) -> None:
        """Shut the connection down."""
        self._connection.was_cut = True
        socket_watchdog.shut_down(self._descriptor)


class Connection(extensions.connection):
    """A connection that raises `OperationalError` if an answer takes longer than `patience` seconds; None: no limit."""

    patience: float | None = None
    was_cut = False  # whether it was shut down because an answer took too long

    def commit(self) -> None:
        """Commit within `patience` seconds."""
        with self.waiting():
            super().commit()

    def rollback(self) -> None:
        """Roll back within `patience` seconds."""
        with self.waiting():
            super().rollback()

    def encoded(self, text: str) -> bytes:
        """Encode a text as the driver sends it."""
        return text.encode(extensions.encodings[self.encoding])

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Return the context manager in which every call that waits for the server must run."""
        if self.patience is None or self.closed:
            return contextlib.nullcontext()
        return _Wait(self, self.patience)


class Cursor(extensions.cursor):
    """A cursor whose statements are limited by its connection's `patience`."""

    connection: Connection

    def execute(self, query: Any, vars: Any = None) -> None:  # noqa: A002 - the driver's own name
        """Execute a statement within the connection's `patience`."""
        with self.connection.waiting():
            super().execute(query, vars)

    def executemany(self, query: Any, vars_list: Any) -> None:
        """Execute a statement for many rows within the connection's `patience`."""
        with self.connection.waiting():
            super().executemany(query, vars_list)

    def copy_expert(self, sql: Any, file: Any, size: int = 8192) -> None:
        """Run COPY within the connection's `patience`."""
        with self.connection.waiting():
            super().copy_expert(sql, file, size)


# A machine or network that has failed sends nothing: without these, either side would wait for two hours. The server's
# are for a session that is idle outside of a transaction; of one within, `idle_in_transaction_session_timeout` is.
_KEEPALIVES = {"idle": 10, "interval": 5, "count": 3}
_SILENCE_MS = DATABASE.silence_seconds * 1000

_SESSION = {
    "synchronous_commit": "on",  # a role or database default of "off" would break promise 1
    "statement_timeout": 0,  # a COMMIT that waits for a standby would be answered as if that had it, too
    "idle_in_transaction_session_timeout": f"{DATABASE.idle_transaction_seconds}s",
    "default_transaction_isolation": "read committed",  # also where each statement commits by itself
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    "array_nulls": "on",
    # Every query of the outbox has an index in its order. For a new or fast-growing log the planner's statistics are
    # outdated: without these settings it sometimes sorts a whole backlog to read its first batch. (A disabled plan has
    # a very high estimated cost, so jit would compile every small query.)
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    # By itself the server plans a statement of `append_events` again in each append, because a plan for a known number
    # of events has a lower estimated cost than one for any number; planning takes a quarter of an append.
    "plan_cache_mode": "force_generic_plan",
    "tcp_user_timeout": _SILENCE_MS,
    **{f"tcp_keepalives_{name}": seconds for name, seconds in _KEEPALIVES.items()},
}


def open_engine(url: sa.URL, pool_size: int, patience: float | None, isolation: str) -> sa.Engine:
    """Return an engine whose statements take `patience` seconds at most."""
    session = _SESSION | {"lock_timeout": f"{DATABASE.lock_seconds_within(patience)}s"}
    options = [f"-c {name}={str(value).replace(' ', chr(92) + ' ')}" for name, value in session.items()]
    engine = sa.create_engine(
        url,
        pool_size=pool_size,
        max_overflow=DATABASE.max_extra_connections,
        pool_use_lifo=True,  # a server's process that has planned the statements of `append_events` appends again
        pool_pre_ping=False,  # a broken connection is an error like any other, and the caller retries
        pool_reset_on_return=None if isolation == "AUTOCOMMIT" else "rollback",
        hide_parameters=True,
        isolation_level=isolation,
        connect_args={
            "options": " ".join([*_options_of(url), *options]),  # of two of a name the last one counts
            "client_encoding": "utf8",  # a role or database may have another default
            "connect_timeout": DATABASE.connect_seconds,
            "application_name": "bucketwire",
            "connection_factory": Connection,
            "cursor_factory": Cursor,
            "tcp_user_timeout": _SILENCE_MS,
            **{f"keepalives_{name}": seconds for name, seconds in _KEEPALIVES.items()},
        },
    )

    @sa_event.listens_for(engine, "connect")
    def _set_up(connection: Connection, _entry: Any) -> None:
        connection.patience = patience

    return engine


def _options_of(url: sa.URL) -> tuple[str, ...]:
    """Return the URL's own options, such as the `search_path`."""
    given = url.query.get("options", ())
    return (given,) if isinstance(given, str) else given
