"""When a requested redelivery is due, so that it goes out after a request without an answer can no longer arrive."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("redeliveries", sa.Column("due", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("redeliveries", sa.Column("until", sa.BigInteger(), server_default="0", nullable=False))
    op.create_index("ix_redeliveries_due", "redeliveries", ["due"])


def downgrade() -> None:
    op.drop_index("ix_redeliveries_due", "redeliveries")
    op.drop_column("redeliveries", "until")
    op.drop_column("redeliveries", "due")
