"""Apply a declaration of targets and rules, or set single keys of targets, in one transaction, or show the changes."""

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, needs
from app.api.request_body import json_object
from app.api.serialization import bad_value, json_response, parsed_flag
from app.api.services import services
from app.manifest.changes import set_keys
from app.manifest.document import parse_manifest
from app.manifest.plan import apply, make_plan, plan_json
from app.resources.declaration import refuse_unknown

routes = Blueprint("declare", __name__)
_FLAGS = ("dry_run", "prune", "force", "lenient")
_CHANGE_FLAGS = ("dry_run", "lenient")


@routes.post("/v1/declaration")
@needs(ADMIN)
def declare() -> Response:
    """Apply a declaration.
    ---
    post:
      summary: Apply a declaration of targets and rules, all or nothing
      description: >
        Idempotent: applied again, it changes nothing. A target is declared completely: an omitted setting gets its
        default, and a secret that is sent as `*redacted*` is kept. Targets and rules that are not declared are kept
        unless `prune` is set.
      security: [{token: [admin]}]
      parameters:
        - {name: dry_run, in: query, schema: {type: boolean, default: false},
           description: return the changes without making them}
        - {name: prune, in: query, schema: {type: boolean, default: false},
           description: remove targets and rules that are not declared}
        - {name: force, in: query, schema: {type: boolean, default: false},
           description: "with `prune`, also remove targets with undelivered events or dead letters"}
        - {name: lenient, in: query, schema: {type: boolean, default: false},
           description: "accept settings without effect, such as `tls_skip_verify` without TLS, with a warning"}
      requestBody: {required: true, content: {application/json: {schema: Declaration}}}
      responses:
        200: {description: the changes, content: {application/json: {schema: Plan}}}
        default: Problem
    """
    refuse_unknown(request.args, _FLAGS)
    dry_run, prune, force, lenient = (parsed_flag(name, request.args.get(name)) for name in _FLAGS)
    manifest = parse_manifest(json_object(request, services().settings.body_limit))
    registry = services().registry
    if dry_run:
        plan = make_plan(registry, manifest, prune=prune, lenient=lenient)
    else:
        plan = apply(registry, manifest, prune=prune, force=force, lenient=lenient)
    return json_response({"dry_run": dry_run} | plan_json(plan))


@routes.patch("/v1/declaration")
@needs(ADMIN)
def change() -> Response:
    """Set keys.
    ---
    patch:
      summary: Set keys of targets and of the section `api`, all or nothing
      description: >
        A key that is left out keeps its value, an empty one gets its default, and a target that does not exist is
        created. Two requests that set different keys of a target at once both succeed.
      security: [{token: [admin]}]
      parameters:
        - {name: dry_run, in: query, schema: {type: boolean, default: false},
           description: return the changes without making them}
        - {name: lenient, in: query, schema: {type: boolean, default: false},
           description: "accept settings without effect, such as `tls_skip_verify` without TLS, with a warning"}
      requestBody: {required: true, content: {application/json: {schema: ChangedKeys}}}
      responses:
        200: {description: the changes, content: {application/json: {schema: Plan}}}
        default: Problem
    """
    refuse_unknown(request.args, _CHANGE_FLAGS)
    dry_run, lenient = (parsed_flag(name, request.args.get(name)) for name in _CHANGE_FLAGS)
    body = json_object(request, services().settings.body_limit)
    if "rules" in body:
        raise bad_value("rules", "cannot be changed by keys", "POST /v1/rules, or POST the declaration")
    manifest = parse_manifest(body)
    plan = set_keys(services().registry, manifest.targets, manifest.api, dry_run=dry_run, lenient=lenient)
    return json_response({"dry_run": dry_run} | plan_json(plan))
