"""Where the inventory of a bucket is: reports of S3 Inventory, or a table of S3 Metadata in an Iceberg catalog."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from app.config.errors import BadValue
from app.config.fields.addresses import HttpUrl, redacted_url
from app.config.fields.field_types import FieldType, Path

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
