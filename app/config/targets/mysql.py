"""The settings of MySQL and MariaDB (reference §4.11)."""

import re
from collections.abc import Iterator

from app.config.errors import REDACTED, BadValue, Problem
from app.config.fields.addresses import HostName, check_host, check_is_one_value, hide_typed_secret, shown_address
from app.config.fields.field_types import FieldType, Number, Path, Text
from app.config.fields.fields import declared, setting
from app.config.fields.secret_refs import is_secret_ref
from app.config.targets.base import NamespaceSettings, check_certificate_pair
from app.config.targets.mysql_dsn import MYSQL_PORT, Dsn, check_name, parse_dsn, redacted_dsn

_NAME = r"(?:[\w$]+|`(?:[^`]|``)+`)"


class DsnString(FieldType[str]):
    """A DSN of Go's driver: `user:password@tcp(host:port)/database?tls=true`."""

    label = "Go DSN"
    empty = ""
    holds_secrets = True

    def parse(self, text: str) -> str:
        Text().parse(text)
        parse_dsn(text)
        return text

    def shown(self, text: str) -> str:
        """Return the text without its password; `*redacted*` for what Go's driver reads differently, or not."""
        if not text or is_secret_ref(text):
            return text
        try:
            return redacted_dsn(self.parse(text))
        except BadValue:
            return REDACTED

    def secrets_in(self, value: str) -> Iterator[str]:
        yield parse_dsn(value).password


class MysqlTable(FieldType[str]):
    """A table's name, bare or in backticks; with a database's name and a dot before it if it is in another one."""

    label = "table name"
    empty = ""

    def parse(self, text: str) -> str:
        Text().parse(text)
        if not re.fullmatch(rf"{_NAME}(?:\.{_NAME})?", text):
            raise BadValue(
                "is not a table name",
                "write letters, digits, _ or $; put any other name in backticks, `such as this`",
            )
        for name, quoted in _names(text):
            if name.isdigit() and not quoted:
                raise BadValue("consists of digits only", "put the name in backticks")
            check_name(name)
        return text


def _names(text: str) -> list[tuple[str, bool]]:
    """Split the names of a table and of the databases before it; return whether each was quoted."""
    parts = re.findall(_NAME, text)
    return [(part[1:-1].replace("``", "`"), True) if part[0] == "`" else (part, False) for part in parts]


@declared
class MysqlSettings(
    NamespaceSettings,
    type_name="mysql",
    title="MySQL",
    servers="MariaDB",
    example={"dsn_string": "me:secret@tcp(mysql)/events", "table": "bucketobjects"},
):
    """MySQL and MariaDB (reference §4.11). The keys of before 2020 (`host`, `port`, …) replace the DSN."""

    dsn_string: str = setting(
        DsnString(),
        default="",
        about="user:password@tcp(host:port)/database?tls=true, shown without its password; this or host",
        of_host=True,
    )
    table: str = setting(MysqlTable(), about="the table, created if missing; in another database: other.table")
    max_open_connections: int = setting(
        Number(0, 10_000),
        default="2",
        about="accepted for compatibility with MinIO, without effect: a worker process has one connection",
    )
    host: str = setting(HostName(), default="", about="server, if there is no dsn_string")
    port: int = setting(Number(0, 65535), default="0", about=f"port of the server; 0 means {MYSQL_PORT}")
    username: str = setting(Text(), default="", aliases=("user",), about="database user")
    password: str = setting(Text(), default="", secret=True, about="database password")
    database: str = setting(Text(), default="", about="database name")
    tls_ca: str = setting(Path(), default="", about="PEM file of the only authorities to trust; empty: the system's")
    client_cert: str = setting(Path(), default="", about="PEM file of the client's certificate")
    client_key: str = setting(Path(), default="", about="PEM file of its key")

    @property
    def dsn(self) -> Dsn:
        """The DSN to connect with; it may contain a password."""
        if self.dsn_string:
            return parse_dsn(self.dsn_string)
        port = self.port or MYSQL_PORT
        return Dsn(user=self.username, password=self.password, host=self.host, port=port, database=self.database)

    @property
    def table_name(self) -> tuple[str, str]:
        """The database (empty for the connection's) and the table, unquoted."""
        *database, table = [name for name, _ in _names(self.table)]
        return "".join(database), table

    def host_files(self) -> Iterator[tuple[str, str]]:
        yield from super().host_files()
        if self.dsn.socket:
            yield "dsn_string", self.dsn.socket

    def time_limits(self) -> Iterator[tuple[str, float]]:
        yield from super().time_limits()
        for limit in (self.dsn.connect_timeout, self.dsn.read_timeout, self.dsn.write_timeout):
            yield "dsn_string", limit or 0.0

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from check_certificate_pair(self.client_cert, self.client_key)
        parts = {name: getattr(self, name) for name in ("host", "port", "username", "password", "database")}
        used = [name for name, value in parts.items() if value]
        if self.dsn_string and used:
            yield Problem(used[0], "", "conflicts with dsn_string", "keep one of the two")
        elif not self.dsn_string:
            yield from self._check_parts()

    def ineffective(self) -> Iterator[Problem]:
        tls = self.dsn.tls
        if self.tls_ca and tls != "true":
            yield Problem(
                "tls_ca", "", "has no effect unless the certificate is verified", "add tls=true to dsn_string"
            )
        if self.client_cert and tls not in ("true", "skip-verify"):
            yield Problem("client_cert", "", "has no effect without TLS", "add tls=true to dsn_string")

    def _check_parts(self) -> Iterator[Problem]:
        if not self.host:
            yield Problem(
                "dsn_string", "", "is required", 'such as "me:secret@tcp(db:3306)/events?tls=true", or set host'
            )
            return
        try:
            check_host(self.host)
        except BadValue as error:
            yield Problem("host", shown_address(self.host), error.problem, error.hint)
        for name in ("username", "database"):
            if not getattr(self, name):
                yield Problem(name, "", "is required with host", "set it, or write everything into dsn_string")
            try:
                check_is_one_value(name, getattr(self, name))
            except BadValue as error:
                yield Problem(name, "", error.problem, error.hint)
        try:
            check_name(self.database)
        except BadValue as error:
            yield Problem("database", hide_typed_secret(self.database), error.problem, error.hint)
