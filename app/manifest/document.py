"""Parse the document of `bucketwire apply`: targets, sources, buckets and rules in YAML or JSON.

Every problem names its position.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml

from app.config.api_settings import ApiSettings, api_texts
from app.config.arn import UNNAMED, SourceId, TargetId, parse_source, parse_target
from app.config.bucket_settings import BucketId, BucketSettings, parse_bucket
from app.config.declared_types import SOURCE_TYPES, TYPES, settings_type, source_type
from app.config.errors import BadSettings, BadValue, Problem, suggestion
from app.config.fields.field_types import FieldType
from app.config.fields.fields import Declared, fields_of
from app.config.sources.base import SourceSettings
from app.config.target_settings import Resource
from app.config.targets.base import TargetSettings
from app.events.names import AGGREGATES, EVERY, KNOWN, SHORTHANDS, shorthand
from app.rules.filters import MEMBERS as FILTER_MEMBERS
from app.rules.filters import Filters, parse_filters
from app.rules.model import Rule, problems_of

R = TypeVar("R", TargetId, SourceId, BucketId)

MEMBERS = ("targets", "sources", "buckets", "rules", "api")
RULE_MEMBERS = ("bucket", "events", "prefix", "suffix", *FILTER_MEMBERS, "target", "id")
_NO_TARGET = TargetId("webhook", UNNAMED)  # of a rule of which only the rest can be checked
_TEXT = {"type": ["string", "number", "boolean", "null"]}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is declared. The settings of targets, sources and buckets are not checked against their types yet.

    `problems` are those of the document itself; `refused` are the names of targets that it declares in vain.
    """

    targets: Mapping[TargetId, Mapping[str, object]] = field(default_factory=dict)
    sources: Mapping[SourceId, Mapping[str, object]] = field(default_factory=dict)
    buckets: Mapping[BucketId, Mapping[str, object]] = field(default_factory=dict)
    numbered_rules: Mapping[int, Rule] = field(default_factory=dict)  # by their places in the document
    api: Mapping[str, str] = field(default_factory=dict)  # keys of MinIO's section `api`, checked
    problems: tuple[Problem, ...] = ()
    refused: frozenset[str] = frozenset()

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules."""
        return tuple(self.numbered_rules.values())

    @property
    def settings(self) -> dict[Resource, Mapping[str, object]]:
        """The settings of targets, sources and buckets."""
        declared: dict[Resource, Mapping[str, object]] = {}
        for some in (self.targets, self.sources, self.buckets):
            declared.update(some)  # type: ignore[arg-type]  # of one kind each
        return declared


class _Texts(yaml.BaseLoader):
    """Load YAML with text scalars, as settings are: `on` stays on, `0123` stays 0123. No key may occur twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping. Raises `yaml.YAMLError` for a key that occurs twice or is not text."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(content: bytes) -> object:
    """Parse YAML (JSON is YAML). Raises `BadSettings` with line and column, never with the text."""
    try:
        return yaml.load(content, Loader=_Texts)  # noqa: S506 - it creates only texts, lists and mappings
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "the file"
        raise BadSettings([Problem(position, "", f"is not valid YAML: {error.problem}", "")]) from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadSettings([Problem("the file", "", f"is not valid YAML: {str(error).splitlines()[0]}", "")]) from None


def parse_manifest(document: object) -> Manifest:
    """Parse what is declared, and return it with every problem. Raises `BadSettings` for what is no document at all."""
    if document is None or document == "":
        document = {}
    if not isinstance(document, Mapping):
        raise BadSettings(
            [Problem("the document", "", "is not a mapping", "write targets:, sources:, buckets: and rules:")]
        )
    problems = list(_unknown_members("", document, MEMBERS))
    targets = _parse_settings("targets", document.get("targets"), parse_target, settings_type, problems)
    declared = document.get("targets")
    refused = frozenset(map(str, declared)) - {*map(str, targets)} if isinstance(declared, Mapping) else frozenset()
    sources = _parse_settings("sources", document.get("sources"), parse_source, source_type, problems)
    buckets = _parse_settings("buckets", document.get("buckets"), parse_bucket, lambda _: BucketSettings, problems)
    rules = _parse_rules(document.get("rules"), problems)
    api = _parse_api(document.get("api"), problems)
    return Manifest(targets, sources, buckets, rules, api, tuple(problems), refused)


