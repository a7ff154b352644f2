"""Find names that are not known among the newest events of the log, so that somebody learns of them."""

from collections.abc import Mapping

import sqlalchemy as sa

from app.events.names import KNOWN
from app.events.test_events import NAME as TEST_EVENT
from app.outbox import log_head, tables

NEWEST = 10_000  # events that are looked at: the log has no index by name


def unknown_names(connection: sa.Connection) -> Mapping[str, int]:
    """Return the names that are not known, among the log's `NEWEST` events, with how many events have each."""
    e, head = tables.events.c, log_head.read(connection)
    newest = sa.select(e.name, sa.func.count()).where(
        e.partition.in_(range(head.partitions)), e.seq > head.last_seq - NEWEST, e.name.not_in(sorted(KNOWN))
    )
    rows = connection.execute(newest.group_by(e.name).order_by(sa.func.count().desc(), e.name))
    return {name: count for name, count in rows if name != TEST_EVENT}
