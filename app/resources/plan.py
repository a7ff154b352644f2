"""What a declaration of targets, sources, buckets and rules changes, and the settings of buckets."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from app.resources.declaration import FLAG, Columns, Query, Resource, Time, about
from app.resources.rule import Rule, RuleFacts


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


class PlannedTarget(Resource):
    """What a declaration changes in a target."""

    target: str
    new: bool
    changes: Annotated[list[str], about("`-` a setting's old value, `+` its new one")]
    warnings: Annotated[list[str], about("settings that have no effect")]


class PlannedSource(Resource):
    """What a declaration changes in a source."""

    source: str
    new: bool
    changes: Annotated[list[str], about("`-` a setting's old value, `+` its new one")]
    warnings: Annotated[list[str], about("settings that have no effect")]


class PlannedBucket(Resource):
    """What a declaration changes in the settings of a bucket."""

    bucket: str
    new: bool
    changes: Annotated[list[str], about("`-` a setting's old value, `+` its new one")]
    warnings: Annotated[list[str], about("settings that have no effect")]


class NotDeclared(Resource):
    """What is configured and not declared."""

    targets: list[str]
    sources: list[str]
    buckets: list[str]
    rules: int


class Plan(Resource):
    """What a declaration changes."""

    dry_run: bool
    targets: list[PlannedTarget]
    sources: list[PlannedSource]
    buckets: list[PlannedBucket]
    rules_added: list[RuleFacts]
    rules_removed: list[Rule]
    api: Annotated[list[str], about("the changes of the section `api`")]
    targets_removed: list[str]
    sources_removed: list[str]
    buckets_removed: list[str]
    not_declared: NotDeclared


class KeysQuery(Query):
    """How to set keys."""

    dry_run: Annotated[bool, FLAG("return the changes without making them")] = False
    lenient: Annotated[
        bool, FLAG("accept settings without effect, such as `tls_skip_verify` without TLS, with a warning")
    ] = False


class ApplyQuery(KeysQuery):
    """How to apply a declaration."""

    prune: Annotated[bool, FLAG("remove targets, sources, buckets' settings and rules that are not declared")] = False
    force: Annotated[
        bool,
        FLAG(
            "with `prune`, also remove targets with undelivered events or dead letters, sources with rejected messages"
        ),
    ] = False
