"""Plan the changes that a document requires, and apply them in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from app.config.arn import TargetId
from app.config.errors import REDACTED, did_you_mean
from app.config.fields.fields import fields_of
from app.config.target_settings import BadSettings, Problem, changed_lines, load, texts, warnings
from app.config.targets.registry import settings_type
from app.manifest.document import Manifest, identity
from app.outbox.registry import Registry
from app.outbox.rules import StoredRule, describe_rule, rule_resource
from app.resources import plan as resources
from app.resources.plan import NotDeclared, PlannedTarget
from app.rules.model import Rule


@dataclass(frozen=True, slots=True)
class CurrentTarget:
    """A stored target: its settings as texts with secrets unsealed, and whether the environment owns it (`fixed`)."""

    texts: Mapping[str, str]
    origin: str
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A target's settings before and after, as texts with secrets unsealed. `new`: the target does not exist yet."""

    target: TargetId
    new: bool
    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def warnings(self) -> list[str]:
        """A sentence for each setting that is accepted and has no effect."""
        return warnings(self.target.type, self.after)

    @property
    def lines(self) -> list[str]:
        """The lines of a diff for each key that changes: `-` before, `+` after, secrets redacted."""
        return changed_lines(self.target.type, self.before, self.after)


@dataclass(frozen=True, slots=True)
class Plan:
    """The required changes. `left_targets` and `left_rules` are not declared and kept, because prune is off."""

    targets: tuple[Change, ...] = ()
    added: tuple[Rule, ...] = ()
    removed: tuple[StoredRule, ...] = ()
    removed_targets: tuple[TargetId, ...] = ()
    left_targets: tuple[TargetId, ...] = ()
    left_rules: int = 0
    api: Mapping[str, str] = field(default_factory=dict)  # keys of the section `api` that change
    api_before: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes(self) -> tuple[Change, ...]:
        """The targets that are new or change."""
        return tuple(change for change in self.targets if change.new or change.lines)

    @property
    def empty(self) -> bool:
        """Whether nothing has to change."""
        return not (self.changes or self.added or self.removed or self.removed_targets or self.api)

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
    stored: Mapping[TargetId, CurrentTarget],
    rules: Sequence[StoredRule],
    *,
    api: Mapping[str, str] = MappingProxyType({}),
    prune: bool,
    lenient: bool = False,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """Plan the changes that a document requires. Raises `BadSettings` with every problem of every target and rule.

    A target is declared as a whole: a key that is left out gets its default. What is not declared is kept unless
    `prune`; targets of the environment, the sample target and its rules are always kept, and so are keys of the section
    `api`, whose stored texts are in `api`. With `lenient`, settings
    without effect are accepted, as in MinIO.
    """
    problems: list[Problem] = []
    changes = [
        _plan_target(target, settings, stored.get(target), problems, environ, lenient=lenient)
        for target, settings in document.targets.items()
    ]
    known = stored.keys() | document.targets.keys()
    for number, rule in enumerate(document.rules):
        if rule.target not in known:
            hint = did_you_mean(str(rule.target), [str(target) for target in known]) if known else "declare it"
            problems.append(Problem(f"rules[{number}].target", str(rule.target), "is not a known target", hint))
    if problems:
        raise BadSettings(problems)
    declared = {identity(rule) for rule in document.rules}
    existing = {identity(row.rule) for row in rules}
    named = document.targets.keys() | {rule.target for rule in document.rules}
    undeclared = [target for target, current in stored.items() if current.origin == "stored" and target not in named]
    undeclared_rules = [
        row
        for row in rules
        if identity(row.rule) not in declared
        and (row.rule.target not in stored or stored[row.rule.target].origin != "sample")
    ]
    return Plan(
        targets=tuple(change for change in changes if change),
        added=tuple(rule for rule in document.rules if identity(rule) not in existing),
        removed=tuple(undeclared_rules) if prune else (),
        removed_targets=tuple(undeclared) if prune else (),
        left_targets=() if prune else tuple(undeclared),
        left_rules=0 if prune else len(undeclared_rules),
        api={key: text for key, text in document.api.items() if text != api.get(key, "")},
        api_before=api,
    )


