"""Which keys a run compares: those below a prefix, or those of events since a position of the log."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reconciliations", sa.Column("prefix", sa.String(1024), nullable=False, server_default=""))
    op.add_column("reconciliations", sa.Column("since", sa.BigInteger(), nullable=True))
    op.add_column("reconciliations", sa.Column("position", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    for name in ("position", "since", "prefix"):
        op.drop_column("reconciliations", name)
