"""The settings of MySQL and MariaDB, and the parser of their connection string (reference §4.11).

The string is parsed as Go's driver does, which MinIO uses:

    [user[:password]@][net[(address)]]/database[?parameter=value&…]

User, password and address are not escaped: the last `@` ends the password, the last `/` the address. The database's
name and the values of parameters are percent-encoded.
"""

import re
import zoneinfo
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Literal, cast
from urllib.parse import unquote, unquote_plus

from app.config.errors import REDACTED, BadValue, Problem, did_you_mean
from app.config.fields.addresses import (
    Host,
    HostName,
    check_host,
    check_is_one_value,
    hide_typed_secret,
    redacted_parameter,
    shown_address,
)
from app.config.fields.field_types import Duration, FieldType, Number, Path, Text
from app.config.fields.fields import declared, setting
from app.config.fields.secret_refs import is_secret_ref
from app.config.targets.base import NamespaceSettings, check_certificate_pair

MYSQL_PORT = 3306
_MAX_NAME_CHARACTERS = 64
_DEFAULT_SOCKET = "/tmp/mysql.sock"  # noqa: S108 (the default of Go's driver, where a server may listen)
_FORM = "write it as user:password@tcp(host:port)/database?tls=true, or user:password@unix(/path/to.sock)/database"
_TRUE, _FALSE = ("1", "true", "TRUE", "True"), ("0", "false", "FALSE", "False")

Tls = Literal["", "true", "skip-verify", "preferred"]


@dataclass(frozen=True)
class Dsn:
    """The address and options of a MySQL server. Durations are seconds, None if not given."""

    user: str = ""
    password: str = field(default="", repr=False)
    host: str = "127.0.0.1"
    port: int = MYSQL_PORT
    socket: str = ""  # the path of a unix socket, used instead of host and port
    database: str = ""
    tls: Tls = ""
    collation: str = ""
    connect_timeout: float | None = None
    read_timeout: float | None = None
    write_timeout: float | None = None
    zone: str = "UTC"  # of written times; Local is the machine's own
    truncate: float = 0.0  # times are rounded down to a multiple of this
    cleartext: bool = False  # whether a server may ask for the password as it is
    variables: tuple[tuple[str, str], ...] = ()  # system variables to set, values unquoted

    @property
    def place(self) -> str:
        """The server's address, for messages."""
        if self.socket:
            return self.socket
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def time_zone(self) -> tzinfo | None:
        """The zone of times; None for the machine's own."""
        return None if self.zone == "Local" else zoneinfo.ZoneInfo(self.zone)


def parse_dsn(text: str) -> Dsn:
    """Parse a DSN as Go's driver does. Raises `BadValue`, which never quotes the string."""
    before, slash, after = text.rpartition("/")
    if not slash:
        raise BadValue("has no / before the database's name", _FORM)
    credentials, _, rest = before.rpartition("@")
    user, _, password = credentials.partition(":")
    database, _, parameters = after.partition("?")
    dsn = replace(_parse_address(rest), user=user, password=password, database=_decode(database, unquote))
    if not dsn.user:
        raise BadValue("has no user", _FORM)
    if not dsn.database:
        raise BadValue("has no database", _FORM)
    check_is_one_value("user", dsn.user)
    check_is_one_value("database", dsn.database)
    try:
        check_name(dsn.database)
    except BadValue as error:
        raise BadValue(f"has a database whose name {error.problem}", error.hint) from None
    for number, parameter in enumerate(parameters.split("&"), 1):
        name, equals, value = parameter.partition("=")
        if equals:  # Go's driver ignores a parameter without one, too
            dsn = _set_parameter(dsn, name, value, f"the value of parameter {number}")
    return dsn


