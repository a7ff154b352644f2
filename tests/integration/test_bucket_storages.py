"""Where a bucket is listed, and what of it: buckets of one name in two storages, the keys below a prefix."""

from __future__ import annotations

import io
from typing import cast

import pytest
from botocore.exceptions import ClientError
from pyspark.sql import SparkSession

from app.config.bucket_settings import BucketSettings
from app.listings.limits import BadListing
from spark_jobs.listings import s3_listing
from spark_jobs.listings.listing_source import ListingSource
from tests import services


def test_buckets_of_one_name_in_two_storages_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    with services.minio() as at_minio, services.minio() as other:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", at_minio.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", at_minio.secret_key)
        for server, key in ((at_minio, "here"), (other, "there")):
            server.client().make_bucket("same-name")
            server.client().put_object("same-name", key, io.BytesIO(b"x"), 1)
        login = {"access_key": other.access_key, "secret_key": other.secret_key}
        elsewhere = BucketSettings(endpoint=other.url, **login)
        sources = {
            "here": ListingSource(bucket="same-name", endpoint=at_minio.url),
            "there": ListingSource(bucket="ceph:same-name", access=elsewhere),
        }
        for key, source in sources.items():
            assert [row[0] for row in s3_listing.objects(source.storage, ("", None), versioned=False)] == [key]
        # A storage may say that there is no such bucket, or that there can be none.
        monkeypatch.setattr(s3_listing.Bucket, "is_gone", lambda bucket: bool(bucket.name))
        lost = ListingSource(bucket="ceph:same-name", endpoint=at_minio.url, may_be_gone=True)
        with pytest.raises(BadListing, match=r"no bucket ceph:same-name at .*`bucketwire bucket set` says where it is"):
            lost.list_bucket(cast("SparkSession", None), tasks=1)
        unknown = ListingSource(bucket="ceph:same-name", endpoint=at_minio.url).storage
        with pytest.raises(ClientError, match=r"InvalidBucketName|NoSuchBucket"):
            list(s3_listing.objects(unknown, ("", None), versioned=False))


@pytest.mark.parametrize("versioned", [False, True])
def test_only_the_keys_below_a_prefix_are_listed_whatever_is_in_it(
    monkeypatch: pytest.MonkeyPatch, versioned: bool
) -> None:
    prefix = "p %2F_*'\"+&é🎉/"
    inside = sorted(f"{prefix}{folder}/{number}" for folder in "ab" for number in range(3))
    with services.minio() as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret_key)
        client = server.client()
        client.make_bucket("prefixed")
        for key in (*inside, "p", f"{prefix[:-1]}0/x", "p %/x", "z"):
            client.put_object("prefixed", key, io.BytesIO(b"x"), 1)
        storage = ListingSource(bucket="prefixed", endpoint=server.url, prefix=prefix).storage
        ranges = s3_listing.between(s3_listing.found_bounds(storage, 2), 2)
        found = [row[0] for keys in ranges for row in s3_listing.objects(storage, keys, versioned=versioned)]
    assert found == inside
