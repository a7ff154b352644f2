"""The console's sessions, so that a copied cookie is worth nothing after the sign-out."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def upgrade() -> None:
    op.create_table(
        "console_sessions",
        sa.Column("id", sa.CHAR(length=64), nullable=False),
        sa.Column("subject", sa.CHAR(length=64), nullable=False),
        sa.Column("ends_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_console_sessions"),
        **MYSQL,
    )
    op.create_index("ix_console_sessions_subject_ends_at", "console_sessions", ["subject", "ends_at"])
    op.create_index("ix_console_sessions_ends_at", "console_sessions", ["ends_at"])


def downgrade() -> None:
    op.drop_table("console_sessions")
