"""Watched buckets: how far their listings came, and what is known of them."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
_long_blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_NUMBERS = (
    "began_at", "ended_at", "store_time", "due_at", "seq", "objects", "pending", "listings", "requests", "explained",
    "created", "changed", "removed", "day", "found_on_day", "found_before", "asked",
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "watched_buckets",
        sa.Column("source_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("complete", sa.Boolean(), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in _NUMBERS),
        sa.PrimaryKeyConstraint("source_id", name="pk_watched_buckets"),
        **_MYSQL,
    )
    op.create_table(
        "watched_chunks",
        sa.Column("source_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("number", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("first", sa.LargeBinary(), nullable=False),
        sa.Column("body", _long_blob, nullable=False),
        sa.PrimaryKeyConstraint("source_id", "number", name="pk_watched_chunks"),
        **_MYSQL,
    )


def downgrade() -> None:
    op.drop_table("watched_chunks")
    op.drop_table("watched_buckets")
