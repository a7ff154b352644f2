"""What the processes of the service serve, and since when not."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    long_text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
    op.add_column("workers", sa.Column("refused", long_text))
    op.add_column("workers", sa.Column("address", sa.String(255)))
    op.add_column("workers", sa.Column("problem", sa.Text()))
    op.add_column("workers", sa.Column("served_at", sa.BigInteger()))
    op.add_column("workers", sa.Column("ended_at", sa.BigInteger()))


def downgrade() -> None:
    for name in ("ended_at", "served_at", "problem", "address", "refused"):
        op.drop_column("workers", name)
