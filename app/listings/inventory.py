"""Find a report of S3 Inventory: its manifest.json, which says when, of which bucket and in which files it is.

A report is whole only if each of its files matches the checksum in the manifest, and the manifest the one beside it. A
manifest does not show whether the report is limited to a prefix.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import orjson

from app.listings.limits import BadListing
from app.listings.pages import time_of

S3_SCHEME = "s3://"
MARGIN = 86_400_000  # ms before a report's time: what was written or removed since then may be missing from it
_CHECKSUM, _MANIFEST = "manifest.checksum", "manifest.json"
_REPORT, _FOLDER = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}-\d{2}Z"), "%Y-%m-%dT%H-%MZ"
_MINUTE = 60_000  # ms
_MAX_UNFINISHED = 8  # newest folders that may lack a manifest, because they are written at the moment
_MAX_BYTES = 1 << 28  # of a manifest; each file takes 200
_FORMATS = ("CSV", "ORC", "Parquet")

ClientOf = Callable[[str], Any]  # a client of S3 for a bucket's name, which is closed by who asked for it


@dataclass(frozen=True, slots=True)
class ReportFile:
    """One file of a report."""

    key: str
    md5: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One report: its bucket, its files, when its listing was begun, and when it was complete (ms since 1970).

    The store's own clock showed `answered` when it was read; 0 if nobody knows.
    """

    location: str
    bucket: str
    begun: int
    written: int
    format: str
    schema: str
    files: tuple[ReportFile, ...]
    answered: int

    @property
    def versioned(self) -> bool:
        """Whether it lists every version, not only the current ones."""
        return "is_latest" in self.schema or "IsLatest" in self.schema


def manifest(location: str, client_of: ClientOf) -> Manifest:
    """Return the report whose manifest.json is at a path or an s3:// URL, or the newest complete one below a folder.

    Raises `BadListing`, and what S3 raises.
    """
    with _opened(location, client_of) as place:
        if location.endswith(".json"):
            found = place.read(location)
            if found is None:
                raise BadListing(f"{location} cannot be read: No such file or directory")
            checksum = place.read(location.rpartition("/")[0] + f"/{_CHECKSUM}")
            return _parsed(location, found, checksum)
        folder = location.rstrip("/")
        names = sorted((name for name in place.folders(folder) if _REPORT.fullmatch(name)), reverse=True)
        for name in names[:_MAX_UNFINISHED]:
            checksum, found = (place.read(f"{folder}/{name}/{file}") for file in (_CHECKSUM, _MANIFEST))
            if checksum is not None and found is not None:
                return _parsed(f"{folder}/{name}/{_MANIFEST}", found, checksum)
    lacking = (
        f"each of its newest folders lacks {_MANIFEST} or {_CHECKSUM}, also {names[0]}"
        if names
        else "it has no folder such as 2026-11-21T01-00Z; give the one that S3 names after bucket and configuration, "
        "DESTINATION/PREFIX/BUCKET/ID/"
    )
    raise BadListing(f"{location} has no complete report of S3 Inventory: {lacking}")


def split(url: str) -> tuple[str, str]:
    """Return the bucket and the key of an s3:// URL."""
    bucket, _, key = url.removeprefix(S3_SCHEME).partition("/")
    return bucket, key


def md5(text: bytes = b"") -> "hashlib._Hash":
    """Return the hash that S3 uses: an integrity check, not a secret."""
    return hashlib.md5(text, usedforsecurity=False)


class _File(NamedTuple):
    """A file's content, when it was written and when it was read, by its store's clock (ms; 0 if nobody knows)."""

    content: bytes
    written: int
    answered: int = 0


