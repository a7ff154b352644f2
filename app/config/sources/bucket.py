"""The settings of a bucket that is watched by listings."""

from collections.abc import Iterator
from typing import Literal

from app.config.bucket_settings import BucketSettings, StorageName
from app.config.errors import Problem
from app.config.fields.aws import Endpoint, Inventory, Region, catalog_of
from app.config.fields.field_types import Choice, Duration, Number, Text
from app.config.fields.fields import declared, fields_of, setting
from app.config.fields.times import Cron
from app.config.sources.base import SourceSettings, Tenant
from app.events.buckets import TENANT_OF_ARN, name_in


@declared
class BucketSourceSettings(
    BucketSettings,
    SourceSettings,
    type_name="bucket",
    title="Watched bucket",
    example={
        "endpoint": "https://s3.example.com",
        "bucket": "photos",
        "access_key": "ACCESS_KEY",
        "secret_key": "SECRET_KEY",
    },
):
    """A bucket that is listed every so often: a change that no event explains becomes one."""

    lists = True
    names_queue = ("endpoint", "bucket", "prefix", "tenant", "versions")

    endpoint: str = setting(Endpoint(), default="", about="its S3 endpoint; empty: that of AWS in the region")
    bucket: str = setting(StorageName(), about="the bucket's name there, which its events have too")
    region: str = setting(Region(), default="", about="the region to sign for; empty: us-east-1")
    access_key: str = setting(
        Text(ascii_only=True), default="", about="access key; needs secret_key; empty: requests are not signed"
    )
    prefix: str = setting(
        Text(max_characters=1024), default="", about="list only the keys that begin with it; empty: all"
    )
    tenant: str = setting(Tenant(), default="", about="whose bucket it is, recorded as TENANT:BUCKET")
    versions: Literal["auto", "on", "off"] = setting(
        Choice("auto", "on", "off"),
        default="auto",
        about="whether all versions and delete markers are listed; auto: if the bucket is or was versioned",
    )
    every: float = setting(Duration(60), default="15m", about="time from one listing's beginning to the next one's")
    spark: str = setting(
        Cron(),
        default="",
        about="when Spark lists it, in place of a worker and of every: for a bucket of millions of objects",
    )
    inventory: str = setting(
        Inventory(),
        default="",
        about="what Spark reads in place of a listing: the folder of reports of S3 Inventory, as s3://BUCKET/KEY "
        "or a path, or the ARN or REST catalog of the tables of S3 Metadata",
        of_host=True,
    )
    grace: float = setting(
        Duration(0),
        default="5m",
        about="time for which an event may still come that explains a difference; 0 for a store that sends none",
    )
    initial: Literal["remember", "events", "backfill"] = setting(
        Choice("remember", "events", "backfill"),
        default="remember",
        about="first listing: only remember what is there, or make events of all that no event explains; backfill: of "
        "all that no event explains and no backfill has sent",
    )
    max_removals: int = setting(
        Number(0, 100),
        default="10",
        about="per cent of the known objects; a listing that lacks more, and more than ten, pauses the source",
    )

    def ineffective(self) -> Iterator[Problem]:
        """Yield an interval beside the times of Spark."""
        yield from super().ineffective()
        if self.spark and self.every != fields_of(type(self))["every"].fallback():
            yield Problem("every", f"{self.every:g}s", "has no effect with the times of spark", "leave it out")

    @property
    def recorded_bucket(self) -> str:
        """The bucket's name in events and rules."""
        return name_in(self.tenant, self.bucket) if self.tenant else self.bucket

    def problems(self) -> Iterator[Problem]:
        """Yield what no listing can tell."""
        yield from super().problems()
        if self.tenant == TENANT_OF_ARN:
            yield Problem("tenant", self.tenant, "is not known of a listing", "write the tenant's name")
        if self.inventory and not self.spark:
            yield Problem(
                "inventory",
                self.inventory,
                "is read by Spark alone",
                "give the times at which it reads it, such as spark=0 6 * * *",
            )
        catalog = catalog_of(self.inventory)
        if catalog is not None and catalog.signing_region and not self.access_key:
            yield Problem("access_key", "", "is missing", "give the keys that may read the tables of S3 Metadata")
        if not self.endpoint and not self.region:
            yield Problem(
                "endpoint", "", "is missing", "give the endpoint of the store, or the region of a bucket at AWS"
            )
