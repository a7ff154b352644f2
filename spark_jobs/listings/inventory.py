"""Read an S3 Inventory report: a manifest.json, and the CSV, ORC or Parquet files that it names.

Every file of the report has to exist and match the manifest's checksum, or nothing is read: objects of a lost file
would seem to be deleted. A manifest does not show whether the report is limited to a prefix.
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

from app.config.bucket_settings import BucketSettings
from app.events.buckets import name_at_store
from app.listings.errors import BadListing
from spark_jobs.folders import Folder
from spark_jobs.listings import s3_listing
from spark_jobs.listings.listing import BROKEN_LINE, Listing, csv, from_columns

_S3_SCHEME = "s3://"
_CHECKSUM = "manifest.checksum"


@dataclass(frozen=True, slots=True)
class ReportFile:
    """One file of a report."""

    key: str
    md5: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One report: its bucket, when its listing was begun (ms since 1970), and its files."""

    location: str
    bucket: str
    begun: int
    format: str
    schema: str
    files: tuple[ReportFile, ...]

    @property
    def versioned(self) -> bool:
        """Whether it lists every version, not only the current ones."""
        return "is_latest" in self.schema or "IsLatest" in self.schema

    def listing(
        self, spark: SparkSession, bucket: str, *, versions: bool | None = None, endpoint: str = "",
        access: BucketSettings | None = None,
    ) -> Listing:  # fmt: skip
        """Return the listing of `bucket`. Files in S3 are downloaded to the temporary folder first, by its `access`.

        Raises `BadListing`, also for a report of another bucket, or if one of its files is missing or damaged.
        """
        if self.bucket not in (bucket, name_at_store(bucket)):
            raise BadListing(f"{self.location} is an inventory of {self.bucket}, not of {bucket}")
        if versions and not self.versioned:
            raise BadListing(f"{self.location} lists current versions only; leave out --versions, or list all versions")
        paths = self._verified_files(spark, endpoint, access)
        entries = self._read(spark, [Folder.of(path).reading_url for path in paths])
        entries = entries.withColumn("key", F.when(F.col("bucket") == self.bucket, F.col("key")))
        listing = from_columns(entries, self.location, versioned=self.versioned)
        return replace(listing, versioned=False) if versions is False else listing

    def _verified_files(self, spark: SparkSession, endpoint: str, access: BucketSettings | None) -> Sequence[str]:
        """Return the paths of the files, after their checksums were verified."""
        source = None
        if self.location.startswith(_S3_SCHEME):
            source = s3_listing.Bucket.from_boto3(_split(self.location)[0], endpoint, access)
            folder = Path(tempfile.mkdtemp(prefix="bucketwire-inventory-"))
            atexit.register(shutil.rmtree, folder, ignore_errors=True)
            # Spark skips names that begin with a dot or an underscore, and detects compression by the ending.
            paths = [str(folder / f"{number}-{Path(file.key).name}") for number, file in enumerate(self.files)]
        else:
            paths = [_local_path(Path(self.location), file.key) for file in self.files]
        files = spark.sparkContext.parallelize(list(zip(self.files, paths, strict=True)), len(paths))
        problems = [problem for problem in files.map(lambda file: _verify(source, *file)).collect() if problem]
        if not problems and not all(Path(path).is_file() for path in paths):
            problems = [
                f"executors downloaded files to {tempfile.gettempdir()}, where the driver lacks them; share TMPDIR"
            ]
        if problems:
            raise BadListing(f"{self.location}: {'; '.join(problems[:3])}. Nothing of the report was read")
        return paths

    def _read(self, spark: SparkSession, paths: Sequence[str]) -> DataFrame:
        if self.format == "CSV":
            return _csv(spark, paths, self.schema)
        if self.format == "Parquet":
            return spark.read.parquet(*paths)
        # ORC's times have no zone; S3 writes UTC, and Java reads them in its own. Executors have UTC by the session.
        zones = spark.sparkContext._jvm.java.util.TimeZone  # type: ignore[union-attr]  # of a session
        zones.setDefault(zones.getTimeZone("UTC"))
        return spark.read.orc(list(paths))


