"""What AWS and servers that speak its protocols need of a place: an endpoint and a region."""

import re
from urllib.parse import urlsplit

from app.config.errors import BadValue
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
