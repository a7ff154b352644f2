"""Parse the connection string of MySQL as Go's driver does, which MinIO uses (reference §4.11).

    [user[:password]@][net[(address)]]/database[?parameter=value&…]

User, password and address are not escaped: the last `@` ends the password, the last `/` the address. The database's
name and the values of parameters are percent-encoded.
"""

import re
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import tzinfo
from typing import Literal, cast
from urllib.parse import unquote, unquote_plus

from app.config.errors import REDACTED, BadValue, did_you_mean
from app.config.fields.addresses import Host, check_is_one_value, redacted_parameter
from app.config.fields.field_types import Duration

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
