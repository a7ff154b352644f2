"""What streams read of the log: its end, an event's place in it, and the events after a place."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from app.outbox import models as m
from app.outbox.database import Database

_e = m.events.c
_END = sa.select(m.log_head.c.last_seq, m.log_head.c.lanes)
_PLACE = sa.select(_e.seq).where(_e.id == sa.bindparam("event_id"))
_BETWEEN = (
    sa.select(_e.seq, _e.id, _e.name, _e.bucket, _e.key, _e.record)
    .where(
        _e.lane.in_(sa.bindparam("lanes", expanding=True)),  # for the table's key, which begins with it
        _e.seq > sa.bindparam("after"),
        _e.seq <= sa.bindparam("last"),
    )
    .order_by(_e.seq)
)


class End(NamedTuple):
    """How far the log goes, and how many lanes it has."""

    seq: int
    lanes: int


def end(database: Database) -> End:
    """One row of one table."""
    with database.reading() as connection:
        return End(*connection.execute(_END).one())


def place_of(database: Database, event_id: str) -> int | None:
    """The seq of an event, None where the log does not hold it (any more)."""
    with database.reading() as connection:
        found: int | None = connection.execute(_PLACE, {"event_id": event_id}).scalar_one_or_none()
    return found


def events_between(database: Database, lanes: int, after: int, last: int) -> Sequence[Any]:
    """The events behind `after` up to `last`, in their order; so many at most as the one is from the other."""
    with database.reading() as connection:
        wanted = {"lanes": list(range(lanes)), "after": after, "last": last}
        found: Sequence[Any] = connection.execute(_BETWEEN, wanted).all()
    return found
