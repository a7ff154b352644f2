"""The document of `bucketwire apply`: targets and rules, from YAML or JSON, every problem told with its place."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from app.config.arn import TargetId, parse_target
from app.config.errors import BadSettings, BadValue, Problem, did_you_mean
from app.config.fields.fields import fields_of
from app.config.targets.registry import TYPES, settings_type
from app.events.names import AGGREGATES, EVERY, KNOWN, SHORTHANDS, shorthand
from app.rules.model import Rule, problems_of

MEMBERS = ("targets", "rules")
RULE_MEMBERS = ("bucket", "events", "prefix", "suffix", "target", "id")


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is declared. The settings are as they were given, yet to be checked against their types."""

    targets: Mapping[TargetId, Mapping[str, object]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()


class _Texts(yaml.BaseLoader):
    """YAML whose scalars are all texts, as settings are: `on` stays on, `0123` stays 0123; no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """A mapping. Raises `yaml.YAMLError` for a key that is given twice or is no text."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key has to be text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(content: bytes) -> object:
    """The value that a YAML text (JSON is YAML) holds. Raises `BadSettings` with line and column, never the text."""
    try:
        return yaml.load(content, Loader=_Texts)  # noqa: S506 - makes texts, lists and mappings and nothing else
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        raise BadSettings([Problem(place, "", f"is no YAML here: {error.problem}", "")]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadSettings([Problem("the file", "", f"is no YAML: {str(error).splitlines()[0]}", "")]) from None


def parse_manifest(given: object) -> Manifest:
    """The declared targets and rules. Raises `BadSettings` with every problem that the document has by itself."""
    if given is None or given == "":
        given = {}
    if not isinstance(given, Mapping):
        raise BadSettings([Problem("the document", "", "is no mapping", "write targets: and rules:")])
    problems = list(_unknown("", given, MEMBERS))
    targets = _targets(given.get("targets"), problems)
    rules = _rules(given.get("rules"), problems)
    if problems:
        raise BadSettings(problems)
    return Manifest(targets, tuple(rules))


def schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of the document, for editors; made from the declarations of the target types."""
    text = {"type": ["string", "number", "boolean", "null"]}
    types = {
        f"^{kind}:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}$": {
            "type": "object",
            "title": cls.title,
            "additionalProperties": False,
            "properties": {
                name: {
                    **(text if not key.kind.separator else {"type": [*text["type"], "array"], "items": text}),
                    "description": f"{key.about} ({key.kind.label})",
                    **({"default": key.default} if key.default else {}),
                }
                for name, key in fields_of(cls).items()
            },
            "required": [name for name, key in fields_of(cls).items() if key.required],
        }
        for kind, cls in TYPES.items()
    }
    names = {"type": "string", "examples": [EVERY, *SHORTHANDS, *sorted(AGGREGATES), *sorted(KNOWN)]}
    rule = {
        "type": "object",
        "additionalProperties": False,
        "required": ["bucket", "events", "target"],
        "properties": {
            "bucket": {"type": "string", "description": "one bucket, or * for every bucket"},
            "events": {"anyOf": [names, {"type": "array", "items": names, "minItems": 1}]},
            "prefix": {"type": "string", "description": "how the object's key begins"},
            "suffix": {"type": "string", "description": "how the object's key ends"},
            "target": {"type": "string", "description": "type:name or ARN"},
            "id": {"type": "string", "description": "the rule's id on the S3 face"},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bucketwire.yaml",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "targets": {"type": ["object", "null"], "patternProperties": types, "additionalProperties": False},
            "rules": {"type": ["array", "null"], "items": rule},
        },
    }


def _targets(given: object, problems: list[Problem]) -> dict[TargetId, Mapping[str, object]]:
    found: dict[TargetId, Mapping[str, object]] = {}
    if given in (None, ""):
        return found
    if not isinstance(given, Mapping):
        problems.append(Problem("targets", "", "is no mapping", "write type:name: and its settings below"))
        return found
    for name, settings in given.items():
        place = f"targets.{name}"
        try:
            target = parse_target(str(name))
            settings_type(target.type)
        except BadValue as error:
            problems.append(Problem(place, "", error.problem, error.hint))
            continue
        except BadSettings as error:
            problems += [Problem(place, "", each.problem, each.hint) for each in error.problems]
            continue
        if settings not in (None, "") and not isinstance(settings, Mapping):
            problems.append(Problem(place, "", "is no mapping", "write its settings as key: value"))
        elif target in found:
            problems.append(Problem(place, "", "is declared twice", "also by its ARN; keep one of them"))
        else:
            found[target] = settings or {}
    return found


def _rules(given: object, problems: list[Problem]) -> list[Rule]:
    if given in (None, ""):
        return []
    if not isinstance(given, list):
        problems.append(Problem("rules", "", "is no list", "begin each rule with a dash"))
        return []
    found: dict[Any, Rule] = {}
    for number, members in enumerate(given):
        place = f"rules[{number}]"
        if not isinstance(members, Mapping):
            problems.append(Problem(place, "", "is no mapping", "write bucket:, events: and target:"))
            continue
        wrong = [*_unknown(f"{place}.", members, RULE_MEMBERS), *_not_texts(place, members)]
        if not wrong:
            rule = _rule(place, members, wrong)
            if rule is not None and identity(rule) in found:
                wrong.append(Problem(place, "", "is the same as one before it", "leave one of them out"))
            elif rule is not None:
                found[identity(rule)] = rule
        problems += wrong
    return list(found.values())


def identity(rule: Rule) -> tuple[object, ...]:
    """What makes two rules the same: the order of its event names does not count."""
    return rule.bucket, frozenset(rule.events), rule.prefix, rule.suffix, rule.target, rule.rule_id


def _rule(place: str, members: Mapping[str, Any], wrong: list[Problem]) -> Rule | None:
    events = members.get("events", [])
    words = [word.strip() for word in events.split(",")] if isinstance(events, str) else events
    try:
        target = parse_target(members.get("target") or "")
    except BadValue as error:
        wrong.append(Problem(f"{place}.target", members.get("target") or "", error.problem, error.hint))
        return None
    rule = Rule(
        bucket=members.get("bucket") or "",
        events=tuple(dict.fromkeys(name for word in words if word for name in shorthand(word))),
        target=target,
        prefix=members.get("prefix") or "",
        suffix=members.get("suffix") or "",
        rule_id=members.get("id") or "",
    )
    wrong += [Problem(f"{place}.{each.key}", each.value, each.problem, each.hint) for each in problems_of(rule)]
    return rule


def _not_texts(place: str, members: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in members.items():
        many = name == "events" and isinstance(value, list)
        if not all(isinstance(each, str) for each in (value if many else [value])) and value is not None:
            yield Problem(f"{place}.{name}", "", "is no text", "put it in quotes")


def _unknown(place: str, given: Mapping[Any, Any], known: Iterable[str]) -> Iterator[Problem]:
    for name in given:
        if name not in known:
            yield Problem(f"{place}{name}", "", "is not known here", did_you_mean(str(name), list(known)))
