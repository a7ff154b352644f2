"""Store settings of the whole service: those of MinIO's section `api`."""

from collections.abc import Mapping

import sqlalchemy as sa

from app.outbox import log_head, tables
from app.outbox.schema.schema_version import OLDEST_CODE

_S = tables.service_settings.c


def read_api_settings(connection: sa.Connection) -> dict[str, str]:
    """Return the stored texts of the section `api`; none for a key that is not set."""
    query = sa.select(_S.name, _S.value).where(_S.name != OLDEST_CODE)
    return {row.name: row.value for row in connection.execute(query)}


def write_api_settings(connection: sa.Connection, texts: Mapping[str, str]) -> None:
    """Set these keys; an empty text removes one. Two writers at once wait for each other."""
    log_head.lock(connection)
    connection.execute(tables.service_settings.delete().where(_S.name.in_(list(texts))))
    rows = [{"name": name, "value": text} for name, text in texts.items() if text]
    if rows:
        connection.execute(tables.service_settings.insert(), rows)
