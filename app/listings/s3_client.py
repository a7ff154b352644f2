"""What clients that list a bucket share: how a request names the bucket, and how entries are parsed."""

from typing import Any
from urllib.parse import urlsplit

from botocore.handlers import validate_bucket_name

from app.listings.pages import parse_entries

_AWS = (".amazonaws.com", ".amazonaws.com.cn")
_PAID = ("ListObjectsV2", "ListObjectVersions", "GetObject", "HeadObject")


def style(chosen: str, endpoint: str) -> str:
    """Return where a request has the bucket's name; "" and `auto`: the path, but at AWS botocore decides."""
    if chosen not in ("", "auto"):
        return chosen
    # Self-hosted servers usually have no DNS names for buckets.
    is_aws = not endpoint or (urlsplit(endpoint).hostname or "").endswith(_AWS)
    return "auto" if is_aws else "path"


def prepared(client: Any, *, requester_pays: bool) -> Any:
    """Return a client of S3 that parses entries of listings quickly, and takes the buckets of tenants."""
    # AWS has no TENANT:BUCKET, as Ceph calls a bucket of another tenant than that of the credentials.
    client.meta.events.unregister("before-parameter-build.s3", validate_bucket_name)
    parse_entries(client)
    if requester_pays:
        for operation in _PAID:
            client.meta.events.register(f"before-parameter-build.s3.{operation}", _pay)
    return client


def _pay(params: dict[str, Any], **_: Any) -> None:
    params["RequestPayer"] = "requester"
