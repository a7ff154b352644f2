"""How many requests were answered, which were refused, and which tokens were revoked."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def upgrade() -> None:
    op.create_table(
        "request_counts",
        sa.Column("route", sa.String(160), nullable=False),
        sa.Column("status", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("reason", sa.String(40), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("route", "status", "reason", name="pk_request_counts"),
        **_MYSQL,
    )
    op.create_table(
        "refusals",
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("surface", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(40), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("status", sa.SmallInteger(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("first_at", sa.BigInteger(), nullable=False),
        sa.Column("last_at", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("fact", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("minute", "surface", "reason", "actor", name="pk_refusals"),
        **_MYSQL,
    )
    op.create_table(
        "revoked_tokens",
        sa.Column("digest", sa.CHAR(64), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("revoked_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_revoked_tokens"),
        **_MYSQL,
    )
    op.create_index("ix_revoked_tokens_revoked_at", "revoked_tokens", ["revoked_at"])


def downgrade() -> None:
    op.drop_table("revoked_tokens")
    op.drop_table("refusals")
    op.drop_table("request_counts")
