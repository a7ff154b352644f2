"""A bucket of S3, or of a server that speaks its protocol: list it, page by page.

botocore makes the requests. Nothing of the worker's host is used: no variable, no file of AWS's tools, no role.
"""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from botocore import UNSIGNED
from botocore.config import Config
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, ConfigValueStore, ConstantProvider
from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError
from botocore.session import Session

import app.boto_connections  # noqa: F401 - reads answers strictly
from app.config.sources.bucket import BucketSourceSettings
from app.events.effects import NULL
from app.listings import s3_client
from app.listings.differences import Content, Listed
from app.listings.errors import BadListing
from app.listings.pages import PAGE_KEYS, pages
from workers.sources.base import SourceUnavailable

# botocore writes what it signs into its debug lines, with a session's token.
logging.getLogger("botocore").setLevel(logging.ERROR)

_ATTEMPTS = 4  # of a request: a server that is busy (503 SlowDown) is asked again for some seconds
_READ_SECONDS = 60.0  # for a page: a server may look through many folders for it
_DEFAULT_REGION = "us-east-1"
# What botocore would take from variables and files otherwise, by its names.
_OF_NO_HOST: dict[str, Any] = {name: given[2] for name, given in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()} | {
    "profile": None, "ca_bundle": None, "config_file": os.devnull, "credentials_file": os.devnull,
}  # fmt: skip
_NO_VERSIONS = frozenset(["NotImplemented", "MethodNotAllowed", "NoSuchVersioningConfiguration"])


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing: its entries in order, and the store's own time (ms) when it answered, 0 if unknown."""

    entries: list[Listed]
    store_time: int


class BucketSource:
    """One bucket. `versioned` is known once it is open."""

    def __init__(self, settings: BucketSourceSettings) -> None:
        self._settings = settings
        self._client: Any = None
        self.where = f"bucket {settings.bucket} at {settings.endpoint or 'AWS'}"
        self.versioned = settings.versions == "on"

    def open(self) -> None:
        """Make a client, and find out whether the bucket has versions. Raises `SourceUnavailable`."""
        self.close()
        with self._errors():
            self._client = _client(self._settings)
        if self._settings.versions == "auto":
            self.versioned = self._has_versions()

    def pages(self) -> Iterator[Page]:
        """Yield the pages of a listing. Raises `SourceUnavailable`, `BadListing`."""
        with self._errors():
            listing = pages(self._client, self._settings.bucket, versioned=self.versioned, prefix=self._settings.prefix)
            for page in listing:
                entries = [self._listed(entry) for kind in PAGE_KEYS for entry in page.get(kind, ())]
                entries.sort(key=lambda entry: entry.key)  # a page has markers apart from objects
                yield Page(entries, _time_of(page))

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _listed(self, entry: Mapping[str, Any]) -> Listed:
        modified = entry.get("LastModified")
        if modified is None:
            raise BadListing(f"an entry of the listing, {entry['Key']!r:.100}, has no LastModified")
        is_marker = "Size" not in entry
        content = Content(
            entry.get("ETag", "").strip('"'), entry.get("Size", 0), round(modified.timestamp() * 1000), is_marker
        )
        version = entry.get("VersionId", "") or NULL if self.versioned else ""
        return Listed(entry["Key"], version, content, entry.get("IsLatest", True))

    def _has_versions(self) -> bool:
        try:
            with self._errors():
                return bool(self._client.get_bucket_versioning(Bucket=self._settings.bucket).get("Status"))
        except SourceUnavailable as error:
            cause = error.__cause__
            code = cause.response.get("Error", {}).get("Code") if isinstance(cause, ClientError) else ""
            if code in _NO_VERSIONS:
                return False
            if code == "AccessDenied":
                hint = "allow s3:GetBucketVersioning, or set versions to on or off"
                raise SourceUnavailable(f"{error}; {hint}") from cause
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError, HTTPClientError, OSError) as error:
            raise SourceUnavailable(f"{self.where} cannot be listed: {error}") from error


def _client(settings: BucketSourceSettings) -> Any:
    session = Session()
    constants = {name: ConstantProvider(value) for name, value in _OF_NO_HOST.items()}
    session.register_component("config_store", ConfigValueStore(constants))
    signed = bool(settings.access_key)
    if signed:
        session.set_credentials(settings.access_key, settings.secret_key, settings.session_token or None)
    is_tls = urlsplit(settings.endpoint).scheme != "http"
    return s3_client.prepared(
        session.create_client(
            "s3",
            endpoint_url=settings.endpoint or None,
            region_name=settings.region or _DEFAULT_REGION,
            verify=(settings.tls_ca or True) if is_tls else False,
            config=Config(
                connect_timeout=settings.timeout,
                read_timeout=max(settings.timeout, _READ_SECONDS),
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                proxies={},
                ignore_configured_endpoint_urls=True,
                s3={"addressing_style": s3_client.style(settings.addressing_style, settings.endpoint)},
                **({} if signed else {"signature_version": UNSIGNED}),
            ),
        ),
        requester_pays=settings.requester_pays,
    )


def _time_of(page: Mapping[str, Any]) -> int:
    date = page.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return 0
