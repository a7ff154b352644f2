"""PostgreSQL, read back over a connection of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from psycopg2 import errors, sql

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from workers.targets import payloads


class _Postgres(Probe):
    type = "postgresql"
    opens_of_host = frozenset({".pg_service.conf"})  # libpq looks for what PGSERVICE names, before what it is given
    one_request = True
    tls_within_protocol = True
    format = "access"
    can_reject = True

    def __init__(self) -> None:
        self.server: services.Postgres = services.postgres()
        self.table = "bucketevents"

    def values(self) -> dict[str, str]:
        return {"connection_string": self.server.dsn(), "table": self.table, "format": self.format}

    def at_port(self, port: int) -> dict[str, str]:
        dsn = self.server.dsn().replace(f"port={self.server.port}", f"port={port}")
        return self.values() | {"connection_string": dsn}

    def in_clear(self, port: int) -> dict[str, str]:
        values = self.at_port(port)
        return values | {"connection_string": f"{values['connection_string']} sslmode=disable"}

    def as_stranger(self) -> dict[str, str]:
        dsn = self.server.dsn().replace(f"password={services.PASSWORD}", "password=wrong-s3cret")
        return self.values() | {"connection_string": dsn}

    def by_tls(self, ca: Path) -> dict[str, str]:
        return self.values() | {"connection_string": f"{self.server.dsn()} sslmode=verify-full sslrootcert={ca}"}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        self.ask(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(self.table)))

    def ask(self, query: str | sql.Composable) -> list[tuple[Any, ...]]:
        """One statement, committed; its rows if it has some."""
        with self.server.connection() as connection, connection.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetchall() if cursor.description else []

    def read(self, query: str) -> list[tuple[Any, ...]]:
        """As `ask`; a table that is not there holds nothing."""
        try:
            return self.ask(query)
        except errors.UndefinedTable:
            return []

    def expected(self, event: Event) -> str:
        return payloads.records(event)

    def same(self, document: str, expected: str) -> bool:
        # jsonb orders members its own way (§4.10).
        return bool(json.loads(document) == json.loads(expected))


class Namespace(_Postgres):
    """A row for each object."""

    format = "namespace"
    is_namespace = True

    def held(self) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.read("SELECT key, value::text FROM bucketevents")]


class Access(_Postgres):
    """A row for each event."""

    one_writer = True

    def held(self) -> list[tuple[str, str]]:
        # What one writer appends lies in the order in which it came; a second one leaves pages that are filled later.
        rows = self.read("SELECT event_data::text FROM bucketevents ORDER BY ctid")
        return [(path_of(document), document) for (document,) in rows]


WAYS = {"postgresql-namespace": Namespace, "postgresql-access": Access}
