"""Filters of a rule, what was noticed last for events about the service, and the progress of a reconciliation."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    op.add_column("rules", sa.Column("filters", LONG_TEXT, nullable=True))
    op.add_column("reconciliations", sa.Column("progress", sa.Text(), nullable=True))
    op.create_table(
        "notices",
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.Column("notified_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", "target_id", name="pk_notices"),
        **MYSQL,
    )


def downgrade() -> None:
    op.drop_table("notices")
    op.drop_column("reconciliations", "progress")
    op.drop_column("rules", "filters")
