"""Targets and rules declared together: planned, or made so in one transaction."""

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, needs
from app.api.request_body import json_object
from app.api.serialization import json_response, parsed_flag, refuse_unknown
from app.api.services import services
from app.manifest.document import parse_manifest
from app.manifest.plan import apply, make_plan, plan_json

routes = Blueprint("declare", __name__)
_FLAGS = ("dry_run", "prune", "force")


@routes.post("/v1/declaration")
@needs(ADMIN)
def declare() -> Response:
    """Make targets and rules as declared.
    ---
    post:
      summary: Make targets and rules as declared, all of it or nothing; again, it changes nothing
      description: >
        A declared target is declared as a whole: a key that is left out is its default, and a secret given back as it
        was shown (`*redacted*`) stays. What is not declared stays unless `prune`.
      security: [{token: [admin]}]
      parameters:
        - {name: dry_run, in: query, schema: {type: boolean, default: false}, description: only plan it}
        - {name: prune, in: query, schema: {type: boolean, default: false},
           description: also remove the targets and rules that are not declared}
        - {name: force, in: query, schema: {type: boolean, default: false},
           description: remove also targets with undelivered events or dead letters}
      requestBody: {required: true, content: {application/json: {schema: Declaration}}}
      responses:
        200: {description: what changed or would change, content: {application/json: {schema: Plan}}}
        default: Problem
    """
    refuse_unknown(request.args, _FLAGS)
    dry_run, prune, force = (parsed_flag(name, request.args.get(name)) for name in _FLAGS)
    declared = parse_manifest(json_object(request))
    registry = services().registry
    made = (
        make_plan(registry, declared, prune=prune) if dry_run else apply(registry, declared, prune=prune, force=force)
    )
    return json_response({"dry_run": dry_run} | plan_json(made))
