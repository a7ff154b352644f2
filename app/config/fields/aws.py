"""Types of settings for AWS and servers that speak its protocols: an endpoint, a region, keys, a bucket's inventory.

An inventory is reports of S3 Inventory, or a table of S3 Metadata in an Iceberg catalog.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from app.config.errors import BadValue, Problem
from app.config.fields.addresses import HttpUrl, redacted_url
from app.config.fields.field_types import FieldType, Path


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


_ARN = re.compile(r"arn:(?P<partition>aws[a-z-]*):s3tables:(?P<region>[a-z0-9-]+):[0-9]{12}:bucket/[a-z0-9-]+")
_HINT = (
    "write the folder of its reports or a manifest.json, as s3://BUCKET/KEY or an absolute path, or where the tables "
    "of S3 Metadata are: arn:aws:s3tables:REGION:ACCOUNT:bucket/aws-s3, or the URL of an Iceberg REST catalog"
)


class Inventory(FieldType[str]):
    """The place of reports, or a catalog of tables."""

    label = "path, s3:// URL, ARN or URL of a catalog"
    empty = ""

    def parse(self, text: str) -> str:
        """Return the place."""
        if text.startswith("/"):
            return Path().parse(text) + ("/" if text.endswith("/") else "")
        if re.fullmatch(r"s3://[A-Za-z0-9._-]{3,255}/[ -~\x80-\U0010ffff]*", text) or _ARN.fullmatch(text):
            return text
        if text.startswith(("http://", "https://")):
            url = HttpUrl().parse(text)
            if "@" in urlsplit(url).netloc or {name for name, _ in parse_qsl(urlsplit(url).query)} - {"warehouse"}:
                raise BadValue("has a login or another ?query than warehouse", "leave it out")
            return url
        raise BadValue("is not the place of an inventory", _HINT)

    def shown(self, text: str) -> str:
        return redacted_url(text) if text.startswith("http") else text


class Catalog(NamedTuple):
    """A REST catalog of Iceberg tables, and what it calls its warehouse; with a region its requests are signed."""

    url: str
    warehouse: str = ""
    signing_region: str = ""


def catalog_of(inventory: str) -> Catalog | None:
    """Return the catalog that an inventory's place names, None for reports."""
    if arn := _ARN.fullmatch(inventory):
        suffix = ".cn" if arn["partition"] == "aws-cn" else ""
        url = f"https://s3tables.{arn['region']}.amazonaws.com{suffix}/iceberg"
        return Catalog(url, inventory, arn["region"])
    if not inventory.startswith("http"):
        return None
    parts = urlsplit(inventory)
    return Catalog(urlunsplit((*parts[:3], "", "")), dict(parse_qsl(parts.query)).get("warehouse", ""))
