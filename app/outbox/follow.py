"""Follow the log: the events behind a place, in the order in which they were recorded."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from app.outbox import models as m
from app.outbox.database import Database

_e = m.events.c
_END = sa.select(m.log_head.c.last_seq, m.log_head.c.lanes)
_BEHIND = (
    sa.select(_e.seq, _e.id, _e.received_at, _e.name, _e.bucket, _e.key, _e.record)
    .where(
        _e.lane.in_(sa.bindparam("lanes", expanding=True)),  # for the table's key, which begins with it
        _e.seq > sa.bindparam("after"),
        _e.seq <= sa.bindparam("last"),
    )
    .order_by(_e.seq)
    .limit(sa.bindparam("limit"))
)
_SINCE = sa.select(sa.func.min(_e.seq)).where(_e.received_at >= sa.bindparam("since"))


class Follower:
    """A place in the log that moves on as it is read. An event is never passed over: commit order is seq order."""

    def __init__(self, database: Database, since: int = 0) -> None:
        """Begin at the log's end, or at the first event received at `since` or later (milliseconds since 1970)."""
        self._database = database
        with database.reading() as connection:
            self.after: int = connection.execute(_END).one().last_seq
            if since:
                first = connection.execute(_SINCE, {"since": since}).scalar_one()
                self.after = self.after if first is None else first - 1

    def read(self, limit: int = 1000) -> Sequence[Any]:
        """The next events, none where there are no more yet: seq, id, received_at, name, bucket, key, record."""
        with self._database.reading() as connection:
            head = connection.execute(_END).one()
            if head.last_seq <= self.after:
                return ()
            wanted = {"lanes": list(range(head.lanes)), "after": self.after, "last": head.last_seq, "limit": limit}
            found: Sequence[Any] = connection.execute(_BEHIND, wanted).all()
        self.after = found[-1].seq if len(found) == limit else head.last_seq
        return found
