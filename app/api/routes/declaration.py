"""Apply a declaration or set single keys in one transaction, and show the settings of buckets and of section `api`."""

from typing import Any

from flask import Blueprint, request

from app.api.auth import ADMIN, READ, needs
from app.api.description import answers, json_body
from app.api.request_body import json_object
from app.api.services import services
from app.config.api_settings import ApiSettings, api_texts, sync_events
from app.config.bucket_settings import BucketId
from app.config.bucket_settings import BucketSettings as Settings
from app.config.errors import BadSettings
from app.config.fields.fields import fields_of
from app.manifest.document import parse_manifest, schema
from app.manifest.plan import apply, make_plan, plan_resource, set_keys
from app.outbox.buckets import BucketRegistry, StoredBucket
from app.resources.declaration import BadMember
from app.resources.plan import ApplyQuery, BucketSettings, BucketSettingsRemoved, BucketsSettings, KeysQuery, Plan
from app.resources.service import EffectiveApiSettings, EffectiveSetting

routes = Blueprint("settings", __name__)
_BUCKET = {"name": ({"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}$"}, "of the bucket in events and rules")}
_VALUES = ["on", "off", "", "true", "false", "1", "0", True, False, 1, 0, None]
_API_BODY = json_body(
    {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "sync_events": {
                "enum": _VALUES,
                "description": "empty or null: the default; `MINIO_API_SYNC_EVENTS` overrides it",
            }
        },
    }
)


def _changed_keys() -> dict[str, Any]:
    """Return the schema of a declaration without rules, in which any key may be left out."""
    document = schema()
    properties = {member: document["properties"][member] for member in ("api", "buckets")}
    for member in ("targets", "sources"):
        types = document["properties"][member]["patternProperties"]
        optional = {name: {**settings, "required": []} for name, settings in types.items()}
        properties[member] = {**document["properties"][member], "patternProperties": optional}
    return {"type": "object", "additionalProperties": False, "properties": properties}


@routes.post("/v1/declaration")
@needs(ADMIN)
@answers(Plan, "the changes", query=ApplyQuery, content=lambda: json_body(schema()))
def declare(query: ApplyQuery) -> Plan:
    """Apply a declaration of targets, sources, buckets and rules, all or nothing.

    Idempotent: applied again, it changes nothing. What is declared is declared completely: an omitted setting gets its
    default, and a secret that is sent as `*redacted*` is kept. What is not declared is kept unless `prune` is set.
    """
    manifest = parse_manifest(json_object(request, services().settings.body_limit))
    registry = services().registry
    if query.dry_run:
        plan = make_plan(registry, manifest, prune=query.prune, lenient=query.lenient)
    else:
        plan = apply(registry, manifest, prune=query.prune, force=query.force, lenient=query.lenient)
    return plan_resource(plan, dry_run=query.dry_run)


@routes.patch("/v1/declaration")
@needs(ADMIN)
@answers(Plan, "the changes", query=KeysQuery, content=lambda: json_body(_changed_keys()))
def change(query: KeysQuery) -> Plan:
    """Set keys of targets, sources, buckets and the section `api`, all or nothing.

    A key that is left out keeps its value, an empty one gets its default, and what does not exist is created.
    Two requests that set different keys of one target or source at once both succeed.
    """
    body = json_object(request, services().settings.body_limit)
    if "rules" in body:
        raise BadMember("rules", "cannot be changed by keys", "POST /v1/rules, or POST the declaration")
    manifest = parse_manifest(body)
    if manifest.problems:
        raise BadSettings(manifest.problems)
    plan = set_keys(services().registry, manifest.settings, manifest.api, dry_run=query.dry_run, lenient=query.lenient)
    return plan_resource(plan, dry_run=query.dry_run)


@routes.get("/v1/buckets")
@needs(READ)
@answers(BucketsSettings, "the buckets' settings")
def ls_buckets() -> BucketsSettings:
    """List the buckets that have settings of their own: where each is, and how the jobs that list it log in."""
    return BucketsSettings(buckets=[_bucket(stored) for stored in _buckets().buckets()])


@routes.get("/v1/buckets/<name>")
@needs(READ)
@answers(BucketSettings, "the bucket's settings", path=_BUCKET)
def show_bucket(name: str) -> BucketSettings:
    """Return the settings of a bucket."""
    return _bucket(_buckets().bucket(BucketId(name)))


@routes.delete("/v1/buckets/<name>")
@needs(ADMIN)
@answers(BucketSettingsRemoved, "the settings are removed", path=_BUCKET)
def remove_bucket(name: str) -> BucketSettingsRemoved:
    """Remove the settings of a bucket; its rules and events stay.

    Jobs then list the bucket where boto3's settings on their machine say.
    """
    _buckets().remove(BucketId(name))
    return BucketSettingsRemoved(name=name)


def _buckets() -> BucketRegistry:
    return services().registry.buckets


def _bucket(stored: StoredBucket) -> BucketSettings:
    name, shown = stored.bucket.name, _buckets().redacted_texts(stored)
    bucket, endpoint, access_key = (stored.values.get(key, "") for key in ("bucket", "endpoint", "access_key"))
    name_in_storage = Settings(bucket=bucket, endpoint=endpoint, access_key=access_key).name_in_storage(name)
    return BucketSettings.of(stored, name=name, name_in_storage=name_in_storage, settings=shown)


@routes.get("/v1/settings/api")
@needs(READ)
@answers(EffectiveApiSettings, "the settings")
def show_api() -> EffectiveApiSettings:
    """Return the settings of the section `api`, and what decides each."""
    return _effective()


@routes.put("/v1/settings/api")
@needs(ADMIN)
@answers(EffectiveApiSettings, "the settings", content=_API_BODY)
def put_api() -> EffectiveApiSettings:
    """Replace the settings of the section `api`.

    An omitted or empty setting gets its default. Workers use a change within a second. While the variable of a setting
    is set in the environment, it takes precedence, and `origin` says so.
    """
    texts = api_texts(json_object(request))
    services().registry.put_api_settings(dict.fromkeys(fields_of(ApiSettings), "") | texts)
    return _effective()


def _effective() -> EffectiveApiSettings:
    stored = services().registry.api_settings()
    setting = sync_events(services().settings.sync_events, stored)
    return EffectiveApiSettings(sync_events=EffectiveSetting(**setting._asdict()))
