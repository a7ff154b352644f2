"""The numbers of a reconciliation as JSON, so that a new kind of drift needs no column."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The columns of the numbers stay: the version before writes them, and its runs have nothing else.
    op.add_column("reconciliations", sa.Column("counts", sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column("reconciliations", "counts")
