"""Set single keys of what is declared: a key that is left out keeps its value, as in `mc admin config set`."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from app.config.arn import SourceId, TargetId
from app.config.bucket_settings import BucketId
from app.config.errors import BadSettings, Problem
from app.config.target_settings import Resource, declaration_of, merged, replaced_keys
from app.manifest.document import Manifest
from app.manifest.plan import Plan, apply, make_plan
from app.outbox.bucket_settings import UnknownBucket
from app.outbox.engine.locks import repeated_after_deadlock
from app.outbox.errors import ReadOnlySource, UnknownSource
from app.outbox.registry import ReadOnlyTarget, Registry
from app.outbox.targets import UnknownTarget

Texts = Mapping[str, str]
_NONE: Texts = MappingProxyType({})


@repeated_after_deadlock
def set_keys(
    registry: Registry,
    settings: Mapping[TargetId, Mapping[str, object]] | Mapping[Resource, Mapping[str, object]],
    api: Texts = _NONE,
    *,
    dry_run: bool = False,
    lenient: bool = True,
) -> Plan:
    """Set keys of targets, sources, buckets and the section `api`, all or none, and return what changed, or would.

    An empty value sets the default. With `lenient`, settings without effect are accepted, as in MinIO. Two callers that
    set different keys of a target at once both succeed: the stored texts are read under the lock. Raises `BadSettings`,
    `ReadOnlyTarget` or `ReadOnlySource`, or `UnknownTarget`, `UnknownSource` or `UnknownBucket` if only defaults are
    set of one that does not exist.
    """
    plan = make_plan(registry, _changed(registry, settings, api), lenient=lenient)
    if plan.empty or dry_run:
        return plan
    plan.check_size()
    with registry.at_once() as locked:
        return apply(locked, _changed(locked, settings, api), lenient=lenient)


def _changed(registry: Registry, settings: Mapping[Any, Mapping[str, object]], api: Texts) -> Manifest:
    """Return what is to be declared: all texts of each target, source and bucket after these keys are set."""
    problems: list[Problem] = []
    targets: dict[TargetId, Texts] = {}
    sources: dict[SourceId, Texts] = {}
    buckets: dict[BucketId, Texts] = {}
    for resource, values in settings.items():
        try:
            if isinstance(resource, SourceId):
                sources[resource] = merged(declaration_of(resource), _source_before(registry, resource, values), values)
            elif isinstance(resource, BucketId):
                buckets[resource] = merged(declaration_of(resource), _bucket_before(registry, resource, values), values)
            else:
                targets[resource] = merged(resource.type, _target_before(registry, resource, values), values)
        except BadSettings as error:
            problems += [replace(problem, key=f"{resource}: {problem.key}") for problem in error.problems]
    if problems:
        raise BadSettings(problems)
    return Manifest(targets, sources, buckets, api=api)


def _target_before(registry: Registry, target: TargetId, values: Mapping[str, object]) -> Texts:
    try:
        stored = registry.target(target)
    except UnknownTarget:
        if _only_defaults(values):
            raise
        return {}
    if stored.is_read_only:
        raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; change the variables")
    return registry.texts(stored, without=replaced_keys(target.type, values))


def _source_before(registry: Registry, source: SourceId, values: Mapping[str, object]) -> Texts:
    try:
        stored = registry.sources.source(source)
    except UnknownSource:
        if _only_defaults(values):
            raise
        return {}
    if stored.is_read_only:
        raise ReadOnlySource(source)
    return registry.sources.texts(stored, without=replaced_keys(declaration_of(source), values))


def _bucket_before(registry: Registry, bucket: BucketId, values: Mapping[str, object]) -> Texts:
    try:
        stored = registry.buckets.bucket(bucket)
    except UnknownBucket:
        if _only_defaults(values):
            raise
        return {}
    return registry.buckets.texts(stored, without=replaced_keys(declaration_of(bucket), values))


def _only_defaults(values: Mapping[str, object]) -> bool:
    return bool(values) and all(value in ("", None) for value in values.values())
