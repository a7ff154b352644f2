"""Read the pages of a bucket's listing, and check that together they are all of it.

A listing that is cut off looks like a bucket from which the rest was removed. So a page that is not of this bucket, not
in S3's order (by the bytes of UTF-8), or neither the last one nor followed by another ends the job. Keys between which
a listing is divided mean the same in UTF-16's order, which some servers have.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.events.buckets import name_at_store
from spark_jobs.errors import BadListing

PAGE_KEYS = ("Contents", "Versions", "DeleteMarkers")  # the first in a listing of objects, the others of versions
_MAX_EMPTY_PAGES = 1000  # in a row; S3 passes over what is being deleted in pages without entries
MAX_KEY_BYTES = 1024  # S3's limit
_SHOWN = 100  # characters of a key in an error
_SURROGATES = "\ud800"  # the first character that UTF-16 orders otherwise than UTF-8


def pages(
    client: Any, bucket: str, after: str = "", *, versioned: bool, prefix: str = "", size: int = 0
) -> Iterator[Mapping[str, Any]]:
    """Yield the pages of the keys after `after`, of all versions if `versioned`; of servers that ignore it all pages.

    With `prefix` they are the keys that begin with it. With `size` there are so many entries on a page, in any order:
    whatever it is, the prefix itself comes first.

    Raises `BadListing`, and what boto3 raises.
    """
    listing = _Listing(
        f"{client.meta.endpoint_url}, bucket {bucket}", bucket, prefix, versioned=versioned, has_order=not size
    )
    ask = client.list_object_versions if versioned else client.list_objects_v2
    start = {"KeyMarker" if versioned else "StartAfter": _unambiguous(after)}
    following: Mapping[str, str] | None = start if after else {}
    below: dict[str, Any] = {"Prefix": prefix} if prefix else {}
    below |= {"MaxKeys": size} if size else {}
    while following is not None:
        page = ask(Bucket=bucket, **below, **following)
        following = listing.add(page, following)
        yield page


def is_bound(key: str) -> bool:
    """Return whether every server takes a key as a marker, and finds the same place by the order of UTF-8 or UTF-16.

    Rows may have keys that no object has.
    """
    return is_path(key) and key.isprintable() and len(key.encode()) <= MAX_KEY_BYTES and max(key) < _SURROGATES


def is_path(key: str) -> bool:
    """Return whether a server that stores objects in folders can have one of this key."""
    return all(part not in ("", ".", "..") for part in key.removesuffix("/").split("/"))


def _unambiguous(after: str) -> str:
    """Return the longest beginning of a key that `is_bound`; every key after the key is after it, too."""
    return next((after[:at] for at, character in enumerate(after) if character >= _SURROGATES), after)


@dataclass(slots=True)
class _Listing:
    """What has been read of a listing."""

    where: str
    bucket: str
    prefix: str
    versioned: bool
    has_order: bool
    last: dict[str, str] = field(default_factory=dict)  # key of each kind of entry
    empty: int = 0  # pages in a row

    def add(self, page: Mapping[str, Any], asked: Mapping[str, str]) -> Mapping[str, str] | None:
        """Check a page; return what to ask for next, None after the last page."""
        name = page.get("Name", self.bucket)
        # Ceph answers with the name alone.
        if name not in (self.bucket, name_at_store(self.bucket)) and not self.bucket.startswith("arn:"):
            raise self._bad(f"the answer is a listing of the bucket {name[:_SHOWN]!r}")
        before = max(self.last.values(), default="")
        for kind in PAGE_KEYS:
            self._check_order(kind, page.get(kind, ()), before)
        self.empty = 0 if any(page.get(kind) for kind in PAGE_KEYS) else self.empty + 1
        if self.empty > _MAX_EMPTY_PAGES:
            raise self._bad(f"{self.empty} pages in a row have no entries")
        is_truncated = page.get("IsTruncated")
        if not isinstance(is_truncated, bool):
            raise self._bad("a page does not say whether it is the last one (IsTruncated)")
        return self._following(page, asked) if is_truncated else None

    def _check_order(self, kind: str, entries: Sequence[Mapping[str, Any]], before: str) -> None:
        last = before
        for entry in entries:
            key = entry["Key"]
            if not key.startswith(self.prefix):
                raise self._bad(f"it lists {key[:_SHOWN]!r}, which is not below the prefix {self.prefix[:_SHOWN]!r}")
            if self.has_order and (key < last or (key == last and not self.versioned and kind in self.last)):
                raise self._bad(
                    f"it lists {key[:_SHOWN]!r} after {last[:_SHOWN]!r}, which is not S3's order (by the bytes of "
                    "UTF-8), so that a part of it may lack objects; give a listing of `mc ls` with --listing instead"
                )
            self.last[kind] = last = key

    def _following(self, page: Mapping[str, Any], asked: Mapping[str, str]) -> Mapping[str, str]:
        names = {"KeyMarker": "NextKeyMarker", "VersionIdMarker": "NextVersionIdMarker"}
        if not self.versioned:
            names = {"ContinuationToken": "NextContinuationToken"}
        following = {name: page[answer] for name, answer in names.items() if page.get(answer)}
        first = next(iter(names))
        if first not in following:
            raise self._bad(f"a page is not the last one (IsTruncated), and does not say what follows ({names[first]})")
        if following == asked:
            raise self._bad(f"the page after {following[first][:_SHOWN]!r} is that page again")
        return following

    def _bad(self, problem: str) -> BadListing:
        return BadListing(f"{self.where}: {problem}; nothing is compared with a listing that may lack objects")
