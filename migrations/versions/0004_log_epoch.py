"""The epoch of the event log, so that a seq is not taken for that of another event after a restore or a failover."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

LOG_TIMELINE = """
CREATE FUNCTION log_timeline() RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
EXCEPTION WHEN feature_not_supported OR insufficient_privilege OR undefined_function THEN
    RETURN '';
END
$$
"""


def upgrade() -> None:
    op.add_column("log_head", sa.Column("epoch", sa.CHAR(length=32), nullable=False, server_default=""))
    op.add_column("log_head", sa.Column("timeline", sa.CHAR(length=8), nullable=False, server_default=""))
    epoch = sa.text("UPDATE log_head SET epoch = :epoch").bindparams(epoch=secrets.token_hex(16))
    op.execute(epoch)
    if op.get_bind().dialect.name == "postgresql":
        op.execute(LOG_TIMELINE)
        op.execute("UPDATE log_head SET timeline = log_timeline()")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION log_timeline()")
    op.drop_column("log_head", "timeline")
    op.drop_column("log_head", "epoch")
