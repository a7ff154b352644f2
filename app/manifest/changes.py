"""Set single keys of targets: a key that is left out keeps its value, as in `mc admin config set`."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from app.config.arn import TargetId
from app.config.errors import BadSettings, Problem
from app.config.target_settings import merged, replaced_keys
from app.manifest.document import Manifest
from app.manifest.plan import Plan, apply, make_plan
from app.outbox.registry import ReadOnlyTarget, Registry
from app.outbox.targets import UnknownTarget

Texts = Mapping[str, str]
_NONE: Texts = MappingProxyType({})


def set_keys(
    registry: Registry,
    settings: Mapping[TargetId, Mapping[str, object]],
    api: Texts = _NONE,
    *,
    dry_run: bool = False,
    lenient: bool = True,
) -> Plan:
    """Set keys of targets and of the section `api`, all of them or none, and return what changed, or would.

    An empty value sets the default. With `lenient`, settings without effect are accepted, as in MinIO. Two callers that
    set different keys of a target at once both succeed: the stored texts are read under the lock. Raises `BadSettings`,
    `ReadOnlyTarget`, or `UnknownTarget` if only defaults are set of a target that does not exist.
    """
    plan = make_plan(registry, Manifest(_changed(registry, settings), api=api), lenient=lenient)
    if plan.empty or dry_run:
        return plan
    with registry.at_once() as locked:
        return apply(locked, Manifest(_changed(locked, settings), api=api), lenient=lenient)


def _changed(registry: Registry, settings: Mapping[TargetId, Mapping[str, object]]) -> dict[TargetId, Texts]:
    """Return all texts of each target after these keys are set."""
    problems: list[Problem] = []
    texts_after: dict[TargetId, Texts] = {}
    for target, values in settings.items():
        try:
            texts_after[target] = _changed_target(registry, target, values)
        except BadSettings as error:
            problems += [replace(problem, key=f"{target}: {problem.key}") for problem in error.problems]
    if problems:
        raise BadSettings(problems)
    return texts_after


def _changed_target(registry: Registry, target: TargetId, values: Mapping[str, object]) -> dict[str, str]:
    try:
        stored = registry.target(target)
    except UnknownTarget:
        if values and all(value in ("", None) for value in values.values()):
            raise
        before: dict[str, str] = {}
    else:
        if stored.origin == "environment" and stored.enabled:
            raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; change the variables")
        before = registry.texts(stored, without=replaced_keys(target.type, values))
    return merged(target.type, before, values)
