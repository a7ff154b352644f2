"""Parse hosts and URLs, also with a login, and redact the passwords in them (reference §3.3)."""

import base64
import ipaddress
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit, urlunsplit

from app.config.errors import REDACTED, BadValue
from app.config.fields.field_types import FieldType, Text
from app.config.networks import is_loopback

# With `_`, which names of services have in Compose, Swarm and DNS.
_LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
_WORD = re.compile("[a-z]{1,12}|v[0-9]{1,2}")  # a part of a URL that is hardly a secret by itself
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,15}")  # an interface's name or number
_SECRET_NAME = re.compile("pass|pwd|token|secret|key|sig|auth|cred|code", re.IGNORECASE)  # part of a parameter's name
# In a text of another form, such as `host=h;password=…`: a secret may have any character, so it is all that follows.
_TYPED_SECRET = re.compile(
    r"\b((?:pass(?:word|wd|phrase)?|pwd|secret|token|api[_-]?key)\s*=\s*)(?=\S).*", re.IGNORECASE | re.DOTALL
)
_OTHER_FORM = re.compile(r";\s*\w[\w ]*=|://")
_MAX_URL_CHARACTERS = 8192  # characters, as any other value


class HostPort(NamedTuple):
    """An address to connect to. An IPv6 host has no brackets; a host that begins with `/` is a unix socket, port 0."""

    host: str
    port: int

    def __str__(self) -> str:
        if self.host.startswith("/"):
            return self.host
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Host(FieldType[HostPort]):
    """`name[:port]`, IPv4 or `[v6]:port`; with `socket`, also the absolute path of a unix socket."""

    empty = HostPort("", 0)

    def __init__(self, default_port: int | None = None, *, socket: bool = False, any_port: bool = False) -> None:
        self._default_port = default_port
        self._socket = socket
        self._least_port = 0 if any_port else 1
        self.label = "host[:port]" if default_port is not None else "host:port"

    def parse(self, text: str) -> HostPort:
        """Parse host and port; without a port the default one, if there is one."""
        if self._socket and text.startswith("/"):
            return HostPort(text, 0)
        if "@" in text:
            raise BadValue("has a login, which no address has here", "write host:port; the login has its own settings")
        if "://" in text or "/" in text:
            raise BadValue("is a URL, not a host", "write host:port")
        if re.search("[,;|]", text):
            raise BadValue("is more than one host", "write one host:port")
        host, port = _split(text)
        check_host(host)
        return HostPort(host, self._port(port))

    def shown(self, text: str) -> str:
        return shown_address(text)

    def secrets_in(self, value: HostPort) -> Iterator[str]:
        return secrets_in_address(str(value))

    def _port(self, text: str) -> int:
        if not text and self._default_port is not None:
            return self._default_port
        if not text:
            raise BadValue("has no port", "write host:port")
        if not re.fullmatch(r"[0-9]{1,5}", text) or not self._least_port <= int(text) <= 65535:
            raise BadValue("has no valid port", f"a port is a number from {self._least_port} to 65535")
        return int(text)


class HostName(Text):
    """A host without its port, as another setting says more of it."""

    def shown(self, text: str) -> str:
        return shown_address(text)

    def secrets_in(self, value: str) -> Iterator[str]:
        return secrets_in_address(value)


class Hosts(FieldType[tuple[HostPort, ...]]):
    """Hosts as `Host` reads them, comma-separated; each once."""

    empty = ()
    separator = ","

    def __init__(self, default_port: int | None = None) -> None:
        self._host = Host(default_port)
        self.label = f"comma-separated {self._host.label}"

    def parse(self, text: str) -> tuple[HostPort, ...]:
        return tuple(dict.fromkeys(map(self._host.parse, split_list(text))))

    def shown(self, text: str) -> str:
        return shown_address(text)

    def secrets_in(self, value: tuple[HostPort, ...]) -> Iterator[str]:
        return secrets_in_address(str(value))


def split_list(text: str) -> list[str]:
    """Split comma-separated hosts. Raises `BadValue` for hosts with something else between them."""
    parts = [part.strip() for part in text.split(",")]
    if ";" in text or "|" in text or any(len(part.split()) > 1 for part in parts):
        raise BadValue("has something else than commas between its hosts", "write them as a:1234,b:1234")
    return parts