def manifest(location: str, endpoint: str = "", access: BucketSettings | None = None) -> Manifest:
    """Return the report whose manifest.json is at a path or an s3:// URL, by the `access` to the bucket that it lists.

    Raises `BadListing`, and what S3 raises.
    """
    text, checksum = _read_manifest(location, endpoint, access)
    if checksum and checksum.split() != [_md5(text).hexdigest().encode()]:
        raise BadListing(f"{location} does not match the {_CHECKSUM} beside it")
    try:
        content = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadListing(f"{location} is not JSON: {error}") from None

    def field(name: str, kind: type, parent: Any = content) -> Any:
        value = parent.get(name) if isinstance(parent, dict) else None
        if not isinstance(value, kind) or not value:
            raise BadListing(f"{location}: {name} is missing or empty, so it is not a manifest of S3 Inventory")
        return value

    begun, format_ = field("creationTimestamp", str), field("fileFormat", str)
    if not begun.isdecimal():
        raise BadListing(f"{location}: creationTimestamp has to be milliseconds since 1970")
    if format_ not in ("CSV", "ORC", "Parquet"):
        raise BadListing(f"{location}: fileFormat {format_} is unknown; use CSV, ORC or Parquet")
    schema = field("fileSchema", str)
    if not {"bucket", "key"} <= {word.lower() for word in re.findall(r"\w+", schema)}:
        raise BadListing(f"{location}: fileSchema has no bucket and key")
    files = tuple(ReportFile(field("key", str, file), field("MD5checksum", str, file)) for file in field("files", list))
    return Manifest(location, field("sourceBucket", str), int(begun), format_, schema, files)


def _csv(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    """Read the files' columns under the names of the other formats; the key of a malformed line is null."""
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", name.strip()).lower() for name in schema.split(",")]
    entries = csv(spark, paths, names, lineSep="\n")
    key = F.try_url_decode(F.col("key"))  # type: ignore[attr-defined, unused-ignore]  # younger than the stubs
    return entries.withColumns({"encoded_key": F.col("key"), "key": F.when(F.col(BROKEN_LINE).isNull(), key)})


def _read_manifest(location: str, endpoint: str, access: BucketSettings | None) -> tuple[bytes, bytes]:
    """Return the contents of the manifest and of its checksum file; the latter may be missing."""
    if not location.startswith(_S3_SCHEME):
        try:
            checksum = Path(location).with_name(_CHECKSUM)
            return Path(location).read_bytes(), checksum.read_bytes() if checksum.is_file() else b""
        except OSError as error:
            raise BadListing(f"{location} cannot be read: {error.strerror}") from None
    name, key = _split(location)
    client = s3_listing.Bucket.from_boto3(name, endpoint, access).client()
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
    bucket, _, key = url.removeprefix(_S3_SCHEME).partition("/")
    return bucket, key


def _local_path(manifest: Path, key: str) -> str:
    """Find a file of a copied report: its key, or the last parts of its key, below a parent folder of the manifest."""
    parts = key.split("/")
    for folder in manifest.absolute().parents:
        for start in range(len(parts)):
            if (path := folder.joinpath(*parts[start:])).is_file():
                return str(path)
    return str(manifest.absolute().parent / parts[-1])


def _verify(source: s3_listing.Bucket | None, file: ReportFile, path: str) -> str:
    """Download the file if there is a source, and return what is wrong with it; "" for nothing."""
    try:
        if source:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            client = source.client()
            try:
                client.download_file(source.name, file.key, path)
            finally:
                client.close()
        with Path(path).open("rb") as content:
            digest = hashlib.file_digest(content, _md5).hexdigest()
    except (OSError, BotoCoreError, ClientError) as error:
        return f"{file.key} cannot be read: {error}"
    return "" if digest == file.md5.lower() else f"{file.key} is damaged: its MD5 is {digest}, not {file.md5}"


def _md5(text: bytes = b"") -> "hashlib._Hash":
    return hashlib.md5(text, usedforsecurity=False)  # an integrity check, not a secret
