"""The settings of PostgreSQL (reference §4.10); its connection strings are parsed as libpq does."""

import math
import os
import pwd
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import ClassVar

from app.config.errors import REDACTED, BadValue, Problem, nearest
from app.config.fields.addresses import HostName, check_is_one_value, hide_typed_secret, redacted_url, secrets_in_url
from app.config.fields.field_types import FieldType, Number, Text
from app.config.fields.fields import declared, setting
from app.config.fields.secret_refs import is_secret_ref
from app.config.targets.base import NamespaceSettings

_NAME = re.compile(r"[^\W\d][\w$]*")
_QUOTED = re.compile(r'"((?:[^"]|"")+)"')
_WITH_SCHEMA = re.compile(r'("(?:[^"]|"")+"|[^\W\d][\w$]*)\.("(?:[^"]|"")+"|[^\W\d][\w$]*)')
_MAX_NAME_CHARACTERS = 63
# Only to find the end of a connection string without quotes in a line of `key=value`: what they mean is libpq's.
_LIBPQ = """
    application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation
    gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname
    load_balance_hosts max_protocol_version min_protocol_version oauth_client_id oauth_client_secret oauth_issuer
    oauth_scope options passfile password port replication
    require_auth requirepeer requiressl scram_client_key scram_server_key service servicefile ssl_max_protocol_version
    ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey sslkeylogfile sslmode
    sslnegotiation sslpassword sslrootcert sslsni target_session_attrs tcp_user_timeout user
"""
# What concerns the server and the connection only. Everything else that libpq knows, now or in a later version, may
# name a file, a ticket or a service of the client's own host.
_OF_SERVER = {
    "application_name", "channel_binding", "client_encoding", "connect_timeout", "dbname",
    "fallback_application_name", "host", "hostaddr", "keepalives", "keepalives_count", "keepalives_idle",
    "keepalives_interval", "load_balance_hosts", "options", "password", "port", "require_auth",
    "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcompression", "sslmode", "sslnegotiation",
    "sslpassword", "sslsni", "target_session_attrs", "tcp_user_timeout", "user",
}  # fmt: skip
_OF_SERVER_TOO = {("sslrootcert", "system"), ("gssencmode", "disable")}
# What libpq would take from its environment (PGPASSWORD, …) or from files of the account (~/.pgpass,
# ~/.postgresql/postgresql.crt, …), and what it gets instead. Only its libraries' own defaults are left; nothing can
# exist below /dev/null.
_EXPLICIT = {
    "password": "", "passfile": "/dev/null/no-passfile", "host": "", "hostaddr": "", "port": "5432", "dbname": "",
    "channel_binding": "prefer", "connect_timeout": "10", "client_encoding": "UTF8", "options": "",
    "application_name": "bucketwire", "sslmode": "prefer", "sslnegotiation": "postgres", "sslcompression": "0",
    "sslcert": "/dev/null/no-sslcert", "sslkey": "/dev/null/no-sslkey", "sslcertmode": "allow",
    "sslrootcert": "/dev/null/no-sslrootcert", "sslcrl": "/dev/null/no-sslcrl", "sslcrldir": "", "sslsni": "1",
    "requirepeer": "", "ssl_min_protocol_version": "TLSv1.2", "ssl_max_protocol_version": "",
    "gssencmode": "disable", "krbsrvname": "postgres", "gsslib": "", "gssdelegation": "0",
    "target_session_attrs": "any", "load_balance_hosts": "disable", "min_protocol_version": "3.0",
    "max_protocol_version": "3.0",
}  # fmt: skip
_KERBEROS = ("gss", "sspi")  # ways to log in, in `require_auth`
_SECRETS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
_SHOWN_FIRST = ("host", "hostaddr", "port", "dbname", "user")
# What MinIO's guides and other drivers call libpq's keywords.
_LIBPQS_WORD = {"username": "user", "database": "dbname", "db": "dbname", "hostname": "host", "pass": "password"}


