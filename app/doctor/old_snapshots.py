"""The check for a transaction that stays open on PostgreSQL, while which each append becomes slower."""

from collections.abc import Iterator

from app.doctor import Finding
from app.logs import clause
from app.outbox.admin.old_snapshots import OldSnapshots, read_old_snapshots
from app.outbox.engine.database import Database
from app.quantities import count_noun, format_seconds

_MAX_AGE = 60_000  # ms; a longer transaction is none of the service, but for an audit of a very long backlog
_MAX_OLD_VERSIONS = 10_000  # in which the update of a row takes about twice as long


def check_old_snapshots(database: Database) -> Iterator[Finding]:
    """Yield a warning if a transaction is open for long, or old versions of rows are kept for another reason."""
    with database.reading() as connection:
        state = read_old_snapshots(connection)
    if state is not None and (state.age > _MAX_AGE or state.old_versions > _MAX_OLD_VERSIONS):
        yield Finding("database", "warning", _describe(state))


def _describe(state: OldSnapshots) -> str:
    kept = f"{count_noun(state.old_versions, 'old version')} of a row that each append updates"
    slower = "which makes each append slower"
    if state.age > _MAX_AGE:
        since = format_seconds(state.age / 1000)
        return (
            f"a transaction is open for {since}: {clause(state.holder)}; PostgreSQL keeps {kept}, {slower}: end it, "
            "and back up by `pg_basebackup` or from a standby"
        )
    return (
        f"PostgreSQL keeps {kept}, {slower}: look for an old transaction in pg_stat_activity, a replication slot with "
        "an xmin, a standby with hot_standby_feedback, or an autovacuum that does not run"
    )
