"""Which keys a run compares: those below a prefix."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reconciliations", sa.Column("prefix", sa.String(1024), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("reconciliations", "prefix")