def make_plan(registry: Registry, document: Manifest, *, prune: bool = False, lenient: bool = False) -> Plan:
    """Plan the changes to the stored targets and rules, as `decide` does. Raises `BadSettings`."""
    stored = {}
    for row in registry.targets():
        try:
            current = registry.texts(row)
        except BadSettings:  # sealed with a lost key, or of another version: every key has to be set again
            current = {}
        stored[row.target] = CurrentTarget(current, row.origin, row.origin == "environment" and row.enabled)
    api = registry.api_settings() if document.api else {}
    return decide(document, stored, registry.rules(), api=api, prune=prune, lenient=lenient)


def apply(
    registry: Registry, document: Manifest, *, prune: bool = False, force: bool = False, lenient: bool = False
) -> Plan:
    """Apply a document, all of it or nothing, and return the changes. It is idempotent.

    Raises `BadSettings`, or `TargetInUse` if a target to remove has undelivered events or dead letters and `force` is
    not given.
    """
    plan = make_plan(registry, document, prune=prune, lenient=lenient)
    if plan.empty:
        return plan
    with registry.at_once() as locked:
        # From here on no one else changes targets or rules.
        plan = make_plan(locked, document, prune=prune, lenient=lenient)
        if plan.removed:
            locked.remove_rules([row.row_id for row in plan.removed])
        for target in plan.removed_targets:
            locked.remove(target, force=force)
        for change in plan.changes:
            locked.put(change.target, change.after)
        locked.add_rules(plan.added)
        if plan.api:
            locked.put_api_settings(plan.api)
    return plan


def plan_resource(plan: Plan, *, dry_run: bool) -> resources.Plan:
    """Return the plan as the API shows it, secrets redacted."""
    return resources.Plan(
        dry_run=dry_run,
        targets=[
            PlannedTarget(target=str(change.target), new=change.new, changes=change.lines, warnings=change.warnings)
            for change in plan.targets
        ],
        rules_added=[describe_rule(rule) for rule in plan.added],
        rules_removed=[rule_resource(row) for row in plan.removed],
        api=plan.api_lines,
        targets_removed=[str(target) for target in plan.removed_targets],
        not_declared=NotDeclared(targets=[str(target) for target in plan.left_targets], rules=plan.left_rules),
    )


def _plan_target(
    target: TargetId,
    settings: Mapping[str, object],
    stored: CurrentTarget | None,
    problems: list[Problem],
    environ: Mapping[str, str] | None,
    *,
    lenient: bool,
) -> Change | None:
    before = dict(stored.texts) if stored else {}
    try:
        after = {"enable": "on"} | _keep_secrets(target.type, before, texts(target.type, settings))
        load(target.type, after, environ, lenient=lenient)
    except BadSettings as error:
        problems += [
            Problem(f"{target}: {problem.key}", problem.value, problem.problem, problem.hint)
            for problem in error.problems
        ]
        return None
    if stored and stored.fixed:
        if after == {"enable": "on"} | before:
            return None
        problems.append(
            Problem(
                str(target), "", "is set by MINIO_NOTIFY_… variables", "change the variables; rules may name the target"
            )
        )
        return None
    return Change(target, stored is None, {"enable": "on"} | before if stored else {}, after)


def _keep_secrets(type_name: str, before: Mapping[str, str], settings: Mapping[str, str]) -> dict[str, str]:
    """Return the texts to store: without empty ones, and with the stored secret for each `*redacted*` one."""
    keys = fields_of(settings_type(type_name))
    return {
        name: keys[name].restored(text, before[name]) if REDACTED in text and name in before else text
        for name, text in settings.items()
        if text
    }
