"""The audit log shows no more of a webhook's address than its host, as it does of a new entry."""

import json
import re

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

BATCH_ENTRIES = 500
_ADDRESS = re.compile(r"([-+] endpoint=[A-Za-z]+://)(?:[^/?#]*@)?([^/?#]*)[/?#].+", re.DOTALL)

_audit = sa.table("audit", sa.column("id", sa.BigInteger), sa.column("resource"), sa.column("details"))


def upgrade() -> None:
    connection = op.get_bind()
    entries = sa.select(_audit.c.id, _audit.c.details).order_by(_audit.c.id).limit(BATCH_ENTRIES)
    entries = entries.where(_audit.c.resource.like("target:webhook:%"), _audit.c.details.like("% endpoint=%"))
    last = 0
    while rows := connection.execute(entries.where(_audit.c.id > last)).all():
        for entry_id, details in rows:
            last = entry_id
            if (shortened := _shorten(details)) != details:
                connection.execute(sa.update(_audit).where(_audit.c.id == entry_id).values(details=shortened))


def _shorten(details: str) -> str:
    facts = json.loads(details)
    lines = facts.get("settings")
    if not isinstance(lines, list):
        return details
    facts["settings"] = [_ADDRESS.sub(r"\1\2/*redacted*", line) if isinstance(line, str) else line for line in lines]
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":"))


def downgrade() -> None:
    """What was shortened stays so."""