class SchemedHost(NamedTuple):
    """An address to connect to, and whether its scheme asks for TLS."""

    place: HostPort
    tls: bool

    @property
    def host(self) -> str:
        """The host, or the path of the unix socket."""
        return self.place.host

    @property
    def port(self) -> int:
        """The port, 0 for a unix socket."""
        return self.place.port

    def __str__(self) -> str:
        return str(self.place)


class RedisHost(FieldType[SchemedHost]):
    """`host[:port]`, the path of a unix socket, `redis://host[:port]`, or `rediss://host[:port]` for TLS."""

    empty = SchemedHost(HostPort("", 0), tls=False)
    label = "host[:port]"

    def __init__(self) -> None:
        self._host = Host(6379, socket=True)

    def parse(self, text: str) -> SchemedHost:
        """Parse the address; a URL may have only scheme, host and port, because the rest has its own keys."""
        scheme, separator, rest = text.partition("://")
        if not separator:
            return SchemedHost(self._host.parse(text), tls=False)
        if scheme.lower() not in ("redis", "rediss"):
            raise BadValue("is not a Redis URL", "write host:port, redis://host:port or rediss://host:port")
        if "@" in rest or "/" in rest.removesuffix("/") or "?" in rest:
            raise BadValue("contains more than a host and a port", "write the rest as the keys user, password and db")
        return SchemedHost(self._host.parse(rest.removesuffix("/")), tls=scheme.lower() == "rediss")

    def shown(self, text: str) -> str:
        return shown_address(text)


class HttpUrl(FieldType[str]):
    """An `http` or `https` URL; doubled slashes and dots are removed from its path, a trailing `/` is kept."""

    label = "http(s) URL"
    empty = ""

    def parse(self, text: str) -> str:
        """Parse the URL; the scheme becomes lower case, a default port is left out."""
        parts = split_url(text)
        if parts.scheme not in ("http", "https"):
            raise BadValue("is not an http or https URL", "write http://host[:port]/path or https://…")
        if parts.fragment:
            raise BadValue("has a #fragment, which is never sent", "leave it out, or write # as %23")
        host = parts.hostname or ""
        check_host(host)
        authority = f"[{host}]" if ":" in host else host
        if parts.port not in (None, 80 if parts.scheme == "http" else 443):
            authority += f":{parts.port}"
        credentials, at, _ = parts.netloc.rpartition("@")
        return urlunsplit((parts.scheme, credentials + at + authority, _clean(parts.path), parts.query, ""))

    def shown(self, text: str) -> str:
        return redacted_url(text)

    def secrets_in(self, value: str) -> Iterator[str]:
        return secrets_in_url(value)


class WebhookUrl(HttpUrl):
    """The address of a webhook. Who knows Slack's or that of a topic of ntfy may post there, so any path is a secret.

    Shown are the scheme and the host, of a path at most its first segment, if that is a short word and a small part of
    it (`https://hooks.slack.com/services/*redacted*`), and of a query the names.
    """

    is_sealed = True

    def shown(self, text: str) -> str:
        parts = _split_webhook(text)
        if parts is None:
            return text and REDACTED
        user, colon, _ = parts.netloc.rpartition("@")[0].partition(":")
        login = f"{user if colon else REDACTED}{colon and colon + REDACTED}@" if "@" in parts.netloc else ""
        names = (pair.partition("=") for pair in parts.query.split("&") if parts.query)
        query = "&".join(f"{name}={REDACTED}" if equals else REDACTED for name, equals, _ in names)
        netloc = login + parts.netloc.rpartition("@")[2]
        return urlunsplit((parts.scheme, netloc, _shown_path(parts.path), query, ""))

    def secrets_in(self, value: str) -> Iterator[str]:
        """Yield what `shown` leaves out: password, path and values of the query, but no single words of these."""
        yield from super().secrets_in(value)
        parts = _split_webhook(value)
        if parts is None:
            return
        secrets = [] if _shown_path(parts.path) == parts.path else [parts.path]
        texts = [*parts.path.split("/"), *(pair.rpartition("=")[2] for pair in parts.query.split("&"))]
        secrets += [text for text in texts if text and not _WORD.fullmatch(text)]
        if parts.password is None and parts.username:
            secrets.append(parts.username)
        yield from (form for secret in secrets for form in (secret, unquote(secret)))


class PageUrl(HttpUrl):
    """The address of a page that people open in a browser; it has no password."""

    def parse(self, text: str) -> str:
        """Return the URL."""
        if "@" in split_url(text).netloc:
            raise BadValue("has a user or a password, which everybody would see", "leave it out; the page asks for it")
        return super().parse(text)


