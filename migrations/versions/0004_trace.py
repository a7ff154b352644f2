"""The trace context that an event came with. Nullable: code from before this migration inserts rows without it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("events", sa.Column("trace", sa.String(length=600), nullable=True))


def downgrade() -> None:
    op.drop_column("events", "trace")
