"""Sources: what a worker pulls events from, their positions, and the messages that had no valid events."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}
_long_text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_long_blob = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "sources",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("settings", _long_text, nullable=False),
        sa.Column("origin", sa.String(16), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("lease_token", sa.String(64), nullable=False),
        sa.Column("leased_until", sa.BigInteger(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("resume_at", sa.BigInteger(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("error_at", sa.BigInteger(), nullable=False),
        sa.Column("notice", sa.Text(), nullable=False),
        sa.Column("notice_at", sa.BigInteger(), nullable=False),
        sa.Column("pulled_at", sa.BigInteger(), nullable=False),
        sa.Column("messages", sa.BigInteger(), nullable=False),
        sa.Column("recorded", sa.BigInteger(), nullable=False),
        sa.Column("repeated", sa.BigInteger(), nullable=False),
        sa.Column("rejected", sa.BigInteger(), nullable=False),
        sa.Column("lag", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", name="pk_sources"),
        sa.UniqueConstraint("type", "name", name="uq_sources_type_name"),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_table(
        "source_positions",
        sa.Column("source_id", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("share", sa.String(255), nullable=False),
        sa.Column("position", sa.String(255), nullable=False),
        sa.PrimaryKeyConstraint("source_id", "share", name="pk_source_positions"),
        **_MYSQL,
    )
    op.create_table(
        "rejected_messages",
        sa.Column("id", _big_id, nullable=False),
        sa.Column("source_id", sa.Integer(), nullable=False),
        sa.Column("share", sa.String(255), nullable=False),
        sa.Column("position", sa.String(255), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=False),
        sa.Column("headers", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("body", _long_blob, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_rejected_messages"),
        sqlite_autoincrement=True,
        **_MYSQL,
    )
    op.create_index("ix_rejected_messages_source_id", "rejected_messages", ["source_id"])


def downgrade() -> None:
    for name in ("rejected_messages", "source_positions", "sources"):
        op.drop_table(name)
