"""Read a bucket's listing from a file: JSON lines of `mc ls`, JSON of `aws` and `rclone`, Parquet, or CSV.

A listing that names another place than the whole bucket is refused: all that the bucket has would seem to be missing
from it. So is an empty one, which is what `mc` prints of an empty bucket, and what is left of a file that was lost.
Unreadable lines are counted and kept apart; a listing with unreadable lines is incomplete, so nothing may be removed
from a target because the listing lacks it.

A listing that is one JSON document, or several, is of `aws s3api list-objects-v2` or of `rclone lsjson -R`. It is read
on the machine of the job, one entry at a time, and checked as the pages of S3 are: a listing of another place, of a
part, or cut off looks like a bucket from which the rest was removed. `aws` names the bucket only in single pages and
`rclone` never does, so somebody has to say of what the listing is.
"""

import atexit
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.buckets import name_at_store
from app.listings.limits import BadListing
from spark_jobs.folders import spark_url
from spark_jobs.frames import KEY_HASH, LISTING, by_key, etag, milliseconds, one_per_key, version

_MC = (
    "status string, type string, key string, size bigint, etag string, lastModified string, versionId string, "
    "versionOrdinal bigint, isDeleteMarker boolean, url string"
)
BROKEN_LINE = "broken_line"  # a column that no listing has
_EMPTY = "{} has no entries: if the bucket is empty, list it by S3, without --listing"
_INVENTORY_COLUMNS = ("key", "size", "e_tag", "last_modified_date", "version_id", "is_latest", "is_delete_marker")


@dataclass(frozen=True)
class Listing:
    """A bucket's objects; `unreadable` has the column `line` for each unreadable entry."""

    objects: DataFrame  # a LISTING, perhaps with the hash of each key
    versioned: bool
    unreadable: DataFrame
    problem: str = ""  # an error that the listing itself reports
    entries: DataFrame | None = None  # every version and delete marker: key, size, marker; None if not listed
    single: DataFrame | None = None  # the same objects if no key has two entries, which nobody has checked
    counted: int | None = None  # the unreadable entries, if they have been counted
    note: str = ""  # what else is to be said of it
    has_etags: bool = True  # without them nothing can be repaired, because an event has the ETag

    @property
    def frame(self) -> DataFrame:
        """The LISTING."""
        return self.objects.select(*LISTING.names)

    def where(self, condition: Column) -> "Listing":
        """Return the listing of the keys for which a condition holds; unreadable entries may be of any key."""
        kept = {name: frame.where(condition) for name in ("objects", "entries", "single")
                if (frame := getattr(self, name)) is not None}  # fmt: skip
        return replace(self, **kept)

    @property
    def unreadable_count(self) -> int:
        """The number of unreadable entries; reads the listing again unless they have been counted."""
        return self.unreadable.count() if self.counted is None else self.counted

    def describe_problem(self, unreadable: int) -> str:
        """Return why the listing may be incomplete, with the number of unreadable entries; "" for no reason."""
        lines = f"{unreadable} lines of the listing could not be read." if unreadable else ""
        return " ".join(filter(None, (self.problem, lines)))


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


