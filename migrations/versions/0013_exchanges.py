"""Requests and answers of attempts that failed."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("exchange", sa.Text()))


def downgrade() -> None:
    op.drop_column("attempts", "exchange")
