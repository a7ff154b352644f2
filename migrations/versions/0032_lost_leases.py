"""Cursors: how many leases of a partition in a row were lost, because their holders were killed or hung."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cursors", sa.Column("lost_leases", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    op.drop_column("cursors", "lost_leases")