def redacted_dsn(text: str) -> str:
    """Replace the password in a DSN that `parse_dsn` reads, and the values of parameters that may be secrets.

    All of it, if an `@` behind the address leaves doubts about where the password ends.
    """
    before, _, after = text.rpartition("/")
    if "@" in after:
        return REDACTED
    credentials, at, address = before.rpartition("@")
    user, colon, password = credentials.partition(":")
    database, question, parameters = after.partition("?")
    login = f"{user}{colon}{password and REDACTED}{at}"
    return f"{login}{address}/{database}{question}{'&'.join(map(redacted_parameter, parameters.split('&')))}"


def check_name(name: str) -> None:
    """Raise `BadValue` for a name that no database or table can have, which no quotation marks help."""
    if len(name) > _MAX_NAME_CHARACTERS:
        raise BadValue(f"is longer than the {_MAX_NAME_CHARACTERS} characters a name can have", "shorten it")
    if name.endswith(" ") or any(ord(letter) > 0xFFFF or letter < " " for letter in name):
        raise BadValue(
            "ends with a space or contains a control character or an emoji, which no name may", "choose another name"
        )


def _parse_address(text: str) -> Dsn:
    net, parenthesis, address = text.partition("(")
    if parenthesis and not address.endswith(")"):
        if ")" in address:
            raise BadValue("has a / within a parameter or a name", "write it as %2F")
        raise BadValue("has an address without a closing )", _FORM)
    address = address[:-1]
    if net == "unix":
        path = address or _DEFAULT_SOCKET
        if not path.startswith("/"):
            raise BadValue("has a socket path that is not absolute", _FORM)
        return Dsn(socket=path)
    if net not in ("tcp", ""):
        raise BadValue("has a network that is neither tcp nor unix", _FORM)
    if not address:
        return Dsn()
    if address.count(":") > 1 and not address.startswith("["):
        address = f"[{address}]"  # a bare IPv6 address, with the default port
    host, port = Host(MYSQL_PORT).parse(address)
    return Dsn(host=host, port=port)


def _set_parameter(dsn: Dsn, name: str, value: str, what: str) -> Dsn:
    """Set a parameter; messages name its value by `what`, because the value itself may be a misread secret."""
    if name in _PARAMETERS:
        return _PARAMETERS[name](dsn, value, what)
    if "_" not in name:  # every system variable that can be set here has one
        raise BadValue("has a parameter that Go's driver does not know", did_you_mean(name, [*_PARAMETERS]))
    if not re.fullmatch("[a-z][a-z0-9_]*", name):
        raise BadValue("has a parameter that is not the name of a system variable", "write it in lower case")
    if name.startswith(("character_set_", "collation_")):
        raise BadValue("changes the connection's character set, which is utf8mb4", "leave that parameter out")
    literal = re.fullmatch(r"'([^'\\]*)'|([A-Za-z0-9_.+-]+)", _decode(value, unquote_plus))
    if not literal:
        raise BadValue(f"{what} is neither a word, a number nor a text in single quotes", "write ' as %27")
    content = literal[1] if literal[1] is not None else literal[2]
    others = tuple(variable for variable in dsn.variables if variable[0] != name)
    return replace(dsn, variables=(*others, (name, content)))


_Parameter = Callable[[Dsn, str, str], Dsn]


def _decode(value: str, decode: Callable[..., str]) -> str:
    if re.search("%(?![0-9A-Fa-f]{2})", value):
        raise BadValue(
            "has a % that does not begin an escape", "write % as %25 in the database's name and in parameters"
        )
    try:
        return decode(value, errors="strict")
    except UnicodeDecodeError:
        raise BadValue("has escapes that are not UTF-8", "write each byte of the UTF-8 text as %XX") from None


def _is_on(value: str, what: str) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise BadValue(f"{what} is neither true nor false", "write true or false")


def _tls(dsn: Dsn, value: str, what: str) -> Dsn:  # noqa: ARG001 (the same for all parameters)
    if value in _TRUE or value in _FALSE:
        return replace(dsn, tls="true" if value in _TRUE else "")
    if value.lower() in ("skip-verify", "preferred"):
        return replace(dsn, tls=cast(Tls, value.lower()))
    raise BadValue(
        "refers to a TLS configuration, which only a Go program can register",
        "write tls=true, and set tls_ca, client_cert and client_key beside it",
    )


