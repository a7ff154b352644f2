"""The settings of PostgreSQL (reference §4.10)."""

from collections.abc import Iterator

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HostName
from app.config.fields.field_types import Number, Text
from app.config.fields.fields import declared, setting
from app.config.targets.base import NamespaceSettings
from app.config.targets.postgresql_dsn import (
    ConnectionString,
    PostgresTable,
    check_parameters,
    connection_string,
    host_files,
    identifier,
    is_url,
    parameters,
    time_limits,
)


@declared
class PostgresSettings(
    NamespaceSettings,
    type_name="postgresql",
    short="postgres",
    title="PostgreSQL",
    example={"connection_string": "host=postgresql user=me dbname=events", "table": "bucketobjects"},
):
    """PostgreSQL (reference §4.10). The keys of before 2020 (`host`, `port`, …) extend the connection string."""

    connection_string: str = setting(
        ConnectionString(),
        default="",
        about="libpq keywords or a postgresql:// URL, shown without its password; this or host",
        of_host=True,
    )
    table: str = setting(PostgresTable(), about="the table, created if missing; without a schema")
    max_open_connections: int = setting(
        Number(0, 10_000),
        default="2",
        about="accepted for compatibility with MinIO, without effect: a worker process has one connection",
    )
    host: str = setting(HostName(), default="", about="server, if not in connection_string")
    port: int = setting(
        Number(0, 65535), default="0", about="port of the server; 0 means the port in connection_string, or 5432"
    )
    username: str = setting(Text(), default="", aliases=("user",), about="database user")
    password: str = setting(Text(), default="", secret=True, about="database password")
    database: str = setting(Text(), default="", about="database name")

    @property
    def dsn(self) -> str:
        """libpq's connection string; it may contain a password."""
        parts = self._parts()
        if is_url(self.connection_string) or not parts:
            return self.connection_string
        return connection_string(parameters(self.connection_string) | parts)

    @property
    def table_name(self) -> str:
        """The table's name as in PostgreSQL's catalogue, to be quoted wherever it is used."""
        return identifier(self.table)

    def host_files(self) -> Iterator[tuple[str, str]]:
        yield from super().host_files()
        if self.dsn:
            yield from (("connection_string", name) for name in host_files(self.dsn))

    def time_limits(self) -> Iterator[tuple[str, float]]:
        yield from super().time_limits()
        yield from (("connection_string", seconds) for seconds in time_limits(self.dsn, self.timeout))

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        parts = self._parts()
        if not self.connection_string and not self.host:
            yield Problem(
                "connection_string", "", "is required", 'such as "host=db user=me dbname=events", or set host'
            )
        try:
            check_parameters(parts)
        except BadValue as error:
            yield Problem("host", "", error.problem, error.hint)
        if is_url(self.connection_string) and parts:
            first = {"user": "username", "dbname": "database"}.get(next(iter(parts)), next(iter(parts)))
            yield Problem(first, "", "cannot be added to a URL", "write it into connection_string")

    def _parts(self) -> dict[str, str]:
        port = str(self.port) if self.port else ""
        parts = {"host": self.host, "port": port, "user": self.username, "password": self.password}
        return {name: text for name, text in (parts | {"dbname": self.database}).items() if text}
