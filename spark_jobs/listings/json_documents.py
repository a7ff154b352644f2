"""Read a listing that is one JSON document, or several: of `aws s3api list-objects-v2` and of `rclone lsjson -R`.

They are read on the machine of the job, one entry at a time, and checked as the pages of S3 are: a listing of another
place, of a part, or cut off looks like a bucket from which the rest was removed. `aws` names the bucket only in single
pages and `rclone` never does, so somebody has to say of what the listing is.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from app.listings.limits import BadListing

AWS, RCLONE = "aws", "rclone"
_CHUNK = 1 << 20  # characters
_MAX_VALUE = 1 << 24  # characters of one entry
_BEGINNING = 1 << 16  # characters by which a form is recognised
_SHOWN = 100  # characters of a key in an error
_OF_AWS = (
    "Contents", "IsTruncated", "Name", "Prefix", "Delimiter", "MaxKeys", "CommonPrefixes", "EncodingType", "KeyCount",
    "ContinuationToken", "NextContinuationToken", "StartAfter", "RequestCharged", "NextToken",
)  # fmt: skip
_BEGINS_AWS = re.compile(rf'\s*\{{\s*"(?:{"|".join(_OF_AWS)})"\s*:')
Entry = Mapping[str, Any]  # key, etag (None: unknown), size and lastModified
Event = tuple[str, str, Any]  # what, the name of the member, its value


@dataclass(frozen=True, slots=True)
class Place:
    """What is to be listed: a bucket by the names that a listing may have for it, and the prefix of its keys.

    `stated` is of what somebody says that the listing is, as BUCKET or BUCKET/PREFIX; "" if nobody does.
    """

    buckets: frozenset[str]
    prefix: str = ""
    stated: str = ""

    def check_statement(self, where: str) -> None:
        """Raise `BadListing` if the listing is said to be one of another place."""
        bucket, _, prefix = self.stated.partition("/")
        if self.stated:
            self.check_bucket(where, bucket)
            self.check_prefix(where, prefix)

    def check_bucket(self, where: str, bucket: str) -> None:
        """Raise `BadListing` for the name of another bucket."""
        if bucket not in self.buckets:
            raise BadListing(f"{where} is a listing of the bucket {bucket[:_SHOWN]!r}, not of {min(self.buckets)}")

    def check_prefix(self, where: str, prefix: str) -> None:
        """Raise `BadListing` for a listing of a prefix that lacks keys which are to be listed."""
        if not self.prefix.startswith(prefix):
            raise BadListing(
                f"{where} is a listing of the keys below {prefix[:_SHOWN]!r} only; give --prefix for a run about them"
            )

    def need_statement(self, where: str) -> None:
        """Raise `BadListing` if nobody says of what a listing is that does not say it itself."""
        if not self.stated:
            raise BadListing(
                f"{where} does not say of which bucket it is; say it: --listing-of BUCKET or BUCKET/PREFIX"
            )


def form_of(path: str) -> str:
    """Return the form of a file on this machine: `AWS`, `RCLONE`, or "" for another, or none."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as stream:
            beginning = stream.read(_BEGINNING)
    except (OSError, ValueError):
        return ""
    if beginning.lstrip().startswith("["):
        return RCLONE
    return AWS if _BEGINS_AWS.match(beginning) else ""


def convert(path: str, form: str, place: Place, to: Path) -> None:
    """Write the entries of a listing as JSON lines: key, etag, size, lastModified. Raises `BadListing`."""
    place.check_statement(path)
    read = {AWS: aws_entries, RCLONE: rclone_entries}[form]
    try:
        with Path(path).open(encoding="utf-8") as stream, to.open("w") as lines:
            number = 0
            for number, entry in enumerate(read(stream, path, place), 1):  # noqa: B007 - their number
                lines.write(json.dumps(entry) + "\n")
    except UnicodeDecodeError:
        raise BadListing(f"{path} is not text in UTF-8") from None
    if not number:
        raise BadListing(f"{path} has no entries: if the bucket is empty, list it by S3, without --listing")


