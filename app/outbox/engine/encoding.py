"""Check that the outbox database can hold every text."""

import sqlalchemy as sa

from app.config.errors import BadSettings, Problem

_NEEDED = "UTF8"


def encoding_problem(connection: sa.Connection) -> Problem | None:
    """Return the problem of a PostgreSQL database in another encoding than UTF-8; other databases have none.

    The tables of MySQL and MariaDB are created with an encoding of their own.
    """
    if connection.dialect.name != "postgresql":
        return None
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding == _NEEDED:
        return None
    return Problem(
        "BUCKETWIRE_DATABASE_URL",
        connection.engine.url.database or "",
        f"is a database in {encoding}, which cannot hold every key",
        "create one with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0",
    )


def check_encoding(connection: sa.Connection) -> None:
    """Raise `BadSettings` if the database cannot hold every text."""
    problem = encoding_problem(connection)
    if problem is not None:
        raise BadSettings([problem])
