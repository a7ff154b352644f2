"""Read a report of S3 Inventory: the CSV, ORC or Parquet files that its manifest names.

Every file of the report has to exist and match the manifest's checksum, or nothing is read: objects of a lost file
would seem to be deleted.
"""

import atexit
import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from boto3.s3.transfer import S3Transfer  # type: ignore[import-untyped]  # ships no types
from botocore.exceptions import BotoCoreError, ClientError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

from app.events.buckets import name_at_store
from app.listings import inventory
from app.listings.inventory import Manifest, ReportFile
from app.listings.limits import BadListing
from spark_jobs.folders import Folder
from spark_jobs.listings import s3_listing
from spark_jobs.listings.listing import BROKEN_LINE, Listing, csv, from_columns

Storage = Callable[[str], s3_listing.Bucket]  # the bucket of a name, in which reports are


def listing_of(
    spark: SparkSession, report: Manifest, bucket: str, storage: Storage, *, versions: bool | None = None
) -> Listing:
    """Return the listing of `bucket` that a report is. Files in S3 are downloaded to the temporary folder first.

    Raises `BadListing`, also for a report of another bucket, or if one of its files is missing or damaged.
    """
    if report.bucket not in (bucket, name_at_store(bucket)):
        raise BadListing(f"{report.location} is an inventory of {report.bucket}, not of {bucket}")
    if versions and not report.versioned:
        raise BadListing(
            f"{report.location} lists current versions only; have it include all versions, or list no versions"
        )
    paths = _verified_files(spark, report, storage)
    entries = _read(spark, report, [Folder.of(path).reading_url for path in paths])
    entries = entries.withColumn("key", F.when(F.col("bucket") == report.bucket, F.col("key")))
    listing = from_columns(entries, report.location, versioned=report.versioned)
    return replace(listing, versioned=False) if versions is False else listing


def _verified_files(spark: SparkSession, report: Manifest, storage: Storage) -> Sequence[str]:
    """Return the paths of the files, after their checksums were verified."""
    source = None
    if report.location.startswith(inventory.S3_SCHEME):
        source = storage(inventory.split(report.location)[0])
        folder = Path(tempfile.mkdtemp(prefix="bucketwire-inventory-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        # Spark skips names that begin with a dot or an underscore, and detects compression by the ending.
        paths = [str(folder / f"{number}-{Path(file.key).name}") for number, file in enumerate(report.files)]
    else:
        paths = [_local_path(Path(report.location), file.key) for file in report.files]
    files = spark.sparkContext.parallelize(list(zip(report.files, paths, strict=True)), len(paths))
    problems = [problem for problem in files.map(lambda file: _verify(source, *file)).collect() if problem]
    if not problems and not all(Path(path).is_file() for path in paths):
        problems = [f"executors downloaded files to {tempfile.gettempdir()}, where the driver lacks them; share TMPDIR"]
    if problems:
        raise BadListing(f"{report.location}: {'; '.join(problems[:3])}. Nothing of the report was read")
    return paths


def _read(spark: SparkSession, report: Manifest, paths: Sequence[str]) -> DataFrame:
    if report.format == "CSV":
        return _csv(spark, paths, report.schema)
    if report.format == "Parquet":
        return spark.read.parquet(*paths)
    # ORC's times have no zone; S3 writes UTC, and Java reads them in its own. Executors have UTC by the session.
    zones = spark.sparkContext._jvm.java.util.TimeZone  # type: ignore[union-attr]  # of a session
    zones.setDefault(zones.getTimeZone("UTC"))
    return spark.read.orc(list(paths))


def _csv(spark: SparkSession, paths: Sequence[str], schema: str) -> DataFrame:
    """Read the files' columns under the names of the other formats; the key of a malformed line is null."""
    names = [re.sub(r"(?<!^)(?=[A-Z])", "_", name.strip()).lower() for name in schema.split(",")]
    entries = csv(spark, paths, names, lineSep="\n")
    key = F.try_url_decode(F.col("key"))  # type: ignore[attr-defined, unused-ignore]  # younger than the stubs
    return entries.withColumns({"encoded_key": F.col("key"), "key": F.when(F.col(BROKEN_LINE).isNull(), key)})


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
                with S3Transfer(client) as transfer:  # whose threads end with it
                    transfer.download_file(source.name, file.key, path)
            finally:
                client.close()
                source.end()
        with Path(path).open("rb") as content:
            digest = hashlib.file_digest(content, inventory.md5).hexdigest()
    except (OSError, BotoCoreError, ClientError) as error:
        return f"{file.key} cannot be read: {error}"
    return "" if digest == file.md5.lower() else f"{file.key} is damaged: its MD5 is {digest}, not {file.md5}"
