"""List, add and remove rules, which decide the targets of an event."""

from collections.abc import Mapping
from typing import Any

import orjson
from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, needs
from app.api.errors import ApiProblem
from app.api.request_body import json_object
from app.api.serialization import bad_value, json_response, parsed_target, parsed_text
from app.api.services import services
from app.config.errors import BadSettings
from app.outbox.rules import StoredRule, matching_rules
from app.outbox.targets import UnknownTarget
from app.resources.declaration import parse_number, refuse_unknown
from app.rules.filters import MAX_SIZE, Filters, parse_filters
from app.rules.filters import MEMBERS as FILTER_MEMBERS
from app.rules.model import BadRules, Rule, check

routes = Blueprint("rules", __name__)
_LAST = 2**31 - 1  # the greatest number that the table can have
_MAX_NUMBERS = 10_000
_MEMBERS = ("bucket", "events", "prefix", "suffix", "target", "rule_id", *FILTER_MEMBERS)
_EVENT_MEMBERS = ("bucket", "key", "event", "metadata", "tags", "size")


@routes.get("/v1/rules")
@needs(READ)
def ls() -> Response:
    """List the rules.
    ---
    get:
      summary: List every rule, or those of one bucket, oldest first
      security: [{token: [read]}]
      parameters:
        - {name: bucket, in: query, schema: Text, description: return only the rules that name this bucket}
      responses:
        200: {description: the rules, content: {application/json: {schema: Rules}}}
        default: Problem
    """
    refuse_unknown(request.args, ("bucket",))
    bucket = parsed_text("bucket", request.args["bucket"]) if "bucket" in request.args else None
    return json_response({"rules": [_rule_json(stored) for stored in services().registry.rules(bucket)]})


@routes.post("/v1/rules")
@needs(ADMIN)
def add() -> Response:
    """Add a rule.
    ---
    post:
      summary: Add a rule
      description: Idempotent; an equal rule is not added again, and its number is returned.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: NewRule}}}
      responses:
        201: {description: the rule, content: {application/json: {schema: Rule}}}
        default: Problem
    """
    rule = _rule(json_object(request))
    try:
        number = services().registry.add_rule(rule)
    except UnknownTarget as error:
        raise bad_value("target", "is not configured", str(error)) from None
    return json_response(_rule_json(StoredRule(number, rule)), 201)


@routes.post("/v1/rules/match")
@needs(READ)
def match() -> Response:
    """Match an event.
    ---
    post:
      summary: Return the rules that match an event, and the targets that get it; nothing is recorded
      description: >
        A disabled target gets no events, so it is not among `targets`, though its rules are among `rules`. Filters on
        metadata, tags and size are compared with those of the body, as if the event carried them and nothing else.
      security: [{token: [read]}]
      requestBody: {required: true, content: {application/json: {schema: MatchedEvent}}}
      responses:
        200: {description: rules and targets, content: {application/json: {schema: Match}}}
        default: Problem
    """
    body = json_object(request)
    refuse_unknown(body, _EVENT_MEMBERS)
    bucket, key, event = (parsed_text(name, body.get(name)) for name in ("bucket", "key", "event"))
    for name, value in (("bucket", bucket), ("event", event)):
        if not value:
            raise bad_value(name, "is missing", "give the bucket, key and name of an event")
    registry = services().registry
    states = {stored.target: stored.state for stored in registry.targets() if stored.enabled}
    matched = matching_rules(registry.rules(), bucket, event, key, _record(body))
    targets = dict.fromkeys(stored.rule.target for stored in matched if stored.rule.target in states)
    region = services().settings.region
    return json_response(
        {
            "rules": [_rule_json(stored) for stored in matched],
            "targets": [{"target": target.arn(region), "state": states[target]} for target in targets],
        }
    )


@routes.delete("/v1/rules/<int:number>")
@needs(ADMIN)
def remove(number: int) -> Response:
    """Remove a rule.
    ---
    delete:
      summary: Remove a rule
      description: Events that were recorded before are still delivered to its target.
      security: [{token: [admin]}]
      parameters:
        - {name: number, in: path, required: true, schema: {type: integer}, description: the rule's number}
      responses:
        204: {description: the rule is removed}
        default: Problem
    """
    if number > _LAST or not services().registry.remove_rules([number]):
        raise ApiProblem("not-found", f"there is no rule {number}; GET /v1/rules shows those there are")
    return Response(status=204)


@routes.post("/v1/rules/remove")
@needs(ADMIN)
def remove_several() -> Response:
    """Remove rules.
    ---
    post:
      summary: Remove rules by their numbers, in one transaction
      description: >
        Numbers of rules that do not exist are left out. Events that were recorded before are still delivered to the
        rules' targets.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: RuleNumbers}}}
      responses:
        200: {description: the numbers of the removed rules, content: {application/json: {schema: RemovedRules}}}
        default: Problem
    """
    body = json_object(request)
    refuse_unknown(body, ("numbers",))
    numbers = body.get("numbers")
    if not isinstance(numbers, list) or not 0 < len(numbers) <= _MAX_NUMBERS:
        raise bad_value("numbers", "is not a list of numbers", f"give 1 to {_MAX_NUMBERS} numbers of rules")
    # In JSON Schema 5.0 is an integer too.
    whole = [int(number) if isinstance(number, float) and number.is_integer() else number for number in numbers]
    chosen = [parse_number("numbers", number, 1, _LAST) for number in whole]
    return json_response({"removed": services().registry.remove_rules(chosen)})


def _rule(body: dict[str, Any]) -> Rule:
    refuse_unknown(body, _MEMBERS)
    names = body.get("events", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        hint = 'write ["s3:ObjectCreated:*"], or ["*"] for every event'
        raise bad_value("events", "is not a list of event names", hint)
    rule = Rule(
        bucket=parsed_text("bucket", body.get("bucket")),
        events=tuple(names),
        prefix=parsed_text("prefix", body.get("prefix")),
        suffix=parsed_text("suffix", body.get("suffix")),
        target=parsed_target("target", body.get("target")),
        rule_id=parsed_text("rule_id", body.get("rule_id")),
        filters=_filters(body),
    )
    check([rule])
    return rule


def _filters(body: Mapping[str, Any]) -> Filters:
    try:
        return parse_filters(body)
    except BadSettings as error:
        raise BadRules(error.problems) from None


def _record(body: Mapping[str, Any]) -> str:
    """Return what filters read of an event's record."""
    carried, size = _filters({name: body.get(name) for name in ("metadata", "tags")}), body.get("size")
    # In JSON Schema 5.0 is an integer too.
    if size is not None and not (type(size) in (int, float) and 0 <= size <= MAX_SIZE and size == int(size)):
        raise bad_value("size", "is not a number of bytes", f"give a whole number up to {MAX_SIZE}")
    thing = {"userMetadata": carried.metadata, "tags": carried.tags, "size": None if size is None else int(size)}
    return orjson.dumps({"s3": {"object": thing}}).decode()


def _rule_json(stored: StoredRule) -> dict[str, Any]:
    rule = stored.rule
    return {
        "number": stored.row_id,
        "bucket": rule.bucket,
        "events": list(rule.events),
        "prefix": rule.prefix,
        "suffix": rule.suffix,
        "target": rule.target.arn(services().settings.region),
        "rule_id": rule.rule_id,
        **rule.filters.members,
    }
