"""Show and remove the settings of buckets; `PATCH /v1/declaration` sets them."""

from flask import Blueprint

from app.api.description import answers
from app.api.services import services
from app.api.token_scopes import ADMIN, READ, needs
from app.config.bucket_settings import BucketId
from app.config.bucket_settings import BucketSettings as Settings
from app.outbox.bucket_settings import BucketRegistry, StoredBucket
from app.resources.bucket import BucketSettings, BucketSettingsRemoved, BucketsSettings

routes = Blueprint("buckets", __name__)
_PATH = {"name": ({"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}$"}, "of the bucket in events and rules")}


@routes.get("/v1/buckets")
@needs(READ)
@answers(BucketsSettings, "the buckets' settings")
def ls() -> BucketsSettings:
    """List the buckets that have settings of their own: where each is, and how the jobs that list it log in."""
    return BucketsSettings(buckets=[_resource(stored) for stored in _buckets().buckets()])


@routes.get("/v1/buckets/<name>")
@needs(READ)
@answers(BucketSettings, "the bucket's settings", path=_PATH)
def show(name: str) -> BucketSettings:
    """Return the settings of a bucket."""
    return _resource(_buckets().bucket(BucketId(name)))


@routes.delete("/v1/buckets/<name>")
@needs(ADMIN)
@answers(BucketSettingsRemoved, "the settings are removed", path=_PATH)
def remove(name: str) -> BucketSettingsRemoved:
    """Remove the settings of a bucket; its rules and events stay.

    Jobs then list the bucket where boto3's settings on their machine say.
    """
    _buckets().remove(BucketId(name))
    return BucketSettingsRemoved(name=name)


def _buckets() -> BucketRegistry:
    return services().registry.buckets


def _resource(stored: StoredBucket) -> BucketSettings:
    name, shown = stored.bucket.name, _buckets().redacted_texts(stored)
    bucket, endpoint, access_key = (stored.values.get(key, "") for key in ("bucket", "endpoint", "access_key"))
    name_in_storage = Settings(bucket=bucket, endpoint=endpoint, access_key=access_key).name_in_storage(name)
    return BucketSettings.of(stored, name=name, name_in_storage=name_in_storage, settings=shown)
