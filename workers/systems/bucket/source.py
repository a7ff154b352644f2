"""A bucket of S3, or of a server that speaks its protocol: list it, page by page.

Nothing of the worker's host is used: no variable, no file of AWS's tools, no role.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from app.config.sources.bucket import BucketSourceSettings
from app.listings import s3_client
from app.listings.differences import Listed
from app.listings.pages import entries_of, pages, skipped_of, time_of
from workers.sources.base import SourceUnavailable

_ATTEMPTS = 4  # of a request: a server that is busy (503 SlowDown) is asked again for some seconds


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a listing: its entries in order, and the store's own time (ms) when it answered, 0 if unknown.

    No event can have the keys that are `skipped`.
    """

    entries: list[Listed]
    store_time: int
    skipped: list[str]


class BucketSource:
    """One bucket. `versioned` is known once it is open; `requests` is how many were sent."""

    def __init__(self, settings: BucketSourceSettings) -> None:
        self._settings = settings
        self._client: Any = None
        self.where = s3_client.describe_place(settings)
        self.versioned = settings.versions == "on"
        self.requests = 0

    def open(self) -> None:
        """Make a client, and find out whether the bucket has versions. Raises `SourceUnavailable`."""
        self.close()
        with self._errors():
            self._client = s3_client.of_source(self._settings, attempts=_ATTEMPTS)
            s3_client.count_requests(self._client, self._count)
            if self._settings.versions == "auto":
                self.versioned = s3_client.has_versions(self._client, self._settings.bucket)

    def pages(self) -> Iterator[Page]:
        """Yield the pages of a listing. Raises `SourceUnavailable`, `BadListing`."""
        with self._errors():
            listing = pages(self._client, self._settings.bucket, versioned=self.versioned, prefix=self._settings.prefix)
            for page in listing:
                entries = entries_of(page, versioned=self.versioned)
                entries.sort(key=lambda entry: entry.key)  # a page has markers apart from objects
                yield Page(entries, time_of(page), skipped_of(page, versioned=self.versioned))

    def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _count(self) -> None:
        self.requests += 1

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except s3_client.STORE_ERRORS as error:
            raise SourceUnavailable(s3_client.describe_failure(self.where, error)) from error
