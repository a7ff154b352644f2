"""Parse URLs that may contain a login, for AMQP and MQTT."""

import re
from collections.abc import Iterator, Mapping
from urllib.parse import SplitResult, unquote

from app.config.errors import BadValue
from app.config.fields.addresses import check_login_end, redacted_url, secrets_in_url, split_url
from app.config.fields.field_types import FieldType

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