def aws_entries(stream: TextIO, where: str, place: Place) -> Iterator[Entry]:
    """Yield the entries of the output of `aws s3api list-objects-v2 --output json`, of one call or of each page.

    Raises `BadListing`, perhaps after some entries.
    """
    state = _Pages(where, place)
    for what, name, value in _events(stream, where):
        if what == "item" and name == "Contents":
            yield state.entry(value)
        elif what == "item":
            state.members.setdefault(name, []).append(None)  # that there are some
        elif what == "member":
            state.members[name] = value
        elif what == "end":
            state.end_document()
    state.end()


@dataclass(slots=True)
class _Pages:
    """What has been read of the documents of aws."""

    where: str
    place: Place
    members: dict[str, Any] = field(default_factory=dict)  # of the document
    entries: int = 0  # of the document
    last: str | None = None  # key
    is_encoded: bool = False  # whether a key of the document may be encoded for URLs
    documents: int = 0
    following: str | None = None  # the token of the page that has to follow

    def entry(self, value: Any) -> Entry:
        """Check an object of `Contents`, and return it."""
        entry = _checked(value, self.where, key="Key", etag="ETag", size="Size", time="LastModified")
        key = entry["key"]
        if self.last is not None and key <= self.last:
            raise BadListing(
                f"{self.where} lists {key[:_SHOWN]!r} after {self.last[:_SHOWN]!r}, which is not S3's order (by the "
                "bytes of UTF-8), so that a part of it may be missing or there twice"
            )
        self.last, self.entries = key, self.entries + 1
        self.is_encoded |= "%" in key or "+" in key
        return entry

    def end_document(self) -> None:
        """Check a whole document."""
        members, where = self.members, self.where
        if unknown := [name for name in members if name not in _OF_AWS]:
            raise BadListing(f"{where} is not of `aws s3api list-objects-v2`: it has {unknown[0][:_SHOWN]!r}")
        if self.documents and self.following is None:
            raise BadListing(f"{where} has another listing after one that ended; keep one of them")
        if members.get("ContinuationToken", self.following) != self.following:
            raise BadListing(f"{where}: page {self.documents + 1} is not the one that follows the page before it")
        if members.get("Name"):
            self.place.check_bucket(where, str(members["Name"]))
        else:
            self.place.need_statement(where)
        self.place.check_prefix(where, str(members.get("Prefix") or ""))
        if members.get("CommonPrefixes") or members.get("Delimiter"):
            raise BadListing(f"{where} has folders without their objects; list without --delimiter")
        if members.get("StartAfter"):
            after = str(members["StartAfter"])[:_SHOWN]
            raise BadListing(f"{where} begins after {after!r}; list without --start-after")
        if members.get("EncodingType") and self.is_encoded:
            raise BadListing(f"{where} does not show whether its keys are encoded; list without --no-paginate")
        count = members.get("KeyCount", self.entries)
        if count != self.entries:
            raise BadListing(f"{where}: a page has {self.entries} of its {count} objects")
        if members.get("NextToken"):
            raise BadListing(f"{where} is cut off: it ends with a NextToken; list without --max-items")
        self.following = None
        if members.get("IsTruncated"):
            if not members.get("NextContinuationToken"):
                raise BadListing(f"{where}: a page is not the last one (IsTruncated), and does not say what follows")
            self.following = str(members["NextContinuationToken"])
        self.members, self.entries, self.is_encoded, self.documents = {}, 0, False, self.documents + 1

    def end(self) -> None:
        """Check the end of the file."""
        if self.following is not None:
            raise BadListing(f"{self.where} is cut off: its last page says that more follow (IsTruncated)")