def split_url(text: str, *, needs_host: bool = True) -> SplitResult:
    """Split a URL and check its length and port, and its host unless `needs_host` is false. Raises `BadValue`."""
    if len(text) > _MAX_URL_CHARACTERS:
        raise BadValue(f"is longer than {_MAX_URL_CHARACTERS} characters", "shorten it")
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise BadValue("contains a space or control character", "write it as %20 or the like")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise BadValue("is not a URL", "check brackets and port") from None
    if not parts.scheme or (needs_host and not parts.hostname):
        raise BadValue("is not a URL with a scheme and a host", "write it as scheme://host[:port]/path")
    if port == 0:
        raise BadValue("has no valid port", "a port is a number from 1 to 65535")
    return parts


def redacted_url(text: str) -> str:
    """Replace the password in a URL by `*redacted*`; a URL that cannot be parsed is replaced as a whole."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return REDACTED
    credentials, at, address = parts.netloc.rpartition("@")
    if "@" in parts.path + parts.query + parts.fragment:
        # Without `//`, or with a stray `/` in the password, the credentials are outside the authority.
        return REDACTED
    user, colon, _ = credentials.partition(":")
    netloc = f"{user}{colon and ':' + REDACTED}{at}{address}"
    query, fragment = "&".join(map(redacted_parameter, parts.query.split("&"))), parts.fragment
    if query != parts.query:  # a stray & or # in the secret
        query = "&".join(pair if "=" in pair else REDACTED for pair in query.split("&"))
        fragment = fragment and REDACTED
    unchanged = (netloc, query) == (parts.netloc, parts.query)
    return text if unchanged else urlunsplit(parts._replace(netloc=netloc, query=query, fragment=fragment))


def shown_address(text: str) -> str:
    """Replace what is before an `@`: a login in an address that has none; and what follows `password=`."""
    hidden = hide_typed_secret(text)
    _, at, place = hidden.rpartition("@")
    return f"{REDACTED}@{place}" if at else hidden


def secrets_in_address(text: str) -> Iterator[str]:
    """Yield what stands where a password would, before an `@`."""
    login, at, _ = text.rpartition("@")
    yield from (login.rpartition("//")[2].partition(":")[2],) if at else ()


def hide_typed_secret(text: str) -> str:
    """Replace what follows `password=` or the like, wherever somebody has written that."""
    return _TYPED_SECRET.sub(lambda match: match[1] + REDACTED, text)


def check_is_one_value(name: str, value: str) -> None:
    """Raise `BadValue` if a value is a connection string in another form: servers repeat it in their errors."""
    if _OTHER_FORM.search(value) or _TYPED_SECRET.search(value):
        raise BadValue(f"has further parameters within its {name}", "write them in the form of this setting")


def check_login_end(parts: SplitResult) -> None:
    """Raise `BadValue` if a URL has an `@` after its host: that, and what is before it, may belong to the password."""
    if "@" in parts.path + parts.query + parts.fragment:
        raise BadValue(
            "has an @ behind the host", "write / ? # @ in a password as %2F %3F %23 %40, and elsewhere @ as %40"
        )


def secrets_in_url(url: str) -> Iterator[str]:
    """Yield a URL's password, as it is written, unescaped and in a login header, and parameters that hold a secret."""
    try:
        parts = urlsplit(url)
    except ValueError:  # libpq takes more URLs than Python does
        match = re.match("[^:/]*://[^:@/]*:(.*)@", url)
        yield from (match[1], unquote(match[1])) if match else ()
        return
    if parts.password:
        yield parts.password
        yield unquote(parts.password)
        login = f"{unquote(parts.username or '')}:{unquote(parts.password)}"
        yield base64.b64encode(login.encode()).decode()
    yield from (value for name, value in parse_qsl(parts.query) if _SECRET_NAME.search(name))


def _split_webhook(text: str) -> SplitResult | None:
    """Split a webhook's URL; return None for a text that is none."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return None
    # A stray / ? or # in the password ends the authority.
    beyond = parts.path + parts.query + parts.fragment
    is_cut = "@" in beyond and "@" not in parts.netloc and (":" in parts.netloc or "@" in parts.fragment)
    return None if is_cut or not parts.netloc else parts


def _shown_path(path: str) -> str:
    """Return a path without what may be a secret; one that is shown already stays as it is."""
    if path in ("", "/"):
        return path
    first, _, rest = path[1:].partition("/")
    is_small = rest == REDACTED or 3 * len(first) <= len(path)
    return f"/{first}/{REDACTED}" if rest and is_small and _WORD.fullmatch(first) else f"/{REDACTED}"


def redacted_parameter(text: str) -> str:
    """Replace the value in a URL's `name=value` if the name, also an escaped one, says that it may be a secret."""
    name, equals, _ = text.partition("=")
    return f"{name}={REDACTED}" if equals and _SECRET_NAME.search(unquote(name)) else text


