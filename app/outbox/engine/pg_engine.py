"""Open PostgreSQL as the outbox: what the session is set to, and when its connections are given up."""

import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event as sa_event
from sqlalchemy.pool import ConnectionPoolEntry

from app.outbox.engine import pg_timeouts
from app.outbox.policies import DATABASE

# A machine or network that has failed sends nothing: without these, either side would wait for two hours. The server's
# are for a session that is idle outside of a transaction; of one within, `idle_in_transaction_session_timeout` is.
_KEEPALIVES = {"idle": 10, "interval": 5, "count": 3}
_SILENCE_MS = DATABASE.silence_seconds * 1000

_SESSION = {
    "synchronous_commit": "on",  # a role or database default of "off" would break promise 1
    "statement_timeout": 0,  # a COMMIT that waits for a standby would be answered as if that had it, too
    "lock_timeout": f"{DATABASE.lock_seconds}s",
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
    options = [f"-c {name}={str(value).replace(' ', chr(92) + ' ')}" for name, value in _SESSION.items()]
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
            "connection_factory": pg_timeouts.Connection,
            "cursor_factory": pg_timeouts.Cursor,
            "tcp_user_timeout": _SILENCE_MS,
            **{f"keepalives_{name}": seconds for name, seconds in _KEEPALIVES.items()},
        },
    )

    @sa_event.listens_for(engine, "connect")
    def _set_up(connection: pg_timeouts.Connection, entry: ConnectionPoolEntry) -> None:
        connection.patience = patience
        entry.info["opened"] = time.monotonic()

    @sa_event.listens_for(engine, "checkout")
    def _check(_connection: pg_timeouts.Connection, entry: ConnectionPoolEntry, _face: Any) -> None:
        if pg_timeouts.opened_before_last_timeout(entry.info["opened"]):
            raise sa.exc.DisconnectionError  # the pool replaces the connection

    return engine


def _options_of(url: sa.URL) -> tuple[str, ...]:
    """Return the URL's own options, such as the `search_path`."""
    given = url.query.get("options", ())
    return (given,) if isinstance(given, str) else given
