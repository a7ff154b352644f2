"""When a token was used last."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("used_at", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("tokens", "used_at")
