"""From where in the log an incremental run goes on."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("reconciliations", sa.Column("position", sa.Text))


def downgrade() -> None:
    op.drop_column("reconciliations", "position")
