"""When a target last confirmed an event, and when it refused a parked one. Nullable: older code writes neither."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("cursors", sa.Column("delivered_at", sa.BigInteger(), nullable=True))
    op.add_column("parked", sa.Column("refused_at", sa.BigInteger(), nullable=True))
    op.create_index("ix_parked_target_id_refused_at", "parked", ["target_id", "refused_at"])


def downgrade() -> None:
    op.drop_index("ix_parked_target_id_refused_at", "parked")
    op.drop_column("parked", "refused_at")
    op.drop_column("cursors", "delivered_at")