def _value_schema(kind: FieldType[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a setting's values."""
    if kind.separator:
        return {"type": [*_TEXT["type"], "array"], "items": _TEXT}
    if kind.is_mapping:
        return {"type": [*_TEXT["type"], "object"], "additionalProperties": {"type": "string"}}
    return _TEXT


def _settings_schema(types: Mapping[str, type[TargetSettings]] | Mapping[str, type[SourceSettings]]) -> dict[str, Any]:
    """Return the JSON Schema of settings by type and name."""
    patterns = {
        f"^{kind}:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}$": {"title": cls.title, **_keys_schema(cls)}
        for kind, cls in types.items()
    }
    return {"type": ["object", "null"], "patternProperties": patterns, "additionalProperties": False}


def _keys_schema(cls: type[Declared]) -> dict[str, Any]:
    """Return the JSON Schema of the settings of a class by their keys."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            name: {
                **_value_schema(key.kind),
                "description": f"{key.about} ({key.kind.label})",
                **({"default": key.default} if key.default else {}),
            }
            for name, key in fields_of(cls).items()
        },
        "required": [name for name, key in fields_of(cls).items() if key.required],
    }


def schema() -> dict[str, Any]:
    """Return the JSON Schema 2020-12 of the document, for editors, from the declarations of the types."""
    pairs = {"type": ["object", "null"], "additionalProperties": {"type": "string"}}
    size = {"type": ["string", "integer", "null"], "examples": ["1MiB"]}
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
            "regex": {"type": "string", "description": "a regular expression (RE2) that the whole key must match"},
            "metadata": {**pairs, "description": "entries of the object's metadata that the event must carry"},
            "tags": {**pairs, "description": "tags of the object that the event must carry"},
            "min_size": {**size, "description": "least size of the object"},
            "max_size": {**size, "description": "greatest size of the object"},
            "target": {"type": "string", "description": "type:name or ARN"},
            "id": {"type": "string", "description": "the rule's id in the S3 API"},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "bucketwire.yaml",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "targets": _settings_schema(TYPES),
            "sources": _settings_schema(SOURCE_TYPES),
            "buckets": {"type": ["object", "null"], "additionalProperties": _keys_schema(BucketSettings)},
            "rules": {"type": ["array", "null"], "items": rule},
            "api": {
                "type": ["object", "null"],
                "additionalProperties": False,
                "properties": {
                    name: {**_TEXT, "description": key.about} for name, key in fields_of(ApiSettings).items()
                },
            },
        },
    }


def _parse_settings(
    member: str,
    value: object,
    parse: Callable[[str], R],
    declaration: Callable[[str], type[Declared]],
    problems: list[Problem],
) -> dict[R, Mapping[str, object]]:
    """Return the settings of targets, sources or buckets by their identities, which `parse` reads."""
    parsed: dict[R, Mapping[str, object]] = {}
    if value in (None, ""):
        return parsed
    if not isinstance(value, Mapping):
        problems.append(Problem(member, "", "is not a mapping", "write type:name: and its settings below"))
        return parsed
    for name, settings in value.items():
        path = f"{member}.{name}"
        try:
            resource = parse(str(name))
            declaration(resource.type)
        except BadValue as error:
            problems.append(Problem(path, "", error.problem, error.hint))
            continue
        except BadSettings as error:
            problems += [Problem(path, "", problem.problem, problem.hint) for problem in error.problems]
            continue
        if settings not in (None, "") and not isinstance(settings, Mapping):
            problems.append(Problem(path, "", "is not a mapping", "write its settings as key: value"))
        elif resource in parsed:
            problems.append(Problem(path, "", "is declared twice", "also by its ARN; keep one of them"))
        else:
            parsed[resource] = settings or {}
    return parsed


def _parse_api(value: object, problems: list[Problem]) -> dict[str, str]:
    if value in (None, ""):
        return {}
    if not isinstance(value, Mapping):
        problems.append(Problem("api", "", "is not a mapping", "write sync_events: on below"))
        return {}
    try:
        return api_texts(value)
    except BadSettings as error:
        problems += [Problem(f"api.{p.key}", p.value, p.problem, p.hint) for p in error.problems]
        return {}


def _parse_rules(value: object, problems: list[Problem]) -> dict[int, Rule]:
    """Return the rules by their places in the list."""
    if value in (None, ""):
        return {}
    if not isinstance(value, list):
        problems.append(Problem("rules", "", "is not a list", "begin each rule with a dash"))
        return {}
    rules: dict[int, Rule] = {}
    known = set[object]()
    for number, members in enumerate(value):
        path = f"rules[{number}]"
        if not isinstance(members, Mapping):
            problems.append(Problem(path, "", "is not a mapping", "write bucket:, events: and target:"))
            continue
        unknown = list(_unknown_members(f"{path}.", members, RULE_MEMBERS))
        found = list(_non_text_members(path, members))
        rule = None if found else _parse_rule(path, members, found)
        if rule is not None and identity(rule) in known:
            found.append(Problem(path, "", "repeats an earlier rule", "leave one of them out"))
        elif rule is not None:
            rules[number] = rule
            known.add(identity(rule))
        # What is missing may be what the unknown one was meant to be.
        problems += unknown + [one for one in found if not unknown or one.key.removeprefix(f"{path}.") in members]
    return rules


def identity(rule: Rule) -> tuple[object, ...]:
    """Return a key that is equal for equal rules; the order of event names does not matter."""
    return rule.bucket, frozenset(rule.events), rule.prefix, rule.suffix, rule.target, rule.rule_id, rule.filters


def _parse_rule(path: str, members: Mapping[str, Any], problems: list[Problem]) -> Rule | None:
    events = members.get("events", [])
    words = [word.strip() for word in events.split(",")] if isinstance(events, str) else events
    target = None
    try:
        target = parse_target(members.get("target") or "")
    except BadValue as error:
        problems.append(Problem(f"{path}.target", members.get("target") or "", error.problem, error.hint))
    rule = Rule(
        bucket=members.get("bucket") or "",
        events=tuple(dict.fromkeys(name for word in words if word for name in shorthand(word))),
        target=target or _NO_TARGET,
        prefix=members.get("prefix") or "",
        suffix=members.get("suffix") or "",
        rule_id=members.get("id") or "",
        filters=_parse_filters(path, members, problems),
    )
    problems += _below(path, problems_of(rule))
    return rule if target else None


def _parse_filters(path: str, members: Mapping[str, Any], problems: list[Problem]) -> Filters:
    try:
        return parse_filters({name: value for name, value in members.items() if value != ""})
    except BadSettings as error:
        problems += _below(path, error.problems)
        return Filters()


def _below(path: str, problems: Iterable[Problem]) -> list[Problem]:
    return [Problem(f"{path}.{problem.key}", problem.value, problem.problem, problem.hint) for problem in problems]


def _non_text_members(path: str, members: Mapping[str, Any]) -> Iterator[Problem]:
    for name, value in members.items():
        if name in FILTER_MEMBERS:
            continue  # `parse_filters` knows their types
        is_list = name == "events" and isinstance(value, list)
        if not all(isinstance(item, str) for item in (value if is_list else [value])) and value is not None:
            yield Problem(f"{path}.{name}", "", "is not text", "put it in quotes")


def _unknown_members(prefix: str, members: Mapping[Any, Any], known: Iterable[str]) -> Iterator[Problem]:
    problems: list[Problem] = []
    for name in members:
        if name not in known:
            hint = suggestion(str(name), list(known), problems)
            problems.append(Problem(f"{prefix}{name}", "", "is not a known key", hint))
    yield from problems
