"""Watched buckets: since when the log keeps events for the next listing again, after it had ceased to."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("watched_buckets", sa.Column("lapsed_at", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("watched_buckets", "lapsed_at")