def _duration(attribute: str) -> _Parameter:
    def set_duration(dsn: Dsn, value: str, what: str) -> Dsn:
        try:
            seconds = Duration().parse(value)
        except BadValue as error:
            raise BadValue(f"{what} {error.problem}", error.hint) from None
        if attribute == "truncate":
            return replace(dsn, truncate=seconds)
        # As in Go's driver, 0 means not given.
        return replace(dsn, **{attribute: seconds or None})  # type: ignore[arg-type]  # the attribute's name is a variable

    return set_duration


def _charset(dsn: Dsn, value: str, what: str) -> Dsn:
    if not set(value.split(",")) & {"utf8mb4", "utf8", "utf8mb3"}:
        raise BadValue(f"{what} is a character set that cannot hold every key", "write charset=utf8mb4")
    return dsn


def _collation(dsn: Dsn, value: str, what: str) -> Dsn:
    if not re.fullmatch("utf8mb4_[a-z0-9_]+", value):
        raise BadValue(f"{what} is not a collation of utf8mb4", "write for example collation=utf8mb4_bin")
    return replace(dsn, collation=value)


def _loc(dsn: Dsn, value: str, what: str) -> Dsn:
    zone = _decode(value, unquote_plus) or "UTC"
    try:
        with_zone = replace(dsn, zone=zone)
        _ = with_zone.time_zone
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise BadValue(f"{what} is not a known time zone", "write UTC, Local or for example Europe%2FBerlin") from None
    return with_zone


def _cleartext(dsn: Dsn, value: str, what: str) -> Dsn:
    return replace(dsn, cleartext=_is_on(value, what))


def _packet(dsn: Dsn, value: str, what: str) -> Dsn:
    if not re.fullmatch("[0-9]{1,12}", value):
        raise BadValue(f"{what} is not a whole number", "write bytes as decimal digits")
    return dsn


def _only(supported: bool, hint: str) -> _Parameter:
    """Accept only one value of a parameter."""

    def check(dsn: Dsn, value: str, what: str) -> Dsn:
        if _is_on(value, what) is not supported:
            raise BadValue(f"{what} is not supported", hint)
        return dsn

    return check


def _any(dsn: Dsn, value: str, what: str) -> Dsn:
    """Ignore a parameter that concerns only Go's driver."""
    _is_on(value, what)
    return dsn


def _attributes(dsn: Dsn, value: str, what: str) -> Dsn:  # noqa: ARG001 (the same for all parameters)
    _decode(value, unquote_plus)
    return dsn


def _public_key(dsn: Dsn, value: str, what: str) -> Dsn:  # noqa: ARG001 (the same for all parameters)
    raise BadValue(f"{what} refers to a public key, which only a Go program can register", "use tls=true")


_PARAMETERS: dict[str, _Parameter] = {
    "tls": _tls,
    "timeout": _duration("connect_timeout"),
    "readTimeout": _duration("read_timeout"),
    "writeTimeout": _duration("write_timeout"),
    "charset": _charset,
    "collation": _collation,
    "loc": _loc,
    "timeTruncate": _duration("truncate"),
    "allowCleartextPasswords": _cleartext,
    "allowFallbackToPlaintext": _only(False, "use tls=preferred"),
    "allowNativePasswords": _only(True, "leave it out"),
    "allowOldPasswords": _only(False, "leave it out: those passwords are from before MySQL 4.1"),
    "serverPubKey": _public_key,
    "maxAllowedPacket": _packet,
    "connectionAttributes": _attributes,
    **dict.fromkeys(
        (
            "allowAllFiles", "checkConnLiveness", "clientFoundRows", "columnsWithAlias", "compress",
            "interpolateParams", "multiStatements", "parseTime", "rejectReadOnly", "tinyInt1IsBool",
        ),
        _any,
    ),
}  # fmt: skip


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