def from_mc(spark: SparkSession, path: str, bucket: str, *, versioned: bool) -> Listing:
    """Read the output of `mc ls --json --recursive` of the bucket, with `--versions` if `versioned`.

    Raises `BadListing` for an empty one, and one of another bucket, of a prefix or without the objects in folders.
    Lines of an old mc do not name their place.
    """
    lines = spark.read.option("lineSep", "\n").text(spark_url(path)).where(F.trim("value") != "")
    entries = lines.select(F.col("value").alias("line"), F.from_json("value", _MC).alias("e")).select("line", "e.*")
    entries = entries.withColumn("modified", milliseconds(F.col("lastModified")))
    good = _is_true(F.col("status") == "success") & F.col("key").isNotNull() & F.col("modified").isNotNull()
    # A delete marker has no size and no ETag; an object without them is a truncated line.
    good &= _is_true(F.col("isDeleteMarker")) | (F.col("size").isNotNull() & F.col("etag").isNotNull())
    good &= _is_true(F.col("type").isin("file", "folder"))
    if versioned:
        good &= F.col("versionOrdinal").isNotNull()
    failed = F.min(F.when(F.col("status") == "error", F.col("line")))
    name, at_store = re.escape(bucket), re.escape(name_at_store(bucket))
    elsewhere = ~F.col("url").rlike(f"^[^/]*//([^/]*/({name}|{at_store})/?|{at_store}\\.[^/]*/?)$")
    is_folded = F.col("type").eqNullSafe("folder") & F.col("etag").eqNullSafe("") & F.col("isDeleteMarker").isNull()
    [checked] = entries.select(
        failed.alias("failed"),
        F.count_if(~good).alias("unreadable"),
        F.min(F.when(good & elsewhere, F.col("url"))).alias("elsewhere"),
        F.min(F.when(is_folded, F.col("key"))).alias("folder"),
        F.count(F.lit(1)).alias("lines"),
    ).collect()
    if checked["elsewhere"] is not None:
        raise BadListing(f"{path} is a listing of {checked['elsewhere'][:300]}, not of the whole bucket {bucket}")
    if checked["folder"] is not None:
        raise BadListing(
            f"{path} has the folder {checked['folder'][:300]!r} without its objects; use `mc ls --json --recursive`"
        )
    if not checked["lines"]:
        raise BadListing(_EMPTY.format(path))
    problem = "" if checked["failed"] is None else f"mc reported an error: {checked['failed'][:300]}"
    objects = entries.where(good).select(
        "key",
        etag(F.col("etag")).alias("etag"),
        "size",
        "modified",
        version(F.col("versionId")).alias("version"),
        F.coalesce("isDeleteMarker", F.lit(False)).alias("marker"),
        F.coalesce("versionOrdinal", F.lit(0)).alias("ordinal"),
    )
    single = None if versioned else objects.where("not marker").select(*LISTING.names)
    unreadable = entries.where(~good).select("line")
    return Listing(newest(objects), versioned, unreadable, problem, objects, single, checked["unreadable"])


