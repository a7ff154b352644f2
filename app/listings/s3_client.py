"""Clients that list a bucket: how a request names the bucket, how entries are parsed, and the client of a source.

Of the host on which a source's bucket is listed nothing is used: no variable, no file of AWS's tools, no role.
"""

import logging
import os
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, ConfigValueStore, ConstantProvider
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.handlers import validate_bucket_name
from botocore.loaders import Loader
from botocore.session import Session

import app.boto_connections  # noqa: F401 - reads answers strictly
from app.listings.pages import parse_entries

# botocore writes what it signs into its debug lines, with a session's token.
logging.getLogger("botocore").setLevel(logging.ERROR)

STORE_ERRORS = (BotoCoreError, ClientError, HTTPClientError, OSError)  # of a client
_READ_SECONDS = 60.0  # for a page: a server may look through many folders for it
_DEFAULT_REGION = "us-east-1"
# What botocore would take from variables and files otherwise, by its names.
_OF_NO_HOST: dict[str, Any] = {name: given[2] for name, given in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()} | {
    "profile": None, "ca_bundle": None, "config_file": os.devnull, "credentials_file": os.devnull,
}  # fmt: skip
# What botocore knows of S3, 12 MB, once for all buckets, and without what the host adds in ~/.aws/models.
_MODELS = Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
_NO_VERSIONS = frozenset(["NotImplemented", "MethodNotAllowed", "NoSuchVersioningConfiguration"])

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


class SourceAccess(Protocol):
    """Where the bucket of a source is, and how to log in: its settings."""

    @property
    def endpoint(self) -> str:
        """Its S3 endpoint; "" for that of AWS in the region."""

    @property
    def bucket(self) -> str:
        """The bucket's name there."""

    @property
    def region(self) -> str:
        """The region to sign for."""

    @property
    def access_key(self) -> str:
        """The access key; "": requests are not signed."""

    @property
    def secret_key(self) -> str:
        """Its secret."""

    @property
    def session_token(self) -> str:
        """The token of temporary credentials."""

    @property
    def tls_ca(self) -> str:
        """A file of the authorities to trust; "": the system's."""

    @property
    def addressing_style(self) -> str:
        """Where a request has the bucket's name."""

    @property
    def requester_pays(self) -> bool:
        """Whether requests are paid for by who makes them."""

    @property
    def timeout(self) -> float:
        """Seconds for connecting."""


def describe_place(access: SourceAccess) -> str:
    """Return which bucket it is, and where."""
    return f"bucket {access.bucket} at {access.endpoint or 'AWS'}"


def of_source(access: SourceAccess, *, attempts: int) -> Any:
    """Return a client for the bucket of a source, which makes so many attempts of a request; the caller closes it."""
    session = Session()
    constants = {name: ConstantProvider(value) for name, value in _OF_NO_HOST.items()}
    session.register_component("config_store", ConfigValueStore(constants))
    session.register_component("data_loader", _MODELS)
    signed = bool(access.access_key)
    if signed:
        session.set_credentials(access.access_key, access.secret_key, access.session_token or None)
    is_tls = urlsplit(access.endpoint).scheme != "http"
    return prepared(
        session.create_client(
            "s3",
            endpoint_url=access.endpoint or None,
            region_name=access.region or _DEFAULT_REGION,
            verify=(access.tls_ca or True) if is_tls else False,
            config=Config(
                connect_timeout=access.timeout,
                read_timeout=max(access.timeout, _READ_SECONDS),
                retries={"mode": "standard", "total_max_attempts": attempts},
                proxies={},
                ignore_configured_endpoint_urls=True,
                s3={"addressing_style": style(access.addressing_style, access.endpoint)},
                **({} if signed else {"signature_version": UNSIGNED}),
            ),
        ),
        requester_pays=access.requester_pays,
    )


def count_requests(client: Any, count: Callable[[], None]) -> None:
    """Call `count` for each request that a client sends, also if it is one more attempt, or fails."""

    def sent(**_: Any) -> None:
        count()

    client.meta.events.register("before-send.s3", sent)


def has_versions(client: Any, bucket: str) -> bool:
    """Return whether a bucket is or was versioned, as far as its server knows versions. Raises `STORE_ERRORS`."""
    try:
        return bool(client.get_bucket_versioning(Bucket=bucket).get("Status"))
    except ClientError as error:
        if _code(error) in _NO_VERSIONS:
            return False
        raise


def describe_failure(where: str, error: Exception) -> str:
    """Return why a bucket cannot be listed, and what to do where that is known."""
    hint = ""
    if isinstance(error, ClientError) and error.operation_name == "GetBucketVersioning":
        hint = "; allow s3:GetBucketVersioning, or set versions to on or off" * (_code(error) == "AccessDenied")
    return f"{where} cannot be listed: {error}{hint}"


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _pay(params: dict[str, Any], **_: Any) -> None:
    params["RequestPayer"] = "requester"
