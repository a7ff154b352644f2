"""When events were last discarded and up to which an operator knows of them, and what came of what runs by time."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_MYSQL = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin", "mysql_engine": "InnoDB"}


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        # First, as every append does: else an append and the migration wait for each other, and one of them fails.
        op.execute("LOCK TABLE log_head IN ACCESS EXCLUSIVE MODE")
    op.add_column("targets", sa.Column("discarded_at", sa.BigInteger()))
    op.add_column("targets", sa.Column("acknowledged", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "upkeep",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("succeeded_at", sa.BigInteger(), nullable=False),
        sa.Column("failed_at", sa.BigInteger(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_upkeep"),
        **_MYSQL,
    )


def downgrade() -> None:
    op.drop_table("upkeep")
    op.drop_column("targets", "acknowledged")
    op.drop_column("targets", "discarded_at")
