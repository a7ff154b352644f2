"""List a bucket from S3: many key ranges in parallel, the pages of each range one after the other.

boto3 finds endpoint, credentials, region and certificates: `AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`, `AWS_ACCESS_KEY_ID`,
`AWS_CA_BUNDLE` and so on, on the machine where the job is started; only a certificate bundle has to exist on the
executors as well. A range that cannot be listed to its end fails the job (`pages`).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import boto3  # type: ignore[import-untyped]  # ships no types
from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.handlers import validate_bucket_name
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)

import app.boto_connections  # noqa: F401 - reads answers strictly
from app.config.bucket_settings import BucketSettings
from spark_jobs.listings.listing import Listing
from spark_jobs.listings.pages import PAGE_KEYS, is_bound, pages
from spark_jobs.schemas import ENTRIES, LISTING

Row = tuple[str, str, int, int, str]  # LISTING
KeyRange = tuple[str, str | None]  # keys after the first, up to and including the second; None: to the end
_MAX_PREFIX_REQUESTS = 16


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, its endpoint and the credentials; it is sent to the executors."""

    name: str
    endpoint: str = ""  # empty: AWS itself
    region: str = "us-east-1"
    ca_bundle: str = ""  # a file of certificates; empty: the system's
    login: tuple[str, str, str | None] | None = field(default=None, repr=False)  # access key, secret key, session token
    prefix: str = ""  # only the keys that begin with it

    @classmethod
    def from_boto3(cls, name: str, endpoint: str = "", settings: BucketSettings | None = None) -> "Bucket":
        """Return the bucket by boto3's settings here; `endpoint` overrides them, and the bucket's own `settings` both.

        `name` is the one that its storage has for it.
        """
        own, session = settings or BucketSettings(), boto3.session.Session()
        region, endpoint = own.region or session.region_name or "us-east-1", own.endpoint or endpoint
        if own.access_key:
            login: tuple[str, str, str | None] | None = own.access_key, own.secret_key, own.session_token or None
        else:
            credentials = session.get_credentials()
            login = tuple(credentials.get_frozen_credentials()[:3]) if credentials else None
        client = session.client("s3", endpoint_url=endpoint or None, region_name=region)
        try:
            url, region = client.meta.endpoint_url, client.meta.region_name
        finally:
            client.close()
        is_aws = (urlsplit(url).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
        ca_bundle = (
            own.tls_ca or os.environ.get("AWS_CA_BUNDLE") or session._session.get_config_variable("ca_bundle") or ""
        )
        return cls(name, "" if is_aws else url, region, own.tls_ca or ca_bundle, login)

    def client(self) -> Any:
        """Return a client; the caller closes it."""
        # Self-hosted servers usually have no DNS names for buckets; for AWS boto3 chooses.
        style = {"addressing_style": "path"} if self.endpoint else {}
        access, secret, token = self.login or (None, None, None)
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint or None,
            region_name=self.region,
            verify=self.ca_bundle or None,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(retries={"mode": "standard", "max_attempts": 5}, s3=style),
        )
        # AWS has no TENANT:BUCKET, as Ceph calls a bucket of another tenant than that of the credentials.
        client.meta.events.unregister("before-parameter-build.s3", validate_bucket_name)
        return client

    def is_gone(self) -> bool:
        """Return whether the server says that there is no such bucket. Any other error is raised."""
        client = self.client()
        try:
            client.list_objects_v2(Bucket=self.name, MaxKeys=1)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") != "NoSuchBucket":  # a proxy's 404 is no evidence
                raise
            return True
        finally:
            client.close()
        return False

    def is_versioned(self) -> bool:
        """Return whether versioning is or was enabled."""
        client = self.client()
        try:
            return bool(client.get_bucket_versioning(Bucket=self.name).get("Status"))
        finally:
            client.close()


