"""Objects whose newest state is delivered again, because a worker may have written to a target without its lease."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def upgrade() -> None:
    op.create_table(
        "redeliveries",
        sa.Column("target_id", sa.Integer(), nullable=False),
        sa.Column("partition", sa.SmallInteger(), nullable=False),
        sa.Column("key_hash", sa.BigInteger(), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["target_id"], ["targets.id"], name="fk_redeliveries_target_id_targets"),
        sa.PrimaryKeyConstraint("target_id", "partition", "key_hash", name="pk_redeliveries"),
        **MYSQL,
    )


def downgrade() -> None:
    op.drop_table("redeliveries")
