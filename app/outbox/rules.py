"""Read the stored rules and convert them from and to rows; `app.outbox.registry` changes them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orjson
import sqlalchemy as sa

from app.config.arn import TargetId
from app.outbox import tables
from app.outbox.targets import find_target
from app.resources import rule as resources
from app.resources.rule import RuleFacts
from app.rules.filters import NO_FILTERS, parse_filters
from app.rules.matching import compile_rules
from app.rules.model import PREFIX_AND_SUFFIX, Rule

_NAMES = "names"  # in the column `filters`: the client's order of the key's filters


@dataclass(frozen=True, slots=True)
class StoredRule:
    """A rule and its number, by which it can be removed."""

    row_id: int
    rule: Rule


def read_rules(connection: sa.Connection, bucket: str | None = None) -> list[StoredRule]:
    """Return every rule, or those of one bucket, oldest first."""
    r, t = tables.rules.c, tables.targets.c
    query = sa.select(tables.rules, t.type, t.name).join_from(tables.rules, tables.targets).order_by(r.id)
    if bucket is not None:
        query = query.where(r.bucket == bucket)
    rows = connection.execute(query)
    return [StoredRule(row.id, rule_from_row(row, TargetId(row.type, row.name))) for row in rows]


def rule_from_row(row: Any, target: TargetId) -> Rule:
    """Convert a row of the table of rules, whose `target_id` is that of the target."""
    stored = orjson.loads(row.filters) if row.filters else {}
    return Rule(
        bucket=row.bucket,
        events=tuple(orjson.loads(row.events)),
        prefix=row.prefix,
        suffix=row.suffix,
        target=target,
        rule_id=row.rule_id,
        filters=parse_filters(stored) if stored else NO_FILTERS,
        filter_names=tuple(stored.get(_NAMES) or filter(None, row.filter_names.split(","))),
    )


def rule_to_row(connection: sa.Connection, rule: Rule) -> dict[str, Any]:
    """Return the columns of a new row. Raises `UnknownTarget`."""
    has_more = rule.filters or not set(rule.filter_names) <= set(PREFIX_AND_SUFFIX)
    return {
        "bucket": rule.bucket,
        "rule_id": rule.rule_id,
        "events": orjson.dumps(rule.events).decode(),
        "prefix": rule.prefix,
        "suffix": rule.suffix,
        "filter_names": ",".join(name for name in rule.filter_names if name in PREFIX_AND_SUFFIX),
        "filters": orjson.dumps(rule.filters.members | {_NAMES: rule.filter_names}).decode() if has_more else None,
        "target_id": find_target(connection, rule.target).row_id,
    }


def matching_rules(rules: Iterable[StoredRule], bucket: str, name: str, key: str, record: str = "") -> list[StoredRule]:
    """Return those of the rules that match an event, in their order; `key` is the decoded key."""
    known = {stored.row_id: stored for stored in rules}
    matcher = compile_rules((stored.rule, number) for number, stored in known.items())
    return [known[number] for number in matcher.targets(bucket, name, key, record)]


def audit_facts(rule: Rule) -> dict[str, Any]:
    """Return a rule for the audit log of its bucket: its target, event names and filters that are not empty."""
    facts = {name: value for name, value in _members(rule, None).items() if name not in ("bucket", "rule_id")}
    return {name: value for name, value in facts.items() if value not in ("", [])}


def describe_rule(rule: Rule) -> RuleFacts:
    """Return a rule that is not stored as the API shows it, with its target as type:name."""
    return RuleFacts(**_members(rule, None))


def rule_resource(stored: StoredRule, region: str | None = None) -> resources.Rule:
    """Return a stored rule as the API shows it; without a region with its target as type:name."""
    return resources.Rule(number=stored.row_id, **_members(stored.rule, region))


def _members(rule: Rule, region: str | None) -> dict[str, Any]:
    return {
        "bucket": rule.bucket,
        "events": list(rule.events),
        "prefix": rule.prefix,
        "suffix": rule.suffix,
        "target": str(rule.target) if region is None else rule.target.arn(region),
        "rule_id": rule.rule_id,
        **rule.filters.members,
    }
