"""How many rows MySQL or MariaDB has read."""

from __future__ import annotations

import sqlalchemy as sa


def rows_read(connection: sa.Connection) -> int:
    """Of tables and indexes, in this session until now."""
    status = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'")
    return sum(int(value) for _, value in status)
