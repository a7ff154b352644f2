"""Until when the certificates are valid that targets, sources and APIs meet and use."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0028"
down_revision = "0024"
branch_labels = None
depends_on = None

_long_text = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")


def upgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        # First, as every append does: else an append and the migration wait for each other, and one of them fails.
        op.execute("LOCK TABLE log_head IN ACCESS EXCLUSIVE MODE")
    op.add_column("targets", sa.Column("certificates", _long_text))
    op.add_column("sources", sa.Column("certificates", _long_text))
    op.add_column("workers", sa.Column("certificate_ends_at", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("workers", "certificate_ends_at")
    op.drop_column("sources", "certificates")
    op.drop_column("targets", "certificates")
