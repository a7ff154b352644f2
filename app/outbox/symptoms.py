"""Find what a person should know of: odd names and keys among the newest events, and what slows the appends down.

An append updates the head of the log and its targets' counters. PostgreSQL keeps each version of a row that the oldest
snapshot might read, and finds the newest only behind all of them: after 20,000 appends under an open snapshot an update
of the head reads 270 pages instead of 4. Other databases change the row in place.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import orjson
import sqlalchemy as sa

from app.events.buckets import arn_account
from app.events.frontends.frontend import find
from app.events.frontends.registry import is_own
from app.events.frontends.s3_records import GUESSED
from app.events.names import KNOWN
from app.events.own_events import TEST_EVENT
from app.outbox import log_head, tables

NEWEST = 10_000  # events that are looked at: the log has no index by name or origin
READ = 1000  # of them, those whose records are read
_MAX_READ_CHARACTERS = 16_384


class GuessedKeys(NamedTuple):
    """How many events have a key that can be read in two ways, and the id of the newest of them."""

    events: int
    newest_id: str


class SharedName(NamedTuple):
    """By what events of one bucket's name differ: the tenants of their ARNs, "" among them, and MinIO's deployments."""

    tenants: set[str]
    deployments: set[str]


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


def shared_names(connection: sa.Connection) -> Mapping[str, SharedName]:
    """Return the buckets without a tenant whose events, among the log's `READ` newest, are of several senders.

    Long records are left out.
    """
    e = tables.events.c
    newest = (*_newest(connection, READ), sa.func.length(e.record) < _MAX_READ_CHARACTERS)
    found = defaultdict[str, SharedName](lambda: SharedName(set(), set()))
    for bucket, text in connection.execute(sa.select(e.bucket, e.record).where(*newest, e.bucket.not_like("%:%"))):
        record = orjson.loads(text)
        if not isinstance(record, dict) or is_own(record):
            continue
        if arn := find(record, "s3", "bucket", "arn"):
            found[bucket].tenants.add(arn_account(arn))
        if isinstance(deployment := find(record, "responseElements", "x-minio-deployment-id"), str):
            found[bucket].deployments.add(deployment)
    return {bucket: one for bucket, one in sorted(found.items()) if len(one.tenants) > 1 or len(one.deployments) > 1}


def _newest(connection: sa.Connection, count: int = NEWEST) -> tuple[sa.ColumnElement[bool], ...]:
    e, head = tables.events.c, log_head.read(connection)
    return e.partition.in_(range(head.partitions)), e.seq > head.last_seq - count


# Both are in this database: a snapshot in another one keeps no version here. What a role may not see of other roles'
# sessions (without pg_monitor) is NULL.
_HOLDERS = """
    SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - xact_start) * 1000 AS BIGINT) AS age,
        format('session %%s of %%s (%%s)', pid, usename, coalesce(nullif(application_name, ''), 'without a name'))
            AS holder
    FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
        AND coalesce(backend_xmin, backend_xid) IS NOT NULL AND xact_start IS NOT NULL
    UNION ALL
    SELECT CAST(EXTRACT(EPOCH FROM clock_timestamp() - prepared) * 1000 AS BIGINT),
        format('prepared transaction %%s of %%s', gid, owner)
    FROM pg_prepared_xacts WHERE database = current_database()
    ORDER BY 1 DESC LIMIT 1
"""
_OLD_VERSIONS = """
    SELECT coalesce(max(pg_stat_get_dead_tuples(relation)), 0)
    FROM unnest(ARRAY['log_head'::regclass, 'targets'::regclass]) AS updated (relation)
"""


@dataclass(frozen=True, slots=True)
class OldSnapshots:
    """The age of the oldest open transaction of other sessions (ms; 0: there is none), and who has it.

    `old_versions` are those of the log's head or of the targets, whichever has more. They show a holder that this role
    may not see, or that has no age: a replication slot, a standby with `hot_standby_feedback`.
    """

    age: int
    holder: str
    old_versions: int


def read_old_snapshots(connection: sa.Connection) -> OldSnapshots | None:
    """Return what keeps old versions of rows; None on a database that updates rows in place."""
    if connection.dialect.name != "postgresql":
        return None
    oldest = connection.exec_driver_sql(_HOLDERS).first()
    old_versions = int(connection.exec_driver_sql(_OLD_VERSIONS).scalar_one())
    if oldest is None:
        return OldSnapshots(0, "", old_versions)
    return OldSnapshots(max(0, oldest.age), oldest.holder, old_versions)
