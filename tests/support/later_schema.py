"""The schema of a later version, which this code does not know: what a rolled-back service finds."""

from __future__ import annotations

import sqlalchemy as sa

from app.outbox import tables
from app.outbox.engine.database import Database
from app.outbox.schema_version import OLDEST_CODE

LATER = "9999"


def migrate_further(database: Database, *, oldest_code: str = "") -> None:
    """Add to each table a column that may be null and one with a default, an index, and a table of its own.

    With `oldest_code` the revision whose code is needed at least is stored, as by a migration that does more than add.
    """
    statements = [
        f"ALTER TABLE {table.name} ADD COLUMN {column}"
        for table in tables.metadata.sorted_tables
        for column in ("later_text VARCHAR(20)", "later_number INTEGER DEFAULT 7 NOT NULL")
    ]
    statements += [
        "CREATE INDEX ix_later ON targets (later_number)",
        "CREATE TABLE later_things (id INTEGER PRIMARY KEY)",
        f"UPDATE alembic_version SET version_num = '{LATER}'",
    ]
    if oldest_code:
        statements.append(f"INSERT INTO service_settings (name, value) VALUES ('{OLDEST_CODE}', '{oldest_code}')")
    for statement in statements:  # each by itself: together they would wait for what others hold who wait for them
        with database.writing() as connection:
            connection.execute(sa.text(statement))