def _parsed(location: str, file: _File, checksum: _File | None) -> Manifest:
    if checksum is not None and checksum.content.split() != [md5(file.content).hexdigest().encode()]:
        raise BadListing(f"{location} does not match the {_CHECKSUM} beside it")
    try:
        content = orjson.loads(file.content)
    except orjson.JSONDecodeError as error:
        raise BadListing(f"{location} is not JSON: {error}") from None

    def field(name: str, kind: type, parent: Any = content) -> Any:
        value = parent.get(name) if isinstance(parent, dict) else None
        if not isinstance(value, kind) or not value:
            raise BadListing(f"{location}: {name} is missing or empty, so it is not a manifest of S3 Inventory")
        return value

    begun, format_ = field("creationTimestamp", str), field("fileFormat", str)
    if not re.fullmatch(r"[0-9]{1,15}", begun):
        raise BadListing(f"{location}: creationTimestamp has to be milliseconds since 1970")
    if format_ not in _FORMATS:
        raise BadListing(f"{location}: fileFormat {format_} is unknown; use CSV, ORC or Parquet")
    schema = field("fileSchema", str)
    if not {"bucket", "key"} <= {word.lower() for word in re.findall(r"\w+", schema)}:
        raise BadListing(f"{location}: fileSchema has no bucket and key")
    if content.get("files") == []:
        raise BadListing(f"{location} names no files: if the bucket is empty, list it by S3, without an inventory")
    files = tuple(ReportFile(field("key", str, one), field("MD5checksum", str, one)) for one in field("files", list))
    bucket, at = field("sourceBucket", str), _begun(location, int(begun))
    return Manifest(location, bucket, at, max(at, file.written), format_, schema, files, file.answered)


def _begun(location: str, created: int) -> int:
    """Return when a report was begun (ms): what its folder says, to the minute, if that is earlier than its manifest.

    Ceph RGW writes into the manifest when the report was complete.
    """
    try:
        folder = datetime.strptime(location.split("/")[-2], _FOLDER).replace(tzinfo=UTC)
    except (IndexError, ValueError):
        return created
    begun = round(folder.timestamp() * 1000)
    return begun if begun + _MINUTE <= created else created


class _Place(Protocol):
    """Where a report is."""

    def read(self, location: str) -> _File | None:
        """Return a file, None if there is no such."""

    def folders(self, location: str) -> Iterator[str]:
        """Yield the names of the folders in a folder."""


@contextmanager
def _opened(location: str, client_of: ClientOf) -> Iterator[_Place]:
    if not location.startswith(S3_SCHEME):
        yield _Disk()
        return
    client = client_of(split(location)[0])
    try:
        yield _Bucket(client)
    finally:
        client.close()


class _Disk:
    def read(self, location: str) -> _File | None:
        path = Path(location)
        try:
            if not path.is_file():
                return None
            with path.open("rb") as file:
                return _File(_limited(location, file.read(_MAX_BYTES + 1)), round(path.stat().st_mtime * 1000))
        except OSError as error:
            raise BadListing(f"{location} cannot be read: {error.strerror}") from None

    def folders(self, location: str) -> Iterator[str]:
        try:
            yield from [path.name for path in Path(location).iterdir() if path.is_dir()]
        except OSError as error:
            raise BadListing(f"{location} cannot be read: {error.strerror}") from None


class _Bucket:
    def __init__(self, client: Any) -> None:
        self._client = client

    def read(self, location: str) -> _File | None:
        name, key = split(location)
        try:
            answer = self._client.get_object(Bucket=name, Key=key)
        except self._client.exceptions.NoSuchKey:
            return None
        content, written = _limited(location, answer["Body"].read(_MAX_BYTES + 1)), answer["LastModified"].timestamp()
        return _File(content, round(written * 1000), time_of(answer))

    def folders(self, location: str) -> Iterator[str]:
        name, key = split(location)
        prefix = f"{key}/" if key else ""
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=name, Prefix=prefix, Delimiter="/"):
            for folder in page.get("CommonPrefixes", ()):
                yield folder["Prefix"].removeprefix(prefix).rstrip("/")


def _limited(location: str, content: bytes) -> bytes:
    if len(content) > _MAX_BYTES:
        raise BadListing(f"{location} has more than {_MAX_BYTES >> 20} MiB, so it is not a manifest of S3 Inventory")
    return content
