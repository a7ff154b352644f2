"""Reconciliations: one row for each comparison of a target with a bucket."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
NUMBERS = (
    "started_at", "alive_until", "finished_at", "objects", "held", "missing", "stale", "orphaned", "malformed",
    "outside", "in_flight", "bad", "repaired",
)  # fmt: skip


def upgrade() -> None:
    op.create_table(
        "reconciliations",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run", sa.CHAR(length=32), nullable=False),
        sa.Column("type", sa.String(length=32), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("bucket", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        *(sa.Column(name, sa.BigInteger(), nullable=False) for name in NUMBERS),
        sa.Column("report", sa.Text(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_reconciliations"),
        sa.UniqueConstraint("run", name="uq_reconciliations_run"),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_index("ix_reconciliations_type_name", "reconciliations", ["type", "name"])


def downgrade() -> None:
    op.drop_index("ix_reconciliations_type_name", "reconciliations")
    op.drop_table("reconciliations")
