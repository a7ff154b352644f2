"""Run migrations on the connection that `app.outbox.engine.migration` hands over; alembic's own CLI on the configured
one.
"""

import os

from alembic import context

from app.config.settings import Settings
from app.outbox.engine.database import Database
from app.outbox.tables import metadata

config = context.config
given = config.attributes.get("connection")

if given is not None:
    context.configure(connection=given, target_metadata=metadata, transaction_per_migration=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    database = Database(Settings.from_environ(os.environ).database_url, patience=None)
    with database.engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
        with context.begin_transaction():
            context.run_migrations()
    database.close()