def rclone_entries(stream: TextIO, where: str, place: Place) -> Iterator[Entry]:
    """Yield the entries of the output of `rclone lsjson -R` of a bucket, or of a folder in it. ETags are unknown.

    Raises `BadListing`, perhaps after some entries.
    """
    place.need_statement(where)
    folder = place.stated.partition("/")[2]
    base = f"{folder.rstrip('/')}/" if folder else ""
    documents, depth, folders_depth = 0, 0, 0
    for what, _, value in _events(stream, where):
        documents += what == "begin"
        if documents > 1 or what == "member":
            raise BadListing(f"{where} is not one list of `rclone lsjson`")
        if what != "item":
            continue
        path = value.get("Path") if isinstance(value, Mapping) else None
        if not isinstance(path, str) or not path:
            raise BadListing(f"{where} has an entry without a Path, so it is not of `rclone lsjson`")
        parts = path.count("/") + 1
        if value.get("IsDir"):
            folders_depth = max(folders_depth, parts)
            continue
        depth = max(depth, parts)
        named = {"Key": base + path, "Size": value.get("Size"), "LastModified": value.get("ModTime"), "ETag": ""}
        yield _checked(named, where, key="Key", etag="ETag", size="Size", time="LastModified") | {"etag": None}
    if folders_depth >= depth and folders_depth:
        raise BadListing(f"{where} has folders without their objects; list by `rclone lsjson -R` to any depth")


def _checked(value: Any, where: str, *, key: str, etag: str, size: str, time: str) -> dict[str, Any]:
    """Return an object's entry. Raises `BadListing` for what is none."""
    found = value if isinstance(value, Mapping) else {}
    wanted = {key: str, etag: str, size: int, time: str}
    wrong = [name for name, kind in wanted.items() if not isinstance(found.get(name), kind) or found[name] is True]
    if wrong or found[size] < 0 or not found[key]:
        raise BadListing(f"{where} has an entry without {(wrong or [size])[0]}: {str(value)[:300]}")
    try:
        found[key].encode()
    except UnicodeEncodeError:
        raise BadListing(f"{where} has a key that is not text: {found[key][:_SHOWN]!r}") from None
    return {"key": found[key], "etag": found[etag].strip('"'), "size": found[size], "lastModified": found[time]}


def _events(stream: TextIO, where: str) -> Iterator[Event]:
    """Yield what is in a file of JSON documents: `begin`, each `item` of a list, each other `member`, `end`."""
    text = _Text(stream, where)
    while text.next() != "":
        yield "begin", "", None
        if text.next() == "[":
            yield from (("item", "", value) for value in text.parts("[", "]", text.value))
        else:
            for name, is_list in text.parts("{", "}", text.name):
                if is_list:
                    yield from (("item", name, value) for value in text.parts("[", "]", text.value))
                else:
                    yield "member", name, text.value()
        yield "end", "", None


class _Text:
    """JSON of which a part is in memory."""

    def __init__(self, stream: TextIO, where: str) -> None:
        self._stream, self._where, self._text, self._at = stream, where, "", 0
        self._decoder = json.JSONDecoder()

    def next(self) -> str:
        """Return the next character that is not blank, "" at the end; it is not taken."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n\ufeff":
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self) -> Any:
        """Take a value."""
        self.next()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except ValueError:
                if len(self._text) - self._at > _MAX_VALUE or not self._more():
                    raise self._bad() from None
                continue
            if end == len(self._text) and self._more():
                continue  # a number may go on
            self._at = end
            return value

    def name(self) -> tuple[str, bool]:
        """Take the name of a member, and return it, and whether its value is a list."""
        name = self.value()
        if not isinstance(name, str):
            raise self._bad()
        self._take(":")
        return name, self.next() == "["

    def parts(self, begin: str, end: str, take: Callable[[], Any]) -> Iterator[Any]:
        """Take what is between two characters, divided by commas. The caller takes what follows a part of it."""
        self._take(begin)
        if self.next() == end:
            self._at += 1
            return
        while True:
            yield take()
            if self.next() == end:
                self._at += 1
                return
            self._take(",")

    def _take(self, character: str) -> None:
        if self.next() != character:
            raise self._bad()
        self._at += 1

    def _more(self) -> bool:
        chunk = self._stream.read(_CHUNK)
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)

    def _bad(self) -> BadListing:
        if self.next() == "" or len(self._text) - self._at < _CHUNK:
            return BadListing(f"{self._where} is cut off, or no JSON, after {self._text[: self._at][-_SHOWN:]!r}")
        return BadListing(f"{self._where} is no JSON after {self._text[: self._at][-_SHOWN:]!r}")
