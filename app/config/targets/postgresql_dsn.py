"""What SQL targets are told: connection strings and table names (reference §4.10)."""

import re

from app.config.errors import BadValue
from app.config.fields.field_types import FieldType, Text

_PAIR = re.compile(
    r"\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?!')(?:[^\s\\]|\\.)*))(?=\s|$)", re.DOTALL
)
_NAME = re.compile(r"[^\W\d][\w$]*")
_QUOTED = re.compile(r'"((?:[^"]|"")+)"')
_LONGEST_NAME = 63


class ConnectionString(FieldType[str]):
    """What libpq takes: `host=… port=… user=…` or a `postgresql://` URL."""

    label = "libpq keywords or URL"
    empty = ""

    def parse(self, text: str) -> str:
        """The text itself, found to be well formed; whether libpq knows every keyword shows when it connects."""
        Text().parse(text)
        if "://" not in text.partition("=")[0]:
            keywords(text)
        elif not is_url(text) or re.search(r"\s", text):
            raise BadValue("is not a PostgreSQL URL", "write postgresql://user:password@host:port/database, no blanks")
        return text


class PostgresTable(FieldType[str]):
    """A table's name without schema, bare or in double quotes."""

    label = "table name"
    empty = ""

    def parse(self, text: str) -> str:
        """The name as written."""
        Text().parse(text)
        if not _QUOTED.fullmatch(text) and not _NAME.fullmatch(text):
            raise BadValue(
                "is not a table name",
                "begin with a letter or _, go on with letters, digits, _ or $, without a schema; "
                'any other name stands in double quotes, "such as this"',
            )
        name = identifier(text)
        if name.startswith("pg_"):
            raise BadValue("belongs to PostgreSQL's own catalogue", "use a name that does not begin with pg_")
        if len(name.encode(errors="replace")) > _LONGEST_NAME:
            raise BadValue(f"is longer than {_LONGEST_NAME} bytes, where PostgreSQL cuts names off", "shorten it")
        return text


def identifier(text: str) -> str:
    """The name that PostgreSQL knows a table by: quotes taken off, or ASCII letters folded to lower case."""
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        return quoted[1].replace('""', '"')
    return re.sub("[A-Z]+", lambda match: match[0].lower(), text)


def is_url(text: str) -> bool:
    """Whether a connection string is a URL rather than keywords."""
    return text.startswith(("postgres://", "postgresql://"))


def keywords(text: str) -> dict[str, str]:
    """The keywords of a libpq connection string; as in libpq the last of equal ones counts. Raises `BadValue`."""
    found: dict[str, str] = {}
    position = 0
    text = text.rstrip()
    while position < len(text):
        match = _PAIR.match(text, position)
        if not match:
            raise BadValue(
                "is not a connection string",
                "write keyword=value pairs, a value with blanks in single quotes, or a URL",
            )
        value = match[2] if match[2] is not None else match[3]
        found[match[1]] = re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)
        position = match.end()
    return found


def written_keywords(values: dict[str, str]) -> str:
    """A libpq connection string of these keywords."""
    return " ".join(
        f"{key}='{value}'" for key, value in ((k, re.sub(r"(['\\])", r"\\\1", v)) for k, v in values.items())
    )
