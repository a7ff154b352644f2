"""Find among the newest events of the log what a person should know: names and senders that nobody knows."""

from collections.abc import Mapping
from typing import NamedTuple

import sqlalchemy as sa

from app.events.frontends.unknown import GUESSED
from app.events.names import KNOWN
from app.events.test_events import NAME as TEST_EVENT
from app.outbox import log_head, tables

NEWEST = 10_000  # events that are looked at: the log has no index by name or origin


class GuessedKeys(NamedTuple):
    """How many events have a key that can be read in two ways, and the id of the newest of them."""

    events: int
    newest_id: str


def unknown_names(connection: sa.Connection) -> Mapping[str, int]:
    """Return the names that are not known, among the log's `NEWEST` events, with how many events have each."""
    name, count = tables.events.c.name, sa.func.count()
    query = sa.select(name, count).where(*_newest(connection), name.not_in(sorted(KNOWN)))
    rows = connection.execute(query.group_by(name).order_by(count.desc(), name))
    return {unknown: events for unknown, events in rows if unknown != TEST_EVENT}


def guessed_keys(connection: sa.Connection) -> GuessedKeys:
    """Return how many of the log's `NEWEST` events have a key that their sender may have meant otherwise."""
    e = tables.events.c
    guessed = (*_newest(connection), e.origin.contains(f" {GUESSED}"))
    count = connection.execute(sa.select(sa.func.count()).select_from(tables.events).where(*guessed)).scalar_one()
    if not count:
        return GuessedKeys(0, "")
    newest = sa.select(e.id).where(*guessed).order_by(e.seq.desc()).limit(1)
    return GuessedKeys(count, connection.execute(newest).scalar_one())


def _newest(connection: sa.Connection) -> tuple[sa.ColumnElement[bool], ...]:
    e, head = tables.events.c, log_head.read(connection)
    return e.partition.in_(range(head.partitions)), e.seq > head.last_seq - NEWEST
