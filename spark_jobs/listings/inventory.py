"""What a bucket holds as S3 Inventory wrote it down: a manifest.json, and CSV, ORC or Parquet files that it names.

Every file of the report has to be there and be what the manifest says, or nothing is read at all: what a lost file
names would be taken for gone. What a prefix keeps out of a report its manifest does not tell.
"""

import atexit
import hashlib
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from botocore.exceptions import BotoCoreError, ClientError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from spark_jobs.listings import s3_listing
from spark_jobs.listings.listing import BadListing, Listing, from_columns

_REMOTE = "s3://"
_CHECKSUM = "manifest.checksum"
_BROKEN = "broken_line"  # a column that no inventory has


@dataclass(frozen=True, slots=True)
class File:
    """One file of a report."""

    key: str
    md5: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One report: what it lists, since when (ms since 1970), and its files."""

    place: str
    bucket: str
    begun: int
    format: str
    schema: str
    files: tuple[File, ...]

    @property
    def versioned(self) -> bool:
        """Whether it lists every version, and not the current ones alone."""
        return "is_latest" in self.schema or "IsLatest" in self.schema

    def listing(self, spark: SparkSession, bucket: str, *, versions: bool | None = None, endpoint: str = "") -> Listing:
        """The listing of `bucket`. Files that are in S3 are fetched into the folder for temporary ones first.

        Raises `BadListing`: also for a report of another bucket, or where one of its files is missing or damaged.
        """
        if self.bucket != bucket:
            raise BadListing(f"{self.place} is an inventory of {self.bucket}, not of {bucket}")
        if versions and not self.versioned:
            raise BadListing(f"{self.place} lists current versions only; have it list all, or leave out --versions")
        found = self._read(spark, [f"file://{path}" for path in self._whole(spark, endpoint)])
        found = found.withColumn("key", F.when(F.col("bucket") == bucket, F.col("key")))
        listing = from_columns(found, self.place, versioned=self.versioned)
        return replace(listing, versioned=False) if versions is False else listing

    def _whole(self, spark: SparkSession, endpoint: str) -> Sequence[str]:
        """Where the files are, each of them looked through from its beginning to its end."""
        source = None
        if self.place.startswith(_REMOTE):
            source = s3_listing.Bucket.found(_split(self.place)[0], endpoint)
            folder = Path(tempfile.mkdtemp(prefix="bucketwire-inventory-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            # Spark overlooks names that begin with a dot or an underscore, and goes by how they end.
            paths = [str(folder / f"{number}-{Path(each.key).name}") for number, each in enumerate(self.files)]
        else:
            paths = [_beside(Path(self.place), each.key) for each in self.files]
        looks = spark.sparkContext.parallelize(list(zip(self.files, paths, strict=True)), len(paths))
        wrong = [said for said in looks.map(lambda each: _look(source, *each)).collect() if said]
        if not wrong and not all(Path(path).is_file() for path in paths):
            wrong = [f"what was fetched to {tempfile.gettempdir()} is not seen here; every machine has to share TMPDIR"]
        if wrong:
            raise BadListing(f"{self.place}: {'; '.join(wrong[:3])}. Nothing of it is read")
        return paths

    def _read(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        if self.format == "CSV":
            return _csv(spark, paths, self.schema)
        if self.format == "Parquet":
            return spark.read.parquet(*paths)
        found = spark.read.orc(list(paths))
        # ORC's times are those of a clock on the wall, S3's in UTC, and are taken for those of the machine's own zone.
        zone = spark.sparkContext._jvm.java.util.TimeZone.getDefault().getID()  # type: ignore[union-attr]  # of a session
        return found.withColumns(
            {name: F.from_utc_timestamp(name, zone) for name, kind in found.dtypes if kind == "timestamp"}
        )


def manifest(place: str, endpoint: str = "") -> Manifest:
    """The report whose manifest.json is at `place`, a path or an s3:// URL. Raises `BadListing`, and what S3 raises."""
    text, checksum = _fetched(place, endpoint)
    if checksum and checksum.split() != [_md5(text).hexdigest().encode()]:
        raise BadListing(f"{place} is not what {_CHECKSUM} beside it says")
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadListing(f"{place} is no JSON: {error}") from None

    def field(name: str, kind: type, holder: Any = found) -> Any:
        value = holder.get(name) if isinstance(holder, dict) else None
        if not isinstance(value, kind) or not value:
            raise BadListing(f"{place}: {name} is missing or empty, so it is no manifest of an S3 Inventory")
        return value

    begun, format_ = field("creationTimestamp", str), field("fileFormat", str)
    if not begun.isdecimal():
        raise BadListing(f"{place}: creationTimestamp has to be milliseconds since 1970")
    if format_ not in ("CSV", "ORC", "Parquet"):
        raise BadListing(f"{place}: fileFormat {format_} is not known; CSV, ORC and Parquet are")
    schema = field("fileSchema", str)
    if not {"bucket", "key"} <= {word.lower() for word in re.findall(r"\w+", schema)}:
        raise BadListing(f"{place}: fileSchema has no bucket and key")
    files = tuple(File(field("key", str, each), field("MD5checksum", str, each)) for each in field("files", list))
    return Manifest(place, field("sourceBucket", str), int(begun), format_, schema, files)