class ConnectionString(FieldType[str]):
    """A connection string of libpq: `host=… port=… user=…` or a `postgresql://` URL."""

    label = "libpq keywords or URL"
    empty = ""
    holds_secrets = True
    pairs: ClassVar[frozenset[str]] = frozenset(_LIBPQ.split())

    def parse(self, text: str) -> str:
        """Check that libpq can parse the text, and return it."""
        Text().parse(text)
        if re.search(r"[^\S ]", text):
            raise BadValue(
                "contains a space that is not ASCII's, which libpq takes for a letter", "write a plain space"
            )
        is_like_url = "://" in text.partition("=")[0]
        if is_like_url and (not is_url(text) or " " in text):
            raise BadValue(
                "is not a PostgreSQL URL", "write postgresql://user:password@host:port/database, without spaces"
            )
        if is_like_url:
            _check_login(text)
        check_parameters(parameters(text))
        return text

    def shown(self, text: str) -> str:
        """Return what libpq reads in the text, without secrets; `*redacted*` for what it reads differently, or not."""
        if not text or is_secret_ref(text):
            return text
        try:
            values = parameters(self.parse(text))
        except BadValue:
            return REDACTED
        shown = {name: _shown_parameter(name, value) for name, value in values.items()}
        if shown == values:
            return text
        if is_url(text):
            return redacted_url(text) if shown.get("user") == values.get("user") else REDACTED
        # Those of secrets come last, as after `password=` nothing of a text is shown that is in no form of its own.
        ordered = [*_SHOWN_FIRST, *(name for name in shown if name not in _SECRETS), *reversed(_SECRETS)]
        return connection_string({name: shown[name] for name in dict.fromkeys(ordered) if name in shown})

    def secrets_in(self, value: str) -> Iterator[str]:
        values = parameters(value)
        yield from (values[name] for name in _SECRETS if values.get(name))
        yield values.get("user", "").partition(":")[2]  # a password that somebody has written there
        if is_url(value):
            yield from secrets_in_url(value)


class PostgresTable(FieldType[str]):
    """A table's name without schema, bare or in double quotes."""

    label = "table name"
    empty = ""

    def parse(self, text: str) -> str:
        Text().parse(text)
        if (parts := _WITH_SCHEMA.fullmatch(text)) and not _QUOTED.fullmatch(text):
            schema, name = parts.groups()
            raise BadValue(
                "is not a table name alone: it has a schema",
                f"write {name}, and name the schema in the search_path: options=-csearch_path={schema} in "
                f"connection_string or, as PgBouncer refuses options, ALTER ROLE … SET search_path = {schema}",
            )
        if not _QUOTED.fullmatch(text) and not _NAME.fullmatch(text):
            raise BadValue(
                "is not a table name",
                "begin with a letter or _, continue with letters, digits, _ or $, without a schema; "
                'put any other name in double quotes, "such as this"',
            )
        name = identifier(text)
        if name.startswith("pg_"):
            raise BadValue("is reserved for PostgreSQL's catalogue", "use a name that does not begin with pg_")
        if len(name.encode(errors="replace")) > _MAX_NAME_CHARACTERS:
            raise BadValue(
                f"is longer than {_MAX_NAME_CHARACTERS} bytes, where PostgreSQL cuts names off", "shorten it"
            )
        return text


def identifier(text: str) -> str:
    """Return a table's name as PostgreSQL stores it: unquoted, or with ASCII letters in lower case."""
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return quoted[1].replace('""', '"')
    return re.sub("[A-Z]+", lambda match: match[0].lower(), text)


def is_url(text: str) -> bool:
    """Return whether a connection string is a URL rather than keywords."""
    return text.startswith(("postgres://", "postgresql://"))


def parameters(text: str) -> dict[str, str]:
    """Return what libpq reads in a connection string. Raises `BadValue`, which never quotes the string."""
    from psycopg2 import Error, extensions  # noqa: PLC0415 - most commands need no driver

    try:
        return dict(extensions.parse_dsn(text))
    except (Error, ValueError) as error:
        raise _explain(str(error)) from None


def check_parameters(values: Mapping[str, str]) -> None:
    """Raise `BadValue` for parameters of which an error of libpq or of a server would repeat a part of a password.

    That is so where the parameters were not separated by spaces, or `@` in the password of a URL was not escaped.
    """
    for name, value in values.items():
        if name not in (*_SECRETS, "options"):
            check_is_one_value(name, value)
    hosts = [*values.get("host", "").split(","), *values.get("hostaddr", "").split(",")]
    for host in hosts:
        if not host.startswith(("/", "@")) and not re.fullmatch(r"[\w.:%-]*", host):
            hint = "separate parameters by spaces and hosts by commas, and write no login before a host"
            raise BadValue("has a host that is none", hint)
    for port in filter(None, values.get("port", "").split(",")):
        if not re.fullmatch("[0-9]{1,5}", port) or not 1 <= int(port) <= 65535:
            raise BadValue("has no valid port", "a port is a number from 1 to 65535")


def _check_login(url: str) -> None:
    """Raise `BadValue` if a URL has an `@` after the one at which libpq ends the login."""
    rest = url.partition("://")[2]
    login, at, place = rest.partition("@")
    place = place if at and "/" not in login else rest
    if "@" in place.partition("?")[0]:
        raise BadValue("has an @ behind the login", "write @ / : in a password as %40 %2F %3A, and elsewhere @ as %40")


