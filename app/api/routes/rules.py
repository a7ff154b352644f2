"""List, add and remove rules, which decide the targets of an event."""

from collections.abc import Mapping
from typing import Any

import orjson
from flask import Blueprint

from app.api.auth import ADMIN, READ, needs
from app.api.description import answers
from app.api.errors import ApiProblem
from app.api.services import services
from app.config.errors import BadSettings
from app.outbox.declared import StoredRule, UnknownTarget, matching_rules, rule_resource
from app.outbox.delivery.availability import with_failing
from app.resources import rule as resources
from app.resources.declaration import BadMember
from app.resources.rule import (
    MAX_NUMBER,
    Match,
    MatchedEvent,
    MatchedTarget,
    NewRule,
    RemovedRules,
    RuleNumbers,
    Rules,
    RulesQuery,
)
from app.rules.filters import MEMBERS as FILTER_MEMBERS
from app.rules.filters import Filters, parse_filters
from app.rules.model import BadRules, Rule, check

routes = Blueprint("rules", __name__)


@routes.get("/v1/rules")
@needs(READ)
@answers(Rules, "the rules", query=RulesQuery)
def ls(query: RulesQuery) -> Rules:
    """List every rule, or those of one bucket, oldest first."""
    return Rules(rules=[_resource(stored) for stored in services().registry.rules(query.bucket)])


@routes.post("/v1/rules")
@needs(ADMIN)
@answers(resources.Rule, "the rule", body=NewRule, status=201)
def add(body: NewRule) -> resources.Rule:
    """Add a rule.

    Idempotent; an equal rule is not added again, and its number is returned.
    """
    rule = _rule(body)
    try:
        number = services().registry.add_rule(rule)
    except UnknownTarget as error:
        raise BadMember("target", "is not configured", str(error)) from None
    return _resource(StoredRule(number, rule))


@routes.post("/v1/rules/match")
@needs(READ)
@answers(Match, "rules and targets", body=MatchedEvent)
def match(body: MatchedEvent) -> Match:
    """Return the rules that match an event, and the targets that get it; nothing is recorded.

    A disabled target gets no events, so it is not among `targets`, though its rules are among `rules`. Filters on
    metadata, tags and size are compared with those of the body, as if the event carried them and nothing else.
    """
    registry = services().registry
    enabled = [stored for stored in registry.targets() if stored.enabled]
    with services().database.reading() as connection:
        states = {stored.target: stored.state for stored in with_failing(connection, enabled)}
    matched = matching_rules(registry.rules(), body.bucket, body.event, body.key, _record(body))
    targets = dict.fromkeys(stored.rule.target for stored in matched if stored.rule.target in states)
    region = services().settings.region
    return Match(
        rules=[_resource(stored) for stored in matched],
        targets=[MatchedTarget(target=target.arn(region), state=states[target]) for target in targets],
    )


@routes.delete("/v1/rules/<int:number>")
@needs(ADMIN)
@answers(None, "the rule is removed", status=204, path={"number": "the rule's number"})
def remove(number: int) -> None:
    """Remove a rule.

    Events that were recorded before are still delivered to its target.
    """
    if number > MAX_NUMBER or not services().registry.remove_rules([number]):
        raise ApiProblem("not-found", f"there is no rule {number}; GET /v1/rules shows those there are")


@routes.post("/v1/rules/remove")
@needs(ADMIN)
@answers(RemovedRules, "the numbers of the removed rules", body=RuleNumbers)
def remove_several(body: RuleNumbers) -> RemovedRules:
    """Remove rules by their numbers, in one transaction.

    Numbers of rules that do not exist are left out. Events that were recorded before are still delivered to the rules'
    targets.
    """
    return RemovedRules(removed=services().registry.remove_rules(list(body.numbers)))


def _rule(body: NewRule) -> Rule:
    rule = Rule(
        bucket=body.bucket,
        events=tuple(body.events),
        prefix=body.prefix,
        suffix=body.suffix,
        target=body.target,
        rule_id=body.rule_id,
        filters=_filters({name: getattr(body, name) for name in FILTER_MEMBERS}),
    )
    check([rule])
    return rule


def _filters(body: Mapping[str, Any]) -> Filters:
    try:
        return parse_filters(body)
    except BadSettings as error:
        raise BadRules(error.problems) from None


def _record(body: MatchedEvent) -> str:
    """Return what filters read of an event's record."""
    carried = _filters({"metadata": body.metadata, "tags": body.tags})
    thing = {"userMetadata": carried.metadata, "tags": carried.tags, "size": body.size}
    return orjson.dumps({"s3": {"object": thing}}).decode()


def _resource(stored: StoredRule) -> resources.Rule:
    return rule_resource(stored, services().settings.region)