def _csv(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    """The files' columns, under the names that the other formats have; of a line that does not fit them no key."""
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", name.strip()).lower() for name in schema.split(",")]
    columns = ", ".join(f"`{name}` string" for name in (*names, _BROKEN))
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": _BROKEN,
        "escape": '"',
        "lineSep": "\n",
        "columnPruning": "false",
    }
    found = spark.read.schema(columns).options(**options).csv(list(paths))
    key = F.try_url_decode(F.col("key"))  # type: ignore[attr-defined, unused-ignore]  # younger than the stubs
    return found.withColumns({"encoded_key": F.col("key"), "key": F.when(F.col(_BROKEN).isNull(), key)})


def _fetched(place: str, endpoint: str) -> tuple[bytes, bytes]:
    """The manifest and what stands in its checksum's file, which need not be there."""
    if not place.startswith(_REMOTE):
        try:
            beside = Path(place).with_name(_CHECKSUM)
            return Path(place).read_bytes(), beside.read_bytes() if beside.is_file() else b""
        except OSError as error:
            raise BadListing(f"{place} cannot be read: {error.strerror}") from None
    name, key = _split(place)
    client = s3_listing.Bucket.found(name, endpoint).client()
    try:
        text = client.get_object(Bucket=name, Key=key)["Body"].read()
        try:
            folder, slash, _ = key.rpartition("/")
            return text, client.get_object(Bucket=name, Key=folder + slash + _CHECKSUM)["Body"].read()
        except client.exceptions.NoSuchKey:
            return text, b""
    finally:
        client.close()


def _split(url: str) -> tuple[str, str]:
    bucket, _, key = url.removeprefix(_REMOTE).partition("/")
    return bucket, key


def _beside(manifest: Path, key: str) -> str:
    """Where a copy of the report has a file: by its key, or the last parts of it, below the manifest's folders."""
    parts = key.split("/")
    for folder in manifest.absolute().parents:
        for start in range(len(parts)):
            if (path := folder.joinpath(*parts[start:])).is_file():
                return str(path)
    return str(manifest.absolute().parent / parts[-1])


def _look(source: s3_listing.Bucket | None, file: File, path: str) -> str:
    """What is wrong with a file, after it was fetched if there is a source; "" if nothing is."""
    try:
        if source:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            client = source.client()
            try:
                client.download_file(source.name, file.key, path)
            finally:
                client.close()
        with Path(path).open("rb") as opened:
            found = hashlib.file_digest(opened, _md5).hexdigest()
    except (OSError, BotoCoreError, ClientError) as error:
        return f"{file.key} cannot be read: {error}"
    return "" if found == file.md5.lower() else f"{file.key} is damaged: its MD5 is {found}, not {file.md5}"


def _md5(text: bytes = b"") -> "hashlib._Hash":
    return hashlib.md5(text, usedforsecurity=False)  # no secret: whether a copy is whole
