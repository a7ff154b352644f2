"""Plan the changes that a document or single keys require, and apply them in one transaction.

Of single keys, one that is left out keeps its value, as in `mc admin config set`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from app.config.arn import SourceId, TargetId
from app.config.bucket_settings import BucketId
from app.config.errors import REDACTED, BadSettings, Problem, did_you_mean, nearest_name
from app.config.fields.fields import Declared, fields_of, texts_of
from app.config.target_settings import (
    Resource,
    changed_lines,
    declaration_of,
    load,
    merged,
    replaced_keys,
    warnings,
)
from app.manifest.document import Manifest, identity
from app.outbox.buckets import StoredBucket, UnknownBucket
from app.outbox.declared import SealedSettings, StoredRule, StoredTarget, UnknownTarget, describe_rule, rule_resource
from app.outbox.engine.many_rows import repeated_after_deadlock
from app.outbox.errors import ReadOnlySource, UnknownSource
from app.outbox.registry import ReadOnlyTarget, Registry
from app.outbox.sources.rows import StoredSource
from app.resources import plan as resources
from app.resources.plan import NotDeclared, PlannedBucket, PlannedSource, PlannedTarget
from app.rules.model import Rule

# That one transaction changes: no event is recorded meanwhile, for some seconds.
_MAX_RESOURCES, _MAX_RULES = 500, 5_000


@dataclass(frozen=True, slots=True)
class Current:
    """What is stored: settings as texts with secrets unsealed, and whether the environment owns them (`fixed`)."""

    texts: Mapping[str, str]
    origin: str
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """Settings before and after, as texts with secrets unsealed. `new`: what it is of does not exist yet."""

    resource: Resource
    new: bool
    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def warnings(self) -> list[str]:
        """A sentence for each setting that is accepted and has no effect."""
        return warnings(declaration_of(self.resource), self.after)

    @property
    def lines(self) -> list[str]:
        """The lines of a diff for each key that changes: `-` before, `+` after, secrets redacted."""
        return changed_lines(declaration_of(self.resource), self.before, self.after)


@dataclass(frozen=True, slots=True)
class Plan:
    """The required changes. `left` and `left_rules` are not declared and kept, because prune is off."""

    settings: tuple[Change, ...] = ()  # of targets, sources and buckets
    added: tuple[Rule, ...] = ()
    removed: tuple[StoredRule, ...] = ()
    pruned: tuple[Resource, ...] = ()
    left: tuple[Resource, ...] = ()
    left_rules: int = 0
    api: Mapping[str, str] = field(default_factory=dict)  # keys of the section `api` that change
    api_before: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The targets, sources and buckets that are new or change."""
        return tuple(change for change in self.settings if change.new or change.lines)

    @property
    def empty(self) -> bool:
        """Whether nothing has to change."""
        return not (self.changes or self.added or self.removed or self.pruned or self.api)

    def check_size(self) -> None:
        """Raise `BadSettings` if this is too much for one transaction."""
        resources, rules = len(self.changes) + len(self.pruned), len(self.added) + len(self.removed)
        for count, most, what in (
            (resources, _MAX_RESOURCES, "targets, sources and buckets"), (rules, _MAX_RULES, "rules"),
        ):  # fmt: skip
            if count > most:
                problem = f"changes {count:,} {what}; no event is recorded meanwhile"
                raise BadSettings([Problem("declaration", "", problem, f"apply it in parts of {most:,} at most")])

    @property
    def api_lines(self) -> list[str]:
        """The lines of a diff of the section `api`."""
        lines = []
        for key, text in sorted(self.api.items()):
            lines += [f"- {key}={self.api_before[key]}"] if self.api_before.get(key) else []
            lines += [f"+ {key}={text}"] if text else []
        return lines