def _shown_parameter(name: str, value: str) -> str:
    is_secret = name in _SECRETS or name not in ConnectionString.pairs or (name == "user" and ":" in value)
    return REDACTED if value and (is_secret or hide_typed_secret(value) != value) else value


def connection_string(values: Mapping[str, str]) -> str:
    """Write parameters as a connection string."""
    from psycopg2 import extensions  # noqa: PLC0415 - as above

    return str(extensions.make_dsn(**values))


def explicit(values: Mapping[str, str]) -> dict[str, str]:
    """Return parameters to connect with: these, and a value for each other one that libpq would take from its host.

    So no password, certificate or Kerberos ticket of the host is sent to a server that the parameters name. Without a
    user the account's name is used, as libpq does. With `service` all is left to libpq, as that asks for the host's
    own settings.
    """
    given = {name: value for name, value in values.items() if value}
    if "service" in given:
        return given
    others = {name: value for name, value in _EXPLICIT.items() if _is_known(name)}
    if "sslcrldir" in given:
        others["sslcrl"] = ""
    if "user" not in given:
        others["user"] = _account()
    if not _asks_for_kerberos(given):
        ways = given.pop("require_auth", "")
        others["require_auth"] = ways if ways and ways[0] != "!" else ",".join(filter(None, (ways, "!gss", "!sspi")))
    return {name: value for name, value in (others | given).items() if _is_known(name)}


def host_files(text: str) -> list[str]:
    """Return the parameters that may name something of the client's own host: a file, a unix socket, a Kerberos ticket.

    Without a host libpq connects to a socket, too.
    """
    values = {name: value for name, value in parameters(text).items() if value}
    named = [
        f"{name}={value}"
        for name, value in values.items()
        if (name not in _OF_SERVER and (name, value) not in _OF_SERVER_TOO)
        or (name == "require_auth" and _asks_for_kerberos({name: value}))
    ]
    hosts, addresses = values.get("host", "").split(","), values.get("hostaddr", "").split(",")
    if not all(addresses):  # otherwise `host` is but a name to verify
        named += [f"host={host}" for host in hosts if not host or host[0] in "/@"]
    return named


def _asks_for_kerberos(values: Mapping[str, str]) -> bool:
    ways = [way.strip() for way in values.get("require_auth", "").split(",")]
    named = any(values.get(name) for name in ("krbsrvname", "gsslib", "gssdelegation"))
    return named or values.get("gssencmode", "disable") != "disable" or not set(ways).isdisjoint(_KERBEROS)


@cache
def _is_known(name: str) -> bool:
    """Return whether the installed libpq knows a parameter, which depends on its version."""
    try:
        parameters(f"{name}=x")
    except BadValue:
        return False
    return True


def _account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's user without a name
        return ""


def time_limits(text: str, timeout: float) -> Iterator[float]:
    """Yield the time limits of a connection string in seconds; `timeout` is what it has where it names none.

    libpq waits for each host in turn, and without a limit if it is 0.
    """
    values = {name: value for name, value in parameters(text).items() if value}
    hosts = (values.get("hostaddr") or values.get("host", "")).count(",") + 1
    connecting = _number(values["connect_timeout"]) if "connect_timeout" in values else max(2, timeout)
    yield (connecting if connecting > 0 else math.inf) * hosts
    if "tcp_user_timeout" in values:
        yield (_number(values["tcp_user_timeout"]) or math.inf) / 1000


def _number(text: str) -> float:
    """Read a number as libpq does; it refuses what is none when it connects."""
    try:
        return int(text.strip())
    except ValueError:
        return math.inf


def _explain(message: str) -> BadValue:
    """Explain why libpq refuses a string. What it quotes is not repeated: it may be a part of a password."""
    quoted = re.search(r"option[^\w]+(\w+)\W*$|parameter\W+(\w+)\W*$", message)
    name = (quoted[1] or quoted[2]) if quoted else ""
    if name in _LIBPQS_WORD:
        return BadValue(f"has {name}, which libpq calls {_LIBPQS_WORD[name]}", f"write {_LIBPQS_WORD[name]}=…")
    if name:
        close = nearest(name, ConnectionString.pairs)
        return BadValue(
            "has a keyword that libpq does not know",
            f"did you mean {close}?" if close else "put values with spaces in single quotes",
        )
    return BadValue(
        "is not a connection string", "write keyword=value pairs, values with spaces in single quotes, or a URL"
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
