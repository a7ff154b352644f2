"""Set single keys of targets: a key that is left out keeps its value, as in `mc admin config set`."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from app.config.arn import TargetId
from app.config.target_settings import BadSettings, merged
from app.manifest.document import Manifest
from app.manifest.plan import Plan, apply, make_plan
from app.outbox.registry import ReadOnlyTarget, Registry
from app.outbox.targets import StoredTarget, UnknownTarget

Texts = Mapping[str, str]
_NONE: Texts = MappingProxyType({})


class StoredTargets(Protocol):
    """The targets of a registry, here or at an API."""

    def target(self, target: TargetId, /) -> StoredTarget:
        """Return one target. Raises `UnknownTarget`."""
        ...

    def texts(self, stored: StoredTarget, /) -> dict[str, str]:
        """Return a target's texts. Raises `BadSettings` if they cannot be unsealed."""
        ...


def joined(lines: Iterable[tuple[TargetId, Texts]]) -> dict[TargetId, Texts]:
    """Return the keys that lines set, by target; a later line of the same target prevails."""
    settings: dict[TargetId, Texts] = {}
    for target, values in lines:
        settings[target] = {**settings.get(target, {}), **values}
    return settings


def changed(registry: StoredTargets, settings: Mapping[TargetId, Texts]) -> dict[TargetId, Texts]:
    """Return all texts of each target after these keys are set. Raises `BadSettings` or `ReadOnlyTarget`."""
    return {target: _changed(registry, target, values) for target, values in settings.items()}


def set_keys(registry: Registry, settings: Mapping[TargetId, Texts], api: Texts = _NONE) -> Plan:
    """Set keys of targets and of the section `api`, all of them or none, and return what changed.

    Settings without effect are accepted, as in MinIO. Two callers that set different keys of a target at once both
    succeed: the stored texts are read under the lock. Raises `BadSettings` or `ReadOnlyTarget`.
    """
    plan = make_plan(registry, Manifest(changed(registry, settings), api=api), lenient=True)
    if plan.empty:
        return plan
    with registry.at_once() as locked:
        return apply(locked, Manifest(changed(locked, settings), api=api), lenient=True)


def _changed(registry: StoredTargets, target: TargetId, values: Texts) -> dict[str, str]:
    try:
        stored = registry.target(target)
    except UnknownTarget:
        before: dict[str, str] = {}
    else:
        if stored.origin == "environment" and stored.enabled:
            raise ReadOnlyTarget(f"{target} is set by MINIO_NOTIFY_… variables; change the variables")
        before = registry.texts(stored)
    try:
        return merged(target.type, before, values)
    except BadSettings as error:
        raise error.about(str(target)) from None