def listing(
    spark: SparkSession, bucket: Bucket, *, versioned: bool, sample: Sequence[str] = (), tasks: int, after: str = ""
) -> Listing:
    """Return the bucket's objects as LISTING, in `tasks` ranges or more; only those whose keys come after `after`.

    `sample` has some of its keys, if they are known.
    """
    ranges = between(sample, tasks, after) if sample else between(prefixes(bucket, tasks), 4 * tasks, after)
    key_ranges = spark.sparkContext.parallelize(ranges, len(ranges))
    unreadable = spark.range(0).select(F.lit("").alias("line"))
    newest = key_ranges.flatMap(lambda keys: objects(bucket, keys, versioned=versioned))
    all_entries = key_ranges.flatMap(lambda keys: entries(bucket, keys, versioned=versioned))
    frame = spark.createDataFrame(newest, LISTING, verifySchema=False)
    return Listing(
        frame, versioned, unreadable, entries=spark.createDataFrame(all_entries, ENTRIES, verifySchema=False),
        single=frame,
    )  # fmt: skip


def of_no_bucket(spark: SparkSession, bucket: Bucket) -> Listing:
    """Return the listing of a bucket that is gone: it has no objects."""
    nothing = spark.createDataFrame([], LISTING)
    return Listing(
        nothing, False, spark.range(0).select(F.lit("").alias("line")), single=nothing,
        note=f"There is no bucket {bucket.name} at {bucket.endpoint or 'AWS'}, so that every row is orphaned.",
    )  # fmt: skip


def objects(bucket: Bucket, keys: KeyRange, *, versioned: bool) -> Iterator[Row]:
    """Yield the objects of a range, each in its newest version, in the order of their keys."""
    for entry in _listed(bucket, keys, versioned=versioned):
        if entry.get("IsLatest", True) and _is_object(entry):
            yield _row(entry)


def entries(bucket: Bucket, keys: KeyRange, *, versioned: bool) -> Iterator[tuple[str, int, bool]]:
    """Yield every version and every delete marker of a range: ENTRIES."""
    for entry in _listed(bucket, keys, versioned=versioned):
        yield entry["Key"], entry.get("Size", 0), not _is_object(entry)


def _is_object(entry: Any) -> bool:
    """Return whether it is an object, not a delete marker, which has no size."""
    return "Size" in entry


def _listed(bucket: Bucket, keys: KeyRange, *, versioned: bool) -> Iterator[Any]:
    """Yield S3's entries of a range, page by page."""
    after, until = keys
    client = bucket.client()
    try:
        for page in pages(client, bucket.name, after, versioned=versioned, prefix=bucket.prefix):
            for kind in PAGE_KEYS:
                for entry in page.get(kind, ()):
                    if after < entry["Key"] and (until is None or entry["Key"] <= until):
                        yield entry
            last = [entry["Key"] for kind in PAGE_KEYS for entry in page.get(kind, ())[-1:]]
            if until is not None and last and max(last) > until:
                return
    finally:
        client.close()


def between(points: Iterable[str], tasks: int, after: str = "") -> list[KeyRange]:
    """Divide the keys after `after` into `tasks` ranges (fewer for few points) with the same number of points each."""
    ordered = sorted(point for point in set(points) if point > after and is_bound(point))
    bounds = sorted({ordered[len(ordered) * number // tasks] for number in range(1, tasks)}) if ordered else []
    return list(zip([after, *bounds], [*bounds, None], strict=True))


def prefixes(bucket: Bucket, count: int) -> list[str]:
    """Return prefixes of keys: list the folders, outermost first, until there are enough."""
    client = bucket.client()
    try:
        known, unlisted = list[str](), [bucket.prefix]
        for _ in range(_MAX_PREFIX_REQUESTS):
            if not unlisted or len(known) >= 4 * count:
                break
            prefix = unlisted.pop(0)
            page = client.list_objects_v2(Bucket=bucket.name, Prefix=prefix, Delimiter="/")
            folders = [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
            # The last key of a truncated page is a bound too.
            ends = [entry["Key"] for entry in page.get("Contents", ())[-1:]] if page.get("IsTruncated") else []
            known += folders + ends
            unlisted += folders
        return known
    finally:
        client.close()


def _row(entry: Any) -> Row:
    version = entry.get("VersionId", "")
    modified = round(entry["LastModified"].timestamp() * 1000)
    return entry["Key"], entry.get("ETag", "").strip('"'), entry["Size"], modified, "" if version == "null" else version
