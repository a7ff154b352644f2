"""Apply a declaration, or set single keys, in one transaction, or show the changes."""

from typing import Any

from flask import Blueprint, request

from app.api.description import answers, json_body
from app.api.request_body import json_object
from app.api.services import services
from app.api.token_scopes import ADMIN, needs
from app.config.errors import BadSettings
from app.manifest.changes import set_keys
from app.manifest.document import parse_manifest, schema
from app.manifest.plan import apply, make_plan, plan_resource
from app.resources.declaration import BadMember
from app.resources.plan import ApplyQuery, KeysQuery, Plan

routes = Blueprint("declare", __name__)


def _changed_keys() -> dict[str, Any]:
    """Return the schema of a declaration without rules, in which any key may be left out."""
    document = schema()
    properties = {member: document["properties"][member] for member in ("api", "buckets")}
    for member in ("targets", "sources"):
        types = document["properties"][member]["patternProperties"]
        optional = {name: {**settings, "required": []} for name, settings in types.items()}
        properties[member] = {**document["properties"][member], "patternProperties": optional}
    return {"type": "object", "additionalProperties": False, "properties": properties}


@routes.post("/v1/declaration")
@needs(ADMIN)
@answers(Plan, "the changes", query=ApplyQuery, content=lambda: json_body(schema()))
def declare(query: ApplyQuery) -> Plan:
    """Apply a declaration of targets, sources, buckets and rules, all or nothing.

    Idempotent: applied again, it changes nothing. What is declared is declared completely: an omitted setting gets its
    default, and a secret that is sent as `*redacted*` is kept. What is not declared is kept unless `prune` is set.
    """
    manifest = parse_manifest(json_object(request, services().settings.body_limit))
    registry = services().registry
    if query.dry_run:
        plan = make_plan(registry, manifest, prune=query.prune, lenient=query.lenient)
    else:
        plan = apply(registry, manifest, prune=query.prune, force=query.force, lenient=query.lenient)
    return plan_resource(plan, dry_run=query.dry_run)


@routes.patch("/v1/declaration")
@needs(ADMIN)
@answers(Plan, "the changes", query=KeysQuery, content=lambda: json_body(_changed_keys()))
def change(query: KeysQuery) -> Plan:
    """Set keys of targets, sources, buckets and the section `api`, all or nothing.

    A key that is left out keeps its value, an empty one gets its default, and what does not exist is created.
    Two requests that set different keys of one target or source at once both succeed.
    """
    body = json_object(request, services().settings.body_limit)
    if "rules" in body:
        raise BadMember("rules", "cannot be changed by keys", "POST /v1/rules, or POST the declaration")
    manifest = parse_manifest(body)
    if manifest.problems:
        raise BadSettings(manifest.problems)
    plan = set_keys(services().registry, manifest.settings, manifest.api, dry_run=query.dry_run, lenient=query.lenient)
    return plan_resource(plan, dry_run=query.dry_run)
