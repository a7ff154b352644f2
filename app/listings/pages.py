"""Read the pages of a bucket's listing, and check that together they are all of it.

A listing that is cut off looks like a bucket from which the rest was removed. So a page that is not of this bucket, not
in S3's order (by the bytes of UTF-8), or neither the last one nor followed by another ends the job. Keys between which
a listing is divided mean the same in UTF-16's order, which some servers have.

Entries are parsed here, because botocore needs ten times as long for them as for the request itself. What is left of an
answer botocore parses, errors included. An entry that lacks what S3 says of each ends the job.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from xml.etree import ElementTree

from botocore.utils import parse_timestamp

from app.events.buckets import name_at_store
from app.events.names import NULL
from app.events.normalize import is_recordable
from app.listings.differences import Content, Listed
from app.listings.limits import BadListing


def _time(text: str) -> datetime:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return parse_timestamp(text)  # type: ignore[no-any-return]  # botocore ships no types
    return time if time.tzinfo else time.replace(tzinfo=UTC)


_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_EVENTS = ("before-parse.s3.ListObjectsV2", "before-parse.s3.ListObjectVersions")
_OF_AN_OBJECT, _OF_A_MARKER = ("Key", "LastModified", "Size"), ("Key",)
_OF_OBJECTS_ONLY = ("Size", "ETag")
_BOOLEANS = {"true": True, "false": False}
# Element: the member of botocore's answer, and what its text stands for.
_ENTRIES = {"Contents": "Contents", "Version": "Versions", "DeleteMarker": "DeleteMarkers"}
_VALUES: Mapping[str, Callable[[str], Any]] = {
    "Key": str, "LastModified": _time, "ETag": str, "Size": int, "VersionId": str,
    "IsLatest": lambda text: _BOOLEANS[text.lower()],
}  # fmt: skip


def parse_entries(client: Any) -> None:
    """Have a client of S3 return entries with `Key`, `LastModified`, `ETag`, `Size`, `VersionId`, `IsLatest` only."""
    for event in _EVENTS:
        client.meta.events.register(event, _parse)


def _parse(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: Any) -> None:
    if response_dict["status_code"] != 200:
        return
    try:
        # In no other encoding, as botocore: `app.boto_connections` looks for what would grow.
        root = ElementTree.XML(response_dict["body"], ElementTree.XMLParser(encoding="utf-8"))  # noqa: S314
    except ElementTree.ParseError:
        return  # botocore says what is wrong
    members: dict[str, list[dict[str, Any]]] = {}
    others = []
    for element in root:
        name = _ENTRIES.get(_local(element.tag))
        if name is None:
            others.append(element)
        else:
            members.setdefault(name, []).append(_entry(element))
    if members:
        root[:] = others
        customized_response_dict.update(members)
        ElementTree.register_namespace("", _NAMESPACE)
        response_dict["body"] = ElementTree.tostring(root)


def _entry(element: ElementTree.Element) -> dict[str, Any]:
    entry, is_marker = {}, _local(element.tag) == "DeleteMarker"
    for child in element:
        name = _local(child.tag)
        # MinIO gives a marker a size and an ETag; a marker is known by having none.
        read = None if is_marker and name in _OF_OBJECTS_ONLY else _VALUES.get(name)
        if read is not None:
            try:
                entry[name] = read(child.text or "")
            except (ValueError, KeyError):
                raise BadListing(f"an entry of the listing has {child.text!r:.100} as its {name}") from None
    needed = _OF_A_MARKER if is_marker else _OF_AN_OBJECT
    if missing := [name for name in needed if name not in entry]:
        raise BadListing(f"an entry of the listing, {entry.get('Key', '')!r:.100}, has no {', '.join(missing)}")
    return entry


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


PAGE_KEYS = ("Contents", "Versions", "DeleteMarkers")  # the first in a listing of objects, the others of versions
_MAX_EMPTY_PAGES = 1000  # in a row; S3 passes over what is being deleted in pages without entries
MAX_KEY_BYTES = 1024  # S3's limit
MAX_ETAG = 1024  # characters; real ones have 40
_SIZES = 1 << 63  # bytes, that a number in JSON may have
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


def entries_of(page: Mapping[str, Any], *, versioned: bool) -> list[Listed]:
    """Return the entries of a page that an event can have, of each kind in order.

    Raises `BadListing` for one without a time.
    """
    entries = (_listed(entry, versioned=versioned) for kind in PAGE_KEYS for entry in page.get(kind, ()))
    return [entry for entry in entries if _is_recordable(entry)]


def skipped_of(page: Mapping[str, Any], *, versioned: bool) -> list[str]:
    """Return the keys of the page's other entries: no S3 bucket has such, and nothing can be recorded of them."""
    entries = (_listed(entry, versioned=versioned) for kind in PAGE_KEYS for entry in page.get(kind, ()))
    return [entry.key for entry in entries if not _is_recordable(entry)]


def _is_recordable(entry: Listed) -> bool:
    return (
        is_recordable(entry.key, entry.version)
        and len(entry.content.etag) <= MAX_ETAG
        and 0 <= entry.content.size < _SIZES
    )


def _listed(entry: Mapping[str, Any], *, versioned: bool) -> Listed:
    modified = entry.get("LastModified")
    if modified is None:
        raise BadListing(f"an entry of the listing, {entry['Key']!r:.100}, has no LastModified")
    is_marker = "Size" not in entry
    content = Content(
        entry.get("ETag", "").strip('"'), entry.get("Size", 0), round(modified.timestamp() * 1000), is_marker
    )
    version = entry.get("VersionId", "") or NULL if versioned else ""
    return Listed(entry["Key"], version, content, entry.get("IsLatest", True))


def time_of(page: Mapping[str, Any]) -> int:
    """Return the store's own time (ms) when it answered with a page; 0 if it does not say."""
    date = page.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        return round(parsedate_to_datetime(date).timestamp() * 1000)
    except (TypeError, ValueError, OverflowError):
        return 0


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
    followed: set[tuple[str, ...]] = field(default_factory=set)  # markers of the pages since the last key advanced

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
        if max(self.last.values(), default="") > before:
            self.followed.clear()
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
        marker = tuple(following.values())
        if following == asked or marker in self.followed:
            raise self._bad(f"the page after {following[first][:_SHOWN]!r} is that page again")
        self.followed.add(marker)
        return following

    def _bad(self, problem: str) -> BadListing:
        return BadListing(f"{self.where}: {problem}; nothing is compared with a listing that may lack objects")
