"""The settings of buckets: where each is, and how the jobs that list it log in."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from app.resources.declaration import Columns, Resource, Time, about


class BucketSettings(Resource):
    """Where a bucket is."""

    columns: ClassVar[Columns] = {
        "bucket": "name", "endpoint": lambda bucket: bucket["settings"].get("endpoint", ""),
        "name there": "name_in_storage", "region": lambda bucket: bucket["settings"].get("region", ""),
        "access key": lambda bucket: bucket["settings"].get("access_key", ""),
    }  # fmt: skip

    name: Annotated[str, about("as events and rules have it")]
    name_in_storage: Annotated[str, about("as its storage has it")]
    settings: Annotated[Mapping[str, str], about("secrets are *redacted*; what is left out, boto3 finds at the job")]
    created_at: Time


class BucketsSettings(Resource):
    """The buckets that have settings."""

    buckets: list[BucketSettings]


class BucketSettingsRemoved(Resource):
    """A bucket has no settings any more."""

    name: str