def check_host(host: str) -> None:
    """Raise `BadValue` unless this is a name, an IPv4 or an IPv6 address."""
    if not host:
        raise BadValue("has no host", "write the name or address of a server")
    if ":" in host:
        address, percent, zone = host.partition("%")  # Python takes any text for a zone
        try:
            ipaddress.IPv6Address(address)
        except ValueError:
            raise BadValue("has no valid host: too many colons", "write an IPv6 address as [::1]:port") from None
        if percent and not _ZONE.fullmatch(zone):
            raise BadValue("has no valid host: its zone is no interface's name", "write it as [fe80::1%eth0]:port")
        return
    labels = host.removesuffix(".").split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise BadValue("has no valid host", "a host consists of labels of letters, digits, - and _, separated by dots")
    if host.isdecimal():
        raise BadValue("has only a number, and no host", f"write the host before the port, such as 127.0.0.1:{host}")
    if labels[-1].isdigit():
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise BadValue("has no valid host: it is almost an IPv4 address", "write four numbers up to 255") from None


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")) or ":" not in host:
            raise BadValue("has no valid host", "write an IPv6 address as [::1]:port")
        return host, rest[1:]
    if text.count(":") > 1:
        raise BadValue("has too many colons", "write an IPv6 address as [::1]:port")
    host, _, port = text.partition(":")
    return host, port


def _clean(path: str) -> str:
    """Clean an absolute path as Go's `path.Clean` does, but keep a trailing slash."""
    if not path:
        return ""
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    cleaned = "/" + "/".join(kept)
    return cleaned + "/" if path.endswith("/") and cleaned != "/" else cleaned


BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class LoginUrl(FieldType[str]):
    """A URL that may contain a login."""

    empty = ""
    holds_secrets = True

    def shown(self, text: str) -> str:
        return redacted_url(text)

    def secrets_in(self, value: str) -> Iterator[str]:
        return secrets_in_url(value)


def split_login_url(url: str, schemes: Mapping[str, int], hint: str, *, needs_host: bool = True) -> SplitResult:
    """Split a URL that may contain a login. Raises `BadValue`."""
    parts = split_url(url, needs_host=needs_host)
    if parts.scheme not in schemes or "://" not in url:
        raise BadValue(f"has none of the schemes {', '.join(schemes)}", hint)
    check_login_end(parts)
    if "#" in url:
        raise BadValue("has a #fragment, which is never sent", "leave it out, or write # as %23")
    if BAD_ESCAPE.search(url):
        raise BadValue("has a % without two hexadecimal digits after it", "write % as %25")
    if re.search(r"[\x00-\x1f\x7f]", unquote(url)):
        raise BadValue("contains an escaped control character", "leave it out")
    return parts


def login_of(parts: SplitResult) -> tuple[str | None, str | None]:
    """Return user and password, each None if the URL has none."""
    return (
        None if parts.username is None else unquote(parts.username),
        None if parts.password is None else unquote(parts.password),
    )


class Issuer(HttpUrl):
    """The identifier of a provider: an `https` URL; `http` is for a provider on this machine."""

    label = "https URL"

    def parse(self, text: str) -> str:
        """Return the text as it is: the provider's tokens have to name exactly this issuer."""
        super().parse(text)
        parts = split_url(text)
        if parts.query or "@" in parts.netloc:
            raise BadValue("is not an issuer", "write https://host/path, as the provider's tokens name it")
        if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise BadValue("is not an https URL", "people's tokens would be sent in the clear")
        return text


class ConsoleUrl(HttpUrl):
    """The address of the console's folder as browsers see it; it ends with `/console/`."""

    label = "http(s) URL"

    def parse(self, text: str) -> str:
        """Return the URL with a `/` at its end."""
        url = super().parse(text)
        if split_url(url).query or not url.rstrip("/").endswith("/console"):
            raise BadValue("is not the console's address", "write it as a browser shows it: https://host/path/console/")
        return url.rstrip("/") + "/"
