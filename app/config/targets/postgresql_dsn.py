"""Parse PostgreSQL's connection strings and table names (reference §4.10)."""

import re
from collections.abc import Iterable
from typing import ClassVar
from urllib.parse import parse_qsl, unquote

from app.config.errors import BadValue, nearest
from app.config.fields.field_types import FieldType, Text

_PAIR = re.compile(
    r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?!')(?:[^\s\\]|\\.)*))(?=\s|$)", re.DOTALL
)
_NAME = re.compile(r"[^\W\d][\w$]*")
_QUOTED = re.compile(r'"((?:[^"]|"")+)"')
_LONGEST_NAME = 63
_LIBPQ = """
    application_name channel_binding client_encoding connect_timeout dbname fallback_application_name gssdelegation
    gssencmode gsslib host hostaddr keepalives keepalives_count keepalives_idle keepalives_interval krbsrvname
    load_balance_hosts max_protocol_version min_protocol_version oauth_client_id oauth_client_secret oauth_issuer
    oauth_scope options passfile password port replication
    require_auth requirepeer requiressl scram_client_key scram_server_key service servicefile ssl_max_protocol_version
    ssl_min_protocol_version sslcert sslcertmode sslcompression sslcrl sslcrldir sslkey sslkeylogfile sslmode
    sslnegotiation sslpassword sslrootcert sslsni target_session_attrs tcp_user_timeout user
"""
_FILES = (
    "passfile", "service", "servicefile", "sslcert", "sslcrl", "sslcrldir", "sslkey", "sslkeylogfile", "sslrootcert",
)  # fmt: skip
# What MinIO's guides and other drivers call libpq's keywords.
_LIBPQS_WORD = {"username": "user", "database": "dbname", "db": "dbname", "hostname": "host", "pass": "password"}


class ConnectionString(FieldType[str]):
    """A connection string of libpq: `host=… port=… user=…` or a `postgresql://` URL."""

    label = "libpq keywords or URL"
    empty = ""
    pairs: ClassVar[frozenset[str]] = frozenset(_LIBPQ.split())

    def parse(self, text: str) -> str:
        """Check the syntax and the keywords, and return the text."""
        Text().parse(text)
        if "://" not in text.partition("=")[0]:
            self._check(keywords(text))
        elif not is_url(text) or re.search(r"\s", text):
            raise BadValue(
                "is not a PostgreSQL URL", "write postgresql://user:password@host:port/database, without spaces"
            )
        else:
            self._check(name for name, _ in parse_qsl(text.partition("?")[2], keep_blank_values=True) if name != "ssl")
        return text

    def _check(self, names: Iterable[str]) -> None:
        """Refuse what libpq would refuse when it connects. An unknown word is not quoted: it may be of a password."""
        for number, name in enumerate(names, 1):
            if name in self.pairs:
                continue
            if name in _LIBPQS_WORD:
                raise BadValue(f"has {name}, which libpq calls {_LIBPQS_WORD[name]}", f"write {_LIBPQS_WORD[name]}=…")
            close = nearest(name, self.pairs)
            raise BadValue(
                f"has a keyword (number {number}) that libpq does not know",
                f"did you mean {close}?" if close else "put values with spaces in single quotes",
            )


class PostgresTable(FieldType[str]):
    """A table's name without schema, bare or in double quotes."""

    label = "table name"
    empty = ""

    def parse(self, text: str) -> str:
        Text().parse(text)
        if not _QUOTED.fullmatch(text) and not _NAME.fullmatch(text):
            raise BadValue(
                "is not a table name",
                "begin with a letter or _, continue with letters, digits, _ or $, without a schema; "
                'put any other name in double quotes, "such as this"',
            )
        name = identifier(text)
        if name.startswith("pg_"):
            raise BadValue("is reserved for PostgreSQL's catalogue", "use a name that does not begin with pg_")
        if len(name.encode(errors="replace")) > _LONGEST_NAME:
            raise BadValue(f"is longer than {_LONGEST_NAME} bytes, where PostgreSQL cuts names off", "shorten it")
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


def keywords(text: str) -> dict[str, str]:
    """Parse a libpq connection string; of repeated keywords the last one counts, as in libpq. Raises `BadValue`."""
    pairs: dict[str, str] = {}
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _PAIR.match(text, position)
        if not match:
            raise BadValue(
                "is not a connection string",
                "write keyword=value pairs, values with spaces in single quotes, or a URL",
            )
        value = match[2] if match[2] is not None else match[3]
        pairs[match[1]] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        position = match.end()
    return pairs


def host_files(text: str) -> list[str]:
    """Return what a connection string names of the client's own host: files, a service of a file, and unix sockets.

    Without a host libpq connects to a socket, too.
    """
    values = _url_keywords(text) if is_url(text) else keywords(text)
    found = [value for name in _FILES if (value := values.get(name, "")) not in ("", "system")]
    if not all(values.get("hostaddr", "").split(",")):  # otherwise `host` is but a name to verify
        found += [host for host in values.get("host", "").split(",") if not host or host[0] in "/@"]
    return found


def _url_keywords(text: str) -> dict[str, str]:
    address, _, query = text.partition("://")[2].partition("?")
    servers = address.partition("/")[0].rpartition("@")[2]
    hosts = (unquote(server if server.startswith("[") else server.partition(":")[0]) for server in servers.split(","))
    return {"host": ",".join(hosts)} | dict(parse_qsl(query))


def written_keywords(values: dict[str, str]) -> str:
    """Write these keywords as a libpq connection string."""
    return " ".join(
        f"{key}='{value}'" for key, value in ((k, re.sub(r"(['\\])", r"\\\1", v)) for k, v in values.items())
    )
