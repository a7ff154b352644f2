"""A target with neither `queue_dir` nor `queue_limit` has no limit; those stored so far had 100,000."""

import json

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

DEFAULT, NO_LIMIT = 100_000, 1 << 62

targets = sa.table(
    "targets", sa.column("id", sa.Integer), sa.column("settings", sa.Text), sa.column("queue_limit", sa.BigInteger)
)
log_head = sa.table("log_head", sa.column("version", sa.BigInteger))


def upgrade() -> None:
    connection = op.get_bind()
    rows = connection.execute(sa.select(targets).where(targets.c.queue_limit == DEFAULT)).all()
    free = [row.id for row in rows if not _has_limit(row.settings)]
    if free:
        # The version first: it is the lock of all who record events, and tells them to read the limits again.
        connection.execute(log_head.update().values(version=log_head.c.version + 1))
        connection.execute(targets.update().where(targets.c.id.in_(free)).values(queue_limit=NO_LIMIT))


def downgrade() -> None:
    connection = op.get_bind()
    connection.execute(log_head.update().values(version=log_head.c.version + 1))
    connection.execute(targets.update().where(targets.c.queue_limit >= NO_LIMIT).values(queue_limit=DEFAULT))


def _has_limit(settings: str) -> bool:
    """Whether the settings name a limit. They are texts by name; an alias of a name is not stored."""
    found = json.loads(settings)
    return bool(found.get("queue_dir", "").strip()) or bool(found.get("queue_limit", "").strip(" +0"))