def decide(
    document: Manifest,
    stored: Mapping[Resource, Current],
    rules: Sequence[StoredRule],
    *,
    api: Mapping[str, str] = MappingProxyType({}),
    prune: bool,
    lenient: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """Plan the changes that a document requires. Raises `BadSettings` with every problem of all that it declares.

    What is declared is declared as a whole: a key that is left out gets its default. What is not declared is kept,
    unless `prune`; those of the environment, the sample target and its rules are always kept, and so are keys of the
    section `api`, whose stored texts are in `api`. With `lenient`, settings
    without effect are accepted, as in MinIO.
    """
    problems = list(document.problems)
    changes = [
        _plan_settings(resource, settings, stored, problems, environ, lenient=lenient)
        for resource, settings in document.settings.items()
    ]
    known = {resource for resource in stored if isinstance(resource, TargetId)} | document.targets.keys()
    for number, rule in document.numbered_rules.items():
        if rule.target not in known and str(rule.target) not in document.refused:
            hint = did_you_mean(str(rule.target), [str(target) for target in known]) if known else "declare it"
            problems.append(Problem(f"rules[{number}].target", str(rule.target), "is not a known target", hint))
    if problems:
        raise BadSettings(problems)
    declared = {identity(rule) for rule in document.rules}
    existing = {identity(row.rule) for row in rules}
    named = document.settings.keys() | {rule.target for rule in document.rules}
    undeclared = [
        resource for resource, current in stored.items() if current.origin == "stored" and resource not in named
    ]
    undeclared_rules = [
        row
        for row in rules
        if identity(row.rule) not in declared
        and (row.rule.target not in stored or stored[row.rule.target].origin != "sample")
    ]
    return Plan(
        settings=tuple(change for change in changes if change),
        added=tuple(rule for rule in document.rules if identity(rule) not in existing),
        removed=tuple(undeclared_rules) if prune else (),
        pruned=tuple(undeclared) if prune else (),
        left=() if prune else tuple(undeclared),
        left_rules=0 if prune else len(undeclared_rules),
        api={key: text for key, text in document.api.items() if text != api.get(key, "")},
        api_before=api,
    )


def make_plan(registry: Registry, document: Manifest, *, prune: bool = False, lenient: bool = False) -> Plan:
    """Plan the changes to what is stored, as `decide` does. Raises `BadSettings`."""
    stored: dict[Resource, Current] = {row.identity: _current(row, registry) for row in registry.targets()}
    stored |= {row.identity: _current(row, registry.sources) for row in registry.sources.sources()}
    stored |= {row.identity: _current(row, registry.buckets) for row in registry.buckets.buckets()}
    api = registry.api_settings() if document.api else {}
    return decide(document, stored, registry.rules(), api=api, prune=prune, lenient=lenient)


@repeated_after_deadlock
def apply(
    registry: Registry, document: Manifest, *, prune: bool = False, force: bool = False, lenient: bool = False
) -> Plan:
    """Apply a document, all of it or nothing, and return the changes. It is idempotent.

    Raises `BadSettings`, also for more changes than one transaction may have, and without `force` `TargetInUse` if a
    target to remove has undelivered events or dead letters, or `SourceInUse` if a source has rejected messages.
    """
    plan = make_plan(registry, document, prune=prune, lenient=lenient)
    if plan.empty:
        return plan
    plan.check_size()
    with registry.at_once() as locked:
        # From here on no one else changes targets, sources or rules, except that a source may be paused or resumed.
        plan = make_plan(locked, document, prune=prune, lenient=lenient)
        plan.check_size()
        if plan.removed:
            locked.remove_rules([row.row_id for row in plan.removed])
        for resource in plan.pruned:
            if isinstance(resource, SourceId):
                locked.sources.remove(resource, force=force)
            elif isinstance(resource, BucketId):
                locked.buckets.remove(resource)
            else:
                locked.remove(resource, force=force)
        for change in plan.changes:
            if isinstance(change.resource, SourceId):
                locked.sources.put(change.resource, change.after, lenient=lenient)
            elif isinstance(change.resource, BucketId):
                locked.buckets.put(change.resource, change.after, lenient=lenient)
            else:
                locked.put(change.resource, change.after)
        locked.add_rules(plan.added)
        if plan.api:
            locked.put_api_settings(plan.api)
    return plan


def plan_resource(plan: Plan, *, dry_run: bool) -> resources.Plan:
    """Return the plan as the API shows it, secrets redacted."""
    return resources.Plan(
        dry_run=dry_run,
        targets=[
            PlannedTarget(target=str(change.resource), new=change.new, changes=change.lines, warnings=change.warnings)
            for change in plan.settings
            if isinstance(change.resource, TargetId)
        ],
        sources=[
            PlannedSource(source=str(change.resource), new=change.new, changes=change.lines, warnings=change.warnings)
            for change in plan.settings
            if isinstance(change.resource, SourceId)
        ],
        buckets=[
            PlannedBucket(bucket=change.resource.name, new=change.new, changes=change.lines, warnings=change.warnings)
            for change in plan.settings
            if isinstance(change.resource, BucketId)
        ],
        rules_added=[describe_rule(rule) for rule in plan.added],
        rules_removed=[rule_resource(row) for row in plan.removed],
        api=plan.api_lines,
        targets_removed=_names(plan.pruned, TargetId),
        sources_removed=_names(plan.pruned, SourceId),
        buckets_removed=_names(plan.pruned, BucketId),
        not_declared=NotDeclared(
            targets=_names(plan.left, TargetId),
            sources=_names(plan.left, SourceId),
            buckets=_names(plan.left, BucketId),
            rules=plan.left_rules,
        ),
    )


def _names(resources_of_all: Sequence[Resource], kind: type) -> list[str]:
    return [str(resource) for resource in resources_of_all if isinstance(resource, kind)]


def _current(row: StoredTarget | StoredSource | StoredBucket, registry: SealedSettings[Any]) -> Current:
    return Current(registry.readable_texts(row), row.origin, row.is_read_only)


def _plan_settings(
    resource: Resource,
    settings: Mapping[str, object],
    known: Mapping[Resource, Current],
    problems: list[Problem],
    environ: Mapping[str, str] | None,
    *,
    lenient: bool,
) -> Change | None:
    stored = known.get(resource)
    before, declaration = dict(stored.texts) if stored else {}, declaration_of(resource)
    enabled = {"enable": "on"} if "enable" in fields_of(declaration) else {}
    readable, wrong = texts_of(declaration, settings)
    after = enabled | _keep_secrets(declaration, before, readable)
    try:
        load(declaration, after, environ, lenient=lenient)
    except BadSettings as error:
        wrong += error.problems
    if wrong:
        problems += [
            Problem(f"{resource}: {problem.key}", problem.value, problem.problem, problem.hint) for problem in wrong
        ]
        if stored is None:
            problems += _meant_another(resource, known)
        return None
    if stored and stored.fixed:
        if after == enabled | before:
            return None
        variables = "BUCKETWIRE_SOURCE_…" if isinstance(resource, SourceId) else "MINIO_NOTIFY_…"
        hint = "change the variables" + ("; rules may name the target" if isinstance(resource, TargetId) else "")
        problems.append(Problem(str(resource), "", f"is set by {variables} variables", hint))
        return None
    return Change(resource, stored is None, enabled | before if stored else {}, after)


def _meant_another(resource: Resource, known: Mapping[Resource, Current]) -> list[Problem]:
    """Return the problem of what cannot be created and has a name like another's: a mistyped one of that."""
    close = nearest_name(resource, [other for other in known if type(other) is type(resource)])
    return [Problem(str(resource), "", "does not exist yet", f"did you mean {close}?")] if close else []


def _keep_secrets(
    declaration: type[Declared], before: Mapping[str, str], settings: Mapping[str, str]
) -> dict[str, str]:
    """Return the texts to store: without empty ones, and with the stored secret for each `*redacted*` one."""
    keys = fields_of(declaration)
    return {
        name: keys[name].restored(text, before[name]) if REDACTED in text and name in before else text
        for name, text in settings.items()
        if text
    }


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
