"""Buckets with odd objects, and what a listing of them has."""

from __future__ import annotations

import io
from collections.abc import Iterable

from minio.commonconfig import SnowballObject

from spark_jobs.listings.listing import Listing
from tests import services

ODD = [
    "a.txt", "dir/", "dir/x y+%41é🎉.txt", 'quotes"\'`\\<&>', "new\nline\ttab", "tab\t", "x" * 200, "éa", "日本",
    "%2F", "a+b", "A.TXT", "z" * 3, " lead", "trail ",
]  # fmt: skip


def fill(minio: services.MinIO, bucket: str, *, versioned: bool) -> dict[str, tuple[str, int, str]]:
    """Odd objects, versions and markers; what is there afterwards by minio-py: key to ETag, size and version."""
    client = minio.client()
    client.make_bucket(bucket)
    s3_client = minio.boto3()
    try:
        if versioned:
            s3_client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
        for number, key in enumerate([*ODD, *(f"many/{n % 3}/{n:03}" for n in range(60))]):
            client.put_object(bucket, key, io.BytesIO(b"x" * number), number)
        for key in ("a.txt", "many/1/001"):
            client.put_object(bucket, key, io.BytesIO(b"again"), 5)
        for key in ("many/2/002", "日本"):
            s3_client.delete_object(Bucket=bucket, Key=key)
    finally:
        s3_client.close()
    found = {}
    for one in client.list_objects(bucket, recursive=True, include_version=versioned):
        if not one.is_delete_marker and (not versioned or one.is_latest == "true"):
            version = one.version_id if versioned and one.version_id != "null" else ""
            found[one.object_name] = (one.etag, one.size, version)
    assert len(found) == len(ODD) + 60 - 2
    return found


def unpack(minio: services.MinIO, bucket: str, keys: Iterable[str]) -> None:
    """Objects, all in a request that MinIO unpacks."""
    contents = ((key, key.encode()) for key in keys)
    objects = [SnowballObject(key, data=io.BytesIO(content), length=len(content)) for key, content in contents]
    minio.client().upload_snowball_objects(bucket, objects)


def objects_of(listing: Listing) -> dict[str, tuple[str, int, str]]:
    collected = listing.frame.collect()
    assert all(one["modified"] > 1_700_000_000_000 for one in collected)
    found = {one["key"]: (one["etag"], one["size"], one["version"]) for one in collected}
    assert len(found) == len(collected), "a key comes twice"
    return found
