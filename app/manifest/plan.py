"""What a document would change, decided without changing anything, and the change itself in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.config.arn import TargetId
from app.config.errors import REDACTED, did_you_mean
from app.config.fields.fields import fields_of
from app.config.target_settings import BadSettings, Problem, load, redacted, texts
from app.config.targets.registry import settings_type
from app.manifest.document import Manifest, identity
from app.outbox.registry import Registry, StoredRule
from app.rules.model import Rule


@dataclass(frozen=True, slots=True)
class CurrentTarget:
    """A target as it stands: its settings as texts with secrets open, and whether the environment owns it."""

    texts: Mapping[str, str]
    origin: str
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What a target's settings were and what they are to be, as texts, secrets open. New: there was none."""

    target: TargetId
    new: bool
    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def lines(self) -> list[str]:
        """A line for each key that changes: `-` what it was, `+` what it is to be; secrets say that they change."""
        before, after = redacted(self.target.type, self.before), redacted(self.target.type, self.after)
        lines = []
        for key in sorted(self.before.keys() | self.after.keys()):
            if self.before.get(key) != self.after.get(key):
                lines += [f"- {key}={before[key]}"] if key in before else []
                lines += [f"+ {key}={after[key]}"] if key in after else []
        return lines


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that has to change. `left_targets` and `left_rules` are not declared and stay: no prune was asked."""

    targets: tuple[Change, ...] = ()
    added: tuple[Rule, ...] = ()
    removed: tuple[StoredRule, ...] = ()
    removed_targets: tuple[TargetId, ...] = ()
    left_targets: tuple[TargetId, ...] = ()
    left_rules: int = 0

    @property
    def changes(self) -> tuple[Change, ...]:
        """The targets that are new or change."""
        return tuple(each for each in self.targets if each.new or each.lines)

    @property
    def empty(self) -> bool:
        """Whether everything is as it was declared."""
        return not (self.changes or self.added or self.removed or self.removed_targets)


def decide(
    document: Manifest,
    stored: Mapping[TargetId, CurrentTarget],
    rules: Sequence[StoredRule],
    *,
    prune: bool,
    environ: Mapping[str, str] | None = None,
) -> Plan:
    """The plan that makes it as declared. Raises `BadSettings` with every problem of every target and rule.

    A declared target is declared as a whole: a key that is left out is its default. What is not declared stays unless
    `prune`; targets of the environment and the sample stay even then, and so do the rules of the sample.
    """
    problems: list[Problem] = []
    changes = [
        _change(target, given, stored.get(target), problems, environ) for target, given in document.targets.items()
    ]
    known = stored.keys() | document.targets.keys()
    for number, rule in enumerate(document.rules):
        if rule.target not in known:
            hint = did_you_mean(str(rule.target), [str(each) for each in known]) if known else "declare it"
            problems.append(Problem(f"rules[{number}].target", str(rule.target), "is no target", hint))
    if problems:
        raise BadSettings(problems)
    declared = {identity(rule) for rule in document.rules}
    there = {identity(each.rule) for each in rules}
    named = document.targets.keys() | {rule.target for rule in document.rules}
    spare = [target for target, each in stored.items() if each.origin == "stored" and target not in named]
    spare_rules = [
        each
        for each in rules
        if identity(each.rule) not in declared
        and (each.rule.target not in stored or stored[each.rule.target].origin != "sample")
    ]
    return Plan(
        targets=tuple(each for each in changes if each),
        added=tuple(rule for rule in document.rules if identity(rule) not in there),
        removed=tuple(spare_rules) if prune else (),
        removed_targets=tuple(spare) if prune else (),
        left_targets=() if prune else tuple(spare),
        left_rules=0 if prune else len(spare_rules),
    )


def make_plan(registry: Registry, document: Manifest, *, prune: bool = False) -> Plan:
    """The plan against what the registry holds. Raises `BadSettings`."""
    stored = {}
    for each in registry.targets():
        try:
            found = registry.texts(each)
        except BadSettings:  # sealed with a key that is gone, or of another version: all of it is to be set anew
            found = {}
        stored[each.target] = CurrentTarget(found, each.origin, each.origin == "environment" and each.enabled)
    return decide(document, stored, registry.rules(), prune=prune)


def apply(registry: Registry, document: Manifest, *, prune: bool = False, force: bool = False) -> Plan:
    """Make it as declared, all of it or nothing, and say what that took. Again, it takes nothing.

    Raises `BadSettings`, or `TargetInUse` when a target that is to be removed holds events or dead letters and
    `force` is not given.
    """
    plan = make_plan(registry, document, prune=prune)
    if plan.empty:
        return plan
    with registry.at_once() as one:
        plan = make_plan(one, document, prune=prune)  # nobody changes anything from here on
        if plan.removed:
            one.remove_rules([each.row_id for each in plan.removed])
        for target in plan.removed_targets:
            one.remove(target, force=force)
        for change in plan.changes:
            one.put(change.target, change.after)
        one.add_rules(plan.added)
    return plan


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as JSON, secrets left out."""
    return {
        "targets": [
            {"target": str(each.target), "new": each.new, "changes": each.lines} for each in plan.targets
        ],
        "rules_added": [_rule_json(rule) for rule in plan.added],
        "rules_removed": [_rule_json(each.rule) | {"number": each.row_id} for each in plan.removed],
        "targets_removed": [str(each) for each in plan.removed_targets],
        "not_declared": {"targets": [str(each) for each in plan.left_targets], "rules": plan.left_rules},
    }  # fmt: skip


def _rule_json(rule: Rule) -> dict[str, Any]:
    return {
        "bucket": rule.bucket, "events": list(rule.events), "prefix": rule.prefix, "suffix": rule.suffix,
        "target": str(rule.target), "rule_id": rule.rule_id,
    }  # fmt: skip


def _change(
    target: TargetId,
    given: Mapping[str, object],
    stored: CurrentTarget | None,
    problems: list[Problem],
    environ: Mapping[str, str] | None,
) -> Change | None:
    before = dict(stored.texts) if stored else {}
    try:
        after = {"enable": "on"} | _kept(target.type, before, texts(target.type, given))
        load(target.type, after, environ)
    except BadSettings as error:
        problems += [Problem(f"{target}: {each.key}", each.value, each.problem, each.hint) for each in error.problems]
        return None
    if stored and stored.fixed:
        if after == {"enable": "on"} | before:
            return None
        problems.append(
            Problem(str(target), "", "is set by MINIO_NOTIFY_… variables", "change it there; rules may name it")
        )
        return None
    return Change(target, stored is None, {"enable": "on"} | before if stored else {}, after)


def _kept(type_name: str, before: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The texts that are to be stored: none that are empty, and for a secret given as it was shown, the secret."""
    keys = fields_of(settings_type(type_name))
    return {
        name: before[name] if REDACTED in text and name in before and text == keys[name].shown(before[name]) else text
        for name, text in given.items()
        if text
    }
