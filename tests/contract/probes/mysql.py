"""MySQL and MariaDB, read back over a connection of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pymysql

from app.events.model import Event
from tests import services
from tests.contract.probes.base import Probe, path_of
from tests.support import sample_events
from workers.targets import payloads

DATABASE = "notifications"


class _MySQL(Probe):
    type = "mysql"
    one_request = True
    tls_within_protocol = True
    format: ClassVar[str] = "access"
    can_reject = True
    make: ClassVar[type[services.MySQL]] = services.MySQL

    def __init__(self, server: services.MySQL | None = None) -> None:
        self.server: services.MySQL = server or self.make().start()
        self.table = "bucketevents"
        self.renew()

    def values(self) -> dict[str, str]:
        return {"dsn_string": self.dsn(), "table": self.table, "format": self.format}

    def dsn(self, *parameters: str, user: str = f"{services.USER}:{services.PASSWORD}", port: int = 0) -> str:
        """The DSN of the test's database with these parameters."""
        end = f"?{'&'.join(parameters)}" if parameters else ""
        return f"{user}@tcp({services.LOOPBACK}:{port or self.server.port})/{DATABASE}{end}"

    def at_port(self, port: int) -> dict[str, str]:
        return self.values() | {"dsn_string": self.dsn(port=port)}

    def as_stranger(self) -> dict[str, str]:
        return self.values() | {"dsn_string": self.dsn(user=f"{services.USER}:wrong-s3cret")}

    def by_tls(self, ca: Path) -> dict[str, str]:
        return self.values() | {"dsn_string": self.dsn("tls=true"), "tls_ca": str(ca)}

    def renew(self) -> None:
        if not self.server.running:
            self.server.stop()
            self.server.start()
        with self.server.connection() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {DATABASE} CHARACTER SET utf8mb4")
        self.ask(f"DROP TABLE IF EXISTS `{self.table}`")

    def ask(self, *statements: str) -> list[tuple[Any, ...]]:
        """These statements, each committed; the rows of the last one."""
        with self.server.connection(DATABASE) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def read(self, query: str) -> list[tuple[Any, ...]]:
        """As `ask`; a table that is not there holds nothing."""
        try:
            return self.ask(query)
        except pymysql.ProgrammingError:
            return []

    def poison(self, key: str) -> Event:
        # MySQL takes 100 levels of JSON, MariaDB 32.
        return deep(sample_events.put(key), 150)

    def expected(self, event: Event) -> str:
        return payloads.records(event)

    def same(self, document: str, expected: str) -> bool:
        # MySQL orders members its own way (§4.11).
        return bool(json.loads(document) == json.loads(expected))


def deep(event: Event, levels: int) -> Event:
    """The event, its record holding arrays within arrays."""
    return event._replace(record=f'{event.record[:-1]},"deep":{"[" * levels}{"]" * levels}}}')


class Namespace(_MySQL):
    """A row for each object."""

    format = "namespace"
    is_namespace = True

    def held(self) -> list[tuple[str, str]]:
        return [(key, value) for key, value in self.read(f"SELECT key_name, value FROM `{self.table}`")]


class Access(_MySQL):
    """A row for each event."""

    def held(self) -> list[tuple[str, str]]:
        # The table has no key, so its rows lie in the order in which they came.
        rows = self.read(f"SELECT event_data FROM `{self.table}`")
        return [(path_of(document), document) for (document,) in rows]


class MariaNamespace(Namespace):
    """A row for each object, in MariaDB."""

    make = services.MariaDB


WAYS = {"mysql-namespace": Namespace, "mysql-access": Access}
