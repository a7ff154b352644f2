"""What a bucket holds, listed from S3 itself: many ranges of keys at once, one request after the other in each.

Endpoint, credentials, region and certificates are found as boto3 finds them: `AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`,
`AWS_ACCESS_KEY_ID`, `AWS_CA_BUNDLE` and so on, on the machine where the job is started; only a file of certificates has
to be where the executors are as well. A range that cannot be listed to its end fails the job.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import boto3  # type: ignore[import-untyped]  # ships no types
from botocore.config import Config
from pyspark.sql import SparkSession

from spark_jobs.listings.listing import Listing
from spark_jobs.schemas import ENTRIES, LISTING

Row = tuple[str, str, int, int, str]  # LISTING
Range = tuple[str, str | None]  # keys after the first, up to and with the second; None: to the end
_KINDS = ("Contents", "Versions", "DeleteMarkers")  # the first of an ordinary listing, the others of one of versions
_LOOKS = 16  # requests that finding the ranges may take


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket, where it is, and who asks; goes to the executors as it is."""

    name: str
    endpoint: str = ""  # empty: AWS itself
    region: str = "us-east-1"
    bundle: str = ""  # of certificates; empty: the system's
    login: tuple[str, str, str | None] | None = field(default=None, repr=False)  # access key, secret key, session token

    @classmethod
    def found(cls, name: str, endpoint: str = "") -> "Bucket":
        """The bucket as boto3's settings here say; an `endpoint` that is given wins."""
        session = boto3.session.Session()
        credentials = session.get_credentials()
        login = tuple(credentials.get_frozen_credentials()[:3]) if credentials else None
        asked = session.client("s3", endpoint_url=endpoint or None, region_name=session.region_name or "us-east-1")
        try:
            place, region = asked.meta.endpoint_url, asked.meta.region_name
        finally:
            asked.close()
        is_aws = (urlsplit(place).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))
        bundle = os.environ.get("AWS_CA_BUNDLE") or session._session.get_config_variable("ca_bundle") or ""
        return cls(name, "" if is_aws else place, region, bundle, login)

    def client(self) -> Any:
        """A client, to be closed by the caller."""
        # A server of one's own has no names for its buckets; on AWS itself boto3 knows better.
        style = {"addressing_style": "path"} if self.endpoint else {}
        access, secret, token = self.login or (None, None, None)
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint or None,
            region_name=self.region,
            verify=self.bundle or None,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            aws_session_token=token,
            config=Config(retries={"mode": "standard", "max_attempts": 5}, s3=style),
        )

    def is_versioned(self) -> bool:
        """Whether the bucket keeps versions, or has kept some."""
        client = self.client()
        try:
            return bool(client.get_bucket_versioning(Bucket=self.name).get("Status"))
        finally:
            client.close()


def listing(
    spark: SparkSession, bucket: Bucket, *, versioned: bool, known: Sequence[str] = (), tasks: int, after: str = ""
) -> Listing:
    """The bucket's objects as LISTING, by `tasks` ranges or more; only those whose keys come after `after`.

    `known` is a sample of its keys, if there is one.
    """
    ranges = between(known, tasks, after) if known else between(prefixes(bucket, tasks), 4 * tasks, after)
    asked = spark.sparkContext.parallelize(ranges, len(ranges))
    nothing = spark.createDataFrame([], "line string")
    newest = asked.flatMap(lambda keys: objects(bucket, keys, versioned=versioned))
    every = asked.flatMap(lambda keys: entries(bucket, keys, versioned=versioned))
    return Listing(
        spark.createDataFrame(newest, LISTING, verifySchema=False),
        versioned,
        nothing,
        entries=spark.createDataFrame(every, ENTRIES, verifySchema=False),
    )


def objects(bucket: Bucket, keys: Range, *, versioned: bool) -> Iterator[Row]:
    """The newest versions in a range that are no delete markers, in the order of their keys."""
    return (_row(one) for one in _listed(bucket, keys, versioned=versioned) if one.get("IsLatest", True) and _is(one))


def entries(bucket: Bucket, keys: Range, *, versioned: bool) -> Iterator[tuple[str, int, bool]]:
    """Every version and every delete marker in a range: ENTRIES."""
    return ((one["Key"], one.get("Size", 0), not _is(one)) for one in _listed(bucket, keys, versioned=versioned))


def _is(one: Any) -> bool:
    """Whether it is an object, and no delete marker, which has no size."""
    return "Size" in one


def _listed(bucket: Bucket, keys: Range, *, versioned: bool) -> Iterator[Any]:
    """What S3 tells of a range, page by page."""
    after, until = keys
    client = bucket.client()
    try:
        if versioned:
            pages = client.get_paginator("list_object_versions").paginate(Bucket=bucket.name, KeyMarker=after)
        else:
            pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name, StartAfter=after)
        for page in pages:
            for kind in _KINDS:
                for one in page.get(kind, ()):
                    if after < one["Key"] and (until is None or one["Key"] <= until):
                        yield one
            last = [one["Key"] for kind in _KINDS for one in page.get(kind, ())[-1:]]
            if until is not None and last and max(last) > until:
                return
    finally:
        client.close()


def between(points: Iterable[str], tasks: int, after: str = "") -> list[Range]:
    """The space of keys after `after` as `tasks` ranges (fewer where the points are), as many points in each."""
    ordered = sorted(point for point in set(points) if point > after)
    chosen = sorted({ordered[len(ordered) * number // tasks] for number in range(1, tasks)}) if ordered else []
    return list(zip([after, *chosen], [*chosen, None], strict=True))


def prefixes(bucket: Bucket, wanted: int) -> list[str]:
    """Prefixes that keys have, by looking into the folders from the outermost until there are enough."""
    client = bucket.client()
    try:
        found, unseen = list[str](), [""]
        for _ in range(_LOOKS):
            if not unseen or len(found) >= 4 * wanted:
                break
            prefix = unseen.pop(0)
            page = client.list_objects_v2(Bucket=bucket.name, Prefix=prefix, Delimiter="/")
            inside = [one["Prefix"] for one in page.get("CommonPrefixes", ())]
            # A page that does not tell all still tells where it ends.
            ends = [one["Key"] for one in page.get("Contents", ())[-1:]] if page.get("IsTruncated") else []
            found += inside + ends
            unseen += inside
        return found
    finally:
        client.close()


def _row(one: Any) -> Row:
    version = one.get("VersionId", "")
    modified = round(one["LastModified"].timestamp() * 1000)
    return one["Key"], one.get("ETag", "").strip('"'), one["Size"], modified, "" if version == "null" else version
