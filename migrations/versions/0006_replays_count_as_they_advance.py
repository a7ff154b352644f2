"""Replays count their events as they advance; the log's tail has a lock of its own."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def upgrade() -> None:
    op.add_column("cursors", sa.Column("begins_after", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("cursors", sa.Column("replayed", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("parked", sa.Column("replayed", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_parked_target_id_replayed", "parked", ["target_id", "replayed"])
    tail = op.create_table(
        "log_tail",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_tail"),
        **MYSQL,
    )
    op.bulk_insert(tail, [{"id": 1}])


def downgrade() -> None:
    op.drop_table("log_tail")
    op.drop_index("ix_parked_target_id_replayed", "parked")
    op.drop_column("parked", "replayed")
    op.drop_column("cursors", "replayed")
    op.drop_column("cursors", "begins_after")
