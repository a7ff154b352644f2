"""Create, list and revoke bearer tokens of the API."""

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, needs
from app.api.errors import ApiProblem
from app.api.request_body import json_object
from app.api.serialization import bad_value, json_response, parsed_target, parsed_text
from app.api.services import services
from app.config.errors import BadValue
from app.outbox.errors import UnknownToken
from app.resources.declaration import format_time, refuse_unknown

routes = Blueprint("tokens", __name__)


@routes.get("/v1/tokens")
@needs(ADMIN)
def ls() -> Response:
    """List the tokens.
    ---
    get:
      summary: List the valid tokens by name; the tokens themselves are not stored
      description: "`required`: whether requests need a token; from the first one on, also after the last is revoked"
      security: [{token: [admin]}]
      responses:
        200: {description: the tokens, content: {application/json: {schema: Tokens}}}
        default: Problem
    """
    tokens = [
        {
            "name": stored.name,
            "scopes": sorted(stored.scopes),
            "buckets": list(stored.buckets),
            "targets": list(stored.targets),
            "frontend": stored.frontend,
            "origin": stored.origin,
            "created_at": format_time(stored.created_at),
        }
        for stored in services().tokens.list()
    ]
    return json_response({"tokens": tokens, "required": services().tokens.required()})


@routes.post("/v1/tokens")
@needs(ADMIN)
def create() -> Response:
    """Create a token.
    ---
    post:
      summary: Create a token and return it; it cannot be shown again
      description: >
        Valid within a second. After the first token has been created, every request needs one. With `buckets` or
        `targets` it is limited to what concerns only these. `frontend` names the sender of the events that are posted
        with it, where they do not show it.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: NewToken}}}
      responses:
        201: {description: the token, content: {application/json: {schema: CreatedToken}}}
        default: Problem
    """
    body = json_object(request)
    refuse_unknown(body, ("name", "scopes", "buckets", "targets", "frontend"))
    name, frontend = parsed_text("name", body.get("name")), parsed_text("frontend", body.get("frontend"))
    scopes, buckets = _texts(body, "scopes", '["read"]'), _texts(body, "buckets", '["images"]')
    targets = [parsed_target("targets", target) for target in _texts(body, "targets", '["webhook:audit"]')]
    try:
        token = services().tokens.create(name, scopes, buckets=buckets, targets=targets, frontend=frontend)
    except BadValue as error:
        raise ApiProblem("bad-value", f"the token {error.problem}; {error.hint}", {"field": "name"}) from None
    limits = {"buckets": sorted(set(buckets)), "targets": sorted(set(map(str, targets)))}
    return json_response(
        {"name": name, "scopes": sorted(set(scopes)), **limits, "frontend": frontend, "token": token}, 201
    )


def _texts(body: Mapping[str, Any], field: str, example: str) -> list[str]:
    texts = body.get(field, [])
    if not isinstance(texts, list):
        raise bad_value(field, "is not a list", f"write {example}")
    if not all(isinstance(text, str) for text in texts):
        raise bad_value(field, "has a member that is not a string", f"write {example}")
    return [parsed_text(field, text) for text in texts]


@routes.delete("/v1/tokens/<name>")
@needs(ADMIN)
def revoke(name: str) -> Response:
    """Revoke a token.
    ---
    delete:
      summary: Revoke a token; effective within a second
      description: After the last one is revoked, no client can use the API until `bucketwire token create` is run.
      security: [{token: [admin]}]
      parameters:
        - {name: name, in: path, required: true, schema: {type: string}, description: the token's name}
      responses:
        204: {description: the token is revoked}
        default: Problem
    """
    try:
        services().tokens.revoke(parsed_text("name", name))
    except UnknownToken as error:
        raise ApiProblem("not-found", str(error)) from None
    return Response(status=204)
