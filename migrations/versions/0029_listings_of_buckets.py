"""Watched buckets: whose events the log keeps for the next listing, and which entries of the last one were skipped."""

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("watched_buckets", sa.Column("bucket", sa.String(255), nullable=False, server_default=""))
    op.add_column("watched_buckets", sa.Column("skipped", sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("watched_buckets", "skipped")
    op.drop_column("watched_buckets", "bucket")
