"""Room for the ids of any number of targets in an event's row on MySQL and MariaDB, where TEXT has 65,535 bytes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _set_type(mysql.LONGTEXT())


def downgrade() -> None:
    _set_type(sa.Text())


def _set_type(to: sa.types.TypeEngine[str]) -> None:
    if op.get_bind().dialect.name in ("mysql", "mariadb"):
        op.alter_column("events", "targets", type_=to, existing_type=sa.Text(), existing_nullable=False)
