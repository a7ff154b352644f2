"""When the certificates are valid that an API presents, and those of the servers that it connects to."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("certificates", sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")))


def downgrade() -> None:
    op.drop_column("workers", "certificates")
