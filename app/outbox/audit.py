"""The audit log: who changed what, when and from where. A change and its entry are one transaction.

The one who acts is known to the caller's context (`acting`), not passed from function to function: every change is
recorded, also one that a future caller makes. Entries are only added, except that an operation in several transactions
completes its own; `purge` removes those older than the retention.
"""

import getpass
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import orjson
import sqlalchemy as sa

from app.outbox import tables
from app.outbox.column_values import NEVER
from app.outbox.engine.clock import now_column
from app.outbox.engine.database import Database, inserted_id
from app.outbox.engine.many_rows import after_deadlocks, write_alone
from app.outbox.policies import AUDIT
from app.resources.service import ACTIONS


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts: `token:NAME`, `key:NAME` (an S3 key), `local` (no token exists yet), `user:NAME@HOST` or a person.

    A person is `openid:ISSUER#SUBJECT (NAME)`.

    `address` is that of the client of a request, "" for a command; `via` is the route or the command, without any
    argument; `operation` is the same for all entries of one request or command.
    """

    name: str
    address: str = ""
    via: str = ""
    operation: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class Entry:
    """One change. `at` is milliseconds since 1970, by the database's clock; `details` depend on the action."""

    entry_id: int
    at: int
    actor: Actor
    action: str
    resource: str
    details: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which entries to read; empty = any. `actions` are names of `ACTIONS`, times ms in [since, before)."""

    since: int = 0
    before: int = NEVER
    actor: str = ""
    actions: Sequence[str] = ()
    resource: str = ""


_acting: ContextVar[Actor | None] = ContextVar("bucketwire_actor", default=None)


@contextmanager
def acting(actor: Actor) -> Iterator[None]:
    """Attribute the changes that this thread makes within the block to `actor`."""
    before = _acting.set(actor)
    try:
        yield
    finally:
        _acting.reset(before)


def operating_system_actor(via: str = "") -> Actor:
    """Return the user of this process on this host, who acts where nobody else is known to."""
    return Actor(_user_at_host(), via=via)


@lru_cache(maxsize=1)
def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user need not have a name
        user = str(os.getuid())
    return f"user:{user}@{socket.gethostname()}"


def record(connection: sa.Connection, action: str, resource: str, details: Mapping[str, Any] | None = None) -> int:
    """Add an entry in the transaction of the change, and return its number.

    `resource` is `kind:name`. `details` must contain no secret; long texts and lists in them are shortened.
    """
    return inserted_id(connection.execute(_insert(connection), _row(_actor(), action, resource, details)))


def record_alone(database: Database, action: str, resource: str, details: Mapping[str, Any]) -> None:
    """Add an entry as `record`, in a transaction of its own: for what is done elsewhere than in the outbox."""
    write_alone(database, lambda connection: record(connection, action, resource, details))


def record_all(connection: sa.Connection, action: str, changes: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Add an entry for each resource and its details, all by one statement: the transaction may lock the log."""
    if changes:
        actor = _actor()
        rows = [_row(actor, action, resource, details) for resource, details in changes]
        connection.execute(_insert(connection), rows)


class CountedOperation:
    """One entry for an operation in several transactions, with the number of rows that it has changed so far.

    Each transaction brings the entry up to date, so it is right also if the operation ends before its last one.
    """

    def __init__(self, action: str, resource: str, verb: str, facts: Mapping[str, Any]) -> None:
        self.total = 0
        self._action = action
        self._resource = resource
        self._verb = verb
        self._facts = facts
        self._entry = 0

    def add(self, database: Database, change: Callable[..., int], *arguments: object) -> None:
        """Make a change, given a connection and these, in a transaction of its own; count the rows that it returns."""

        def transaction() -> tuple[int, int]:
            with database.writing() as connection:
                number = change(connection, *arguments)
                return number, self._record(connection, number)

        number, self._entry = after_deadlocks(database, transaction)
        self.total += number

    def _record(self, connection: sa.Connection, number: int) -> int:
        """Bring the entry up to date, if `number` more rows are any; return its id, 0 if there is none yet."""
        details = {self._verb: self.total + number, **self._facts}
        if number and self._entry:
            a = tables.audit.c
            connection.execute(tables.audit.update().where(a.id == self._entry).values(details=_as_text(details)))
        return self._entry or (record(connection, self._action, self._resource, details) if number else 0)


def entries(database: Database, which: AuditFilter, *, limit: int, after: int = 0) -> list[Entry]:
    """Return up to `limit` entries, newest first; with `after`, those older than the entry of this number."""
    a = tables.audit.c
    query = sa.select(tables.audit).order_by(a.id.desc()).limit(limit)
    if after:
        query = query.where(a.id < after)
    if which.since:
        query = query.where(a.at >= which.since)
    if which.before < NEVER:
        query = query.where(a.at < which.before)
    if which.actor:
        # A person's entries are found by issuer and subject, whatever the person was called.
        named = a.actor.startswith(f"{which.actor} (", autoescape=True)
        query = query.where(sa.or_(a.actor == which.actor, named if which.actor.startswith("openid:") else sa.false()))
    if which.actions:
        query = query.where(a.action.in_(which.actions))
    if which.resource:
        query = query.where(a.resource == _short(which.resource))
    with database.reading() as connection:
        return [_entry(row) for row in connection.execute(query)]


def actions_of(word: str) -> tuple[str, ...]:
    """Return the actions that an action's name or a kind means; none if it is neither."""
    return tuple(action for action in ACTIONS if word in (action, action.partition(".")[0]))


def purge(database: Database, older_than: int) -> int:
    """Remove entries from before `older_than` (ms), a bounded number of them; return how many."""
    a = tables.audit.c
    old = sa.select(a.id).where(a.at < older_than).order_by(a.at).limit(AUDIT.batch_purged)
    with database.reading() as connection:
        ids = list(connection.execute(old).scalars())
    if not ids:
        return 0
    with database.writing() as connection:
        return int(connection.execute(tables.audit.delete().where(a.id.in_(ids))).rowcount)


def _actor() -> Actor:
    return _acting.get() or operating_system_actor()


def _insert(connection: sa.Connection) -> sa.Insert:
    return tables.audit.insert().values(at=now_column(connection))


def _row(actor: Actor, action: str, resource: str, details: Mapping[str, Any] | None) -> dict[str, Any]:
    return {
        "actor": _short(actor.name),
        "address": _short(actor.address),
        "via": _short(actor.via),
        "operation": actor.operation,
        "action": action,
        "resource": _short(resource),
        "details": _as_text(details or {}),
    }


def _entry(row: Any) -> Entry:
    actor = Actor(row.actor, row.address, row.via, row.operation)
    return Entry(row.id, row.at, actor, row.action, row.resource, orjson.loads(row.details))


def _short(text: str) -> str:
    return "".join(char if char.isprintable() else "\ufffd" for char in text[: AUDIT.max_column_characters])


def _as_text(details: Mapping[str, Any]) -> str:
    return orjson.dumps(_storable(details)).decode()


def _storable(value: Any) -> Any:
    """Shorten what is long, and replace what no database stores, so that no value can refuse the change itself."""
    match value:
        case str():
            text = value if len(value) <= AUDIT.max_item_characters else value[: AUDIT.max_item_characters] + "…"
            return text.encode(errors="replace").decode()
        case Mapping():
            return {key: _storable(item) for key, item in value.items()}
        case list() | tuple():
            items = [_storable(item) for item in value[: AUDIT.max_items]]
            return [*items, f"… and {len(value) - AUDIT.max_items} more"] if len(value) > AUDIT.max_items else items
        case _:
            return value
