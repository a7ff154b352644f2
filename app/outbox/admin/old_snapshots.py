"""Find what keeps PostgreSQL from removing old versions of the rows that each append updates.

An append updates the head of the log and its targets' counters. PostgreSQL keeps each version of a row that the oldest
snapshot might read, and finds the newest only behind all of them: after 20,000 appends under an open snapshot an update
of the head reads 270 pages instead of 4. Other databases change the row in place.
"""

from dataclasses import dataclass

import sqlalchemy as sa

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