def from_json_documents(spark: SparkSession, path: str, form: str, place: Place) -> Listing:
    """Read a listing of `aws` or `rclone`, which is converted in the temporary folder (TMPDIR) first.

    Raises `BadListing`.
    """
    folder = Path(tempfile.mkdtemp(prefix="bucketwire-listing-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    convert(path, form, place, folder / "entries.jsonl")
    columns = "key string, etag string, size bigint, lastModified string"
    entries = spark.read.schema(columns).json(spark_url(f"{folder}/entries.jsonl"))
    entries = entries.withColumn("modified", milliseconds(F.col("lastModified"))).withColumn("version", F.lit(""))
    good = F.col("modified").isNotNull()
    objects = entries.where(good).select(*LISTING.names)
    unreadable = entries.where(~good).select(F.to_json(F.struct("*")).alias("line"))
    # Of the order that aws promises it is checked that no key is there twice; rclone lists each path once.
    return Listing(by_key(objects), False, unreadable, single=objects, has_etags=form == AWS)


def csv(spark: SparkSession, urls: Sequence[str], names: Sequence[str], **options: str) -> DataFrame:
    """Return the columns of CSV as texts, and as `BROKEN_LINE` each line that is not whole; null for the others."""
    columns = ", ".join(f"`{name.replace('`', '``')}` string" for name in (*names, BROKEN_LINE))
    fixed = {
        "mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN_LINE, "escape": '"', "columnPruning": "false",
    }  # fmt: skip
    return spark.read.schema(columns).options(**fixed | options).csv(list(urls))


def from_csv(spark: SparkSession, path: str, bucket: str, *, versioned: bool) -> Listing:
    """Read CSV whose first line names the columns that `from_columns` needs; quotes in quotes are doubled.

    A line with fewer or more values, and one whose quotes do not end, is unreadable. Raises as `from_parquet` does.
    """
    options = {"escape": '"', "multiLine": "true", "header": "true"}
    names = spark.read.options(**options).csv(spark_url(path)).columns
    frame = csv(spark, [spark_url(path)], names, **options, enforceSchema="false")
    keys = {name: F.when(F.col(BROKEN_LINE).isNull(), F.col(name)) for name in names if name.lower() == "key"}
    return _from_table(frame.withColumns(keys), path, bucket, versioned=versioned)


def from_parquet(spark: SparkSession, path: str, bucket: str, *, versioned: bool) -> Listing:
    """Read Parquet with the columns that `from_columns` needs.

    Raises `BadListing` if one is missing, for no rows, and for a row whose column `bucket`, if there is one, names
    another.
    """
    return _from_table(spark.read.parquet(spark_url(path)), path, bucket, versioned=versioned)


def _from_table(frame: DataFrame, path: str, bucket: str, *, versioned: bool) -> Listing:
    listing = from_columns(frame, path, versioned=versioned)
    if names := [name for name in frame.columns if name.lower() == "bucket"]:
        column = F.col(names[0])
        own = column.eqNullSafe(bucket) | column.eqNullSafe(name_at_store(bucket))
        others = frame.where(~own).select(names[0]).head(1)
        if others:
            raise BadListing(f"{path} is a listing of {others[0][0]}, not of {bucket} only (column {names[0]})")
    if frame.isEmpty():
        raise BadListing(_EMPTY.format(path))
    return listing


def from_columns(frame: DataFrame, location: str, *, versioned: bool) -> Listing:
    """Return the listing of a frame with the columns of S3 Inventory, typed or all texts; `location` is for errors.

    The columns are key, size, e_tag and last_modified_date; for versions also version_id, is_latest and
    is_delete_marker. `etag` and `last_modified` are accepted too. Raises `BadListing` if a column is missing.
    """
    names = {name.lower(): name for name in frame.columns}
    synonyms = {"e_tag": "etag", "last_modified_date": "last_modified"}
    has = {name: names.get(name) or names.get(synonyms.get(name, "")) for name in _INVENTORY_COLUMNS}
    if missing := [name for name in _INVENTORY_COLUMNS[: 7 if versioned else 4] if not has[name]]:
        raise BadListing(f"{location} has no column {', '.join(missing)}; it has {', '.join(frame.columns)}")

    def of(name: str) -> Column:
        return F.col(has[name] or name)

    kind, time = dict(frame.dtypes)[has["last_modified_date"] or ""], of("last_modified_date")
    is_text, size = kind == "string", of("size").try_cast("bigint")
    modified = milliseconds(time) if is_text else F.unix_millis(time.cast("timestamp"))
    if kind == "bigint":  # in Parquet that does not say what its number is, as AWS's own table for Athena has it
        modified = time
    is_marker = of("is_delete_marker").try_cast("boolean") if has["is_delete_marker"] else F.lit(False)
    marker = F.coalesce(is_marker, F.lit(False))
    is_latest = of("is_latest").try_cast("boolean") if versioned else F.lit(True)
    # Conditions on the columns themselves where they say enough: Parquet's statistics then rule out unreadable entries
    # of whole files, which are not read for them.
    good = of("key").isNotNull() & (modified if is_text else time).isNotNull() & is_latest.isNotNull()
    good &= marker | (size.isNotNull() & of("e_tag").isNotNull())
    objects = frame.where(good).select(
        of("key").alias("key"),
        etag(of("e_tag")).alias("etag"),
        size.alias("size"),
        modified.alias("modified"),
        (version(of("version_id")) if versioned else F.lit("")).alias("version"),
        marker.alias("marker"),
        is_latest.cast("bigint").alias("ordinal"),
    )
    unreadable = frame.where(~good).select(F.to_json(F.struct("*")).alias("line"))
    latest = objects.where("ordinal = 1") if versioned else objects
    single = latest.where("not marker").select(*LISTING.names)
    return Listing(newest(latest), versioned, unreadable, entries=objects, single=single)


def newest(objects: DataFrame) -> DataFrame:
    """Return the LISTING of entries: the one with the greatest `ordinal` of each key, unless it is a `marker`.

    It has the hash of each key, too.
    """
    latest = one_per_key(objects, F.max_by(F.struct(*LISTING.names[1:], "marker"), "ordinal"))
    return latest.where("not chosen.marker").select(KEY_HASH, "key", "chosen.*").select(KEY_HASH, *LISTING.names)


def _is_true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


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
