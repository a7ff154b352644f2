"""The buckets that are known: those that had events, and those that were created over the S3 face."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def upgrade() -> None:
    op.create_table(
        "buckets",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_buckets"),
        **MYSQL,
    )
    op.execute("INSERT INTO buckets (name, created_at) SELECT bucket, min(received_at) FROM events GROUP BY bucket")


def downgrade() -> None:
    op.drop_table("buckets")
