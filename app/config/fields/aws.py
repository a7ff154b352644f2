"""What AWS and servers that speak its protocols need: an endpoint, a region and keys."""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HttpUrl
from app.config.fields.field_types import FieldType


class Endpoint(HttpUrl):
    """The URL that requests go to."""

    def parse(self, text: str) -> str:
        """Return the URL."""
        url = super().parse(text)
        parts = urlsplit(url)
        if parts.query or "@" in url:
            raise BadValue("has a login or a ?query, which signed requests do not have", "leave it out")
        return url


class Region(FieldType[str]):
    """The name of a region."""

    label = "region"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the name."""
        if not re.fullmatch(r"[a-z0-9-]{1,63}", text):
            raise BadValue("is not a region", "write small letters, digits and -, such as eu-central-1")
        return text


def key_problems(access_key: str, secret_key: str, session_token: str) -> Iterator[Problem]:
    """Yield which of the keys are missing beside the others."""
    if bool(access_key) != bool(secret_key):
        missing = "secret_key" if access_key else "access_key"
        yield Problem(missing, "", "is missing", "give access_key and secret_key, or neither")
    if session_token and not access_key:
        yield Problem("session_token", "", "is used only with an access key", "set access_key and secret_key")
