"""How many attempts at a target have failed since it last accepted an event."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cursors", sa.Column("failed_in_row", sa.Integer()))
    op.add_column("cursors", sa.Column("failed_since", sa.BigInteger()))
    op.add_column("cursors", sa.Column("failed_mark", sa.BigInteger()))
    op.create_index("ix_cursors_failed_in_row", "cursors", ["failed_in_row"])


def downgrade() -> None:
    op.drop_index("ix_cursors_failed_in_row", "cursors")
    op.drop_column("cursors", "failed_mark")
    op.drop_column("cursors", "failed_since")
    op.drop_column("cursors", "failed_in_row")
