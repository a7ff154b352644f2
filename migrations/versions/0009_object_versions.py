"""What a mirror knows of versioned keys, and how far each partition's events are folded into it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def upgrade() -> None:
    op.add_column("cursors", sa.Column("folded", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "object_versions",
        sa.Column("target_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("partition", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("object", sa.String(length=32), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("sequencer", sa.String(length=64), nullable=True),
        sa.Column("tie", sa.SmallInteger(), nullable=False),
        sa.Column("placed", sa.BigInteger(), nullable=False),
        sa.Column("is_object", sa.Boolean(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("trimmed", sa.Boolean(), nullable=False),
        sa.Column("record", sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb"), nullable=True),
        sa.PrimaryKeyConstraint("target_id", "partition", "id", name="pk_object_versions"),
        **MYSQL,
    )
    op.create_index(
        "ix_object_versions_layer",
        "object_versions",
        ["target_id", "partition", "object", "sequencer", "tie", "placed"],
    )
    op.create_index("ix_object_versions_partition_seq", "object_versions", ["partition", "seq"])


def downgrade() -> None:
    op.drop_table("object_versions")
    op.drop_column("cursors", "folded")
