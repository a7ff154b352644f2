"""Run migrations on the connection that `app.outbox.migration` hands over; alembic's own CLI on the configured
one.

MySQL and MariaDB commit each change of the schema by itself. So that a migration that ended between two of them can be
made again, what one has added already is not added again.
"""

import os
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import context
from alembic.ddl.base import AddColumn
from alembic.ddl.mysql import MariaDBImpl, MySQLImpl

from app.config.settings import Settings
from app.outbox.engine.database import Database
from app.outbox.tables import metadata


def _is_made(connection: sa.Connection, construct: Any) -> bool:
    """Return whether what a statement adds is there; of a table, whether it has the same columns."""
    there = sa.inspect(connection)
    if isinstance(construct, sa.schema.CreateTable):
        table = construct.element
        return there.has_table(table.name) and set(table.columns.keys()) == set(_columns(there, table.name))
    if isinstance(construct, AddColumn):
        return construct.column.name in _columns(there, construct.table_name)
    if isinstance(construct, sa.schema.CreateIndex):
        index = construct.element
        return any(each["name"] == index.name for each in there.get_indexes(index.table.name))
    return False


def _columns(there: sa.Inspector, table: str) -> Iterator[str]:
    return (column["name"] for column in there.get_columns(table))


class _Repeatable(MySQLImpl):
    # Alembic takes the last class that names a dialect.
    __dialect__ = "mysql"

    def _exec(self, construct: Any, *args: Any, **kwargs: Any) -> Any:
        if self.connection is not None and _is_made(self.connection, construct):
            return None
        return super()._exec(construct, *args, **kwargs)


class _RepeatableOnMariaDB(_Repeatable, MariaDBImpl):
    __dialect__ = "mariadb"


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
