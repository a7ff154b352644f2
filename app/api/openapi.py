"""Generate the API's OpenAPI 3.1 description from the routes and the YAML in their docstrings."""

from functools import cache
from importlib.metadata import version
from typing import Any

from apispec import APISpec
from apispec_webframeworks.flask import FlaskPlugin
from flask import Blueprint, Flask, Response, current_app

from app.api.auth import PUBLIC, VISITOR, needs, scope_of
from app.api.schemas import SCHEMAS
from app.api.serialization import json_response
from app.config.fields.fields import fields_of
from app.config.settings import SCOPES
from app.config.targets.registry import TYPES

routes = Blueprint("description", __name__)


@routes.get("/openapi.json")
@needs(PUBLIC)
def openapi() -> Response:
    """Describe the API.
    ---
    get:
      summary: Return this description
      responses:
        200: {description: the OpenAPI 3.1 document, content: {application/json: {schema: Empty}}}
    """
    return json_response(described(current_app._get_current_object()))  # type: ignore[attr-defined] # the app behind the proxy


@cache
def described(app: Flask) -> dict[str, Any]:
    """Return the complete description of an app."""
    spec = APISpec(
        title="Bucketwire",
        version=version("bucketwire"),
        openapi_version="3.1.0",
        info={"description": "Records S3 bucket events and delivers them at least once, in order per object."},
        plugins=[FlaskPlugin()],
    )
    for name, schema in SCHEMAS.items():
        spec.components.schema(name, schema)
    spec.components.response(
        "Problem",
        {
            "description": "a problem (RFC 9457): `type` names its kind, `detail` says what to do",
            "content": {"application/problem+json": {"schema": "Problem"}},
        },
    )
    for name, place, schema, text in (
        ("target_type", "type_name", {"enum": list(TYPES)}, "the target's type"),
        ("run", "run", {}, "the run's name"),
        ("target_name", "name", {"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}, "its name; _ is the unnamed one"),
    ):
        spec.components.parameter(
            name, "path", {"name": place, "required": True, "schema": {"type": "string"} | schema, "description": text}
        )
    spec.components.security_scheme(
        "token",
        {
            "type": "http",
            "scheme": "bearer",
            "description": f"a token with the route's scope: {', '.join(SCOPES)}; admin includes the others",
        },
    )
    with app.test_request_context():
        for endpoint, view in app.view_functions.items():
            if scope_of(app, endpoint) != VISITOR:  # the console's pages are for people
                spec.path(view=view, app=app)
    found: dict[str, Any] = spec.to_dict()
    found["components"]["schemas"]["Settings"]["x-settings"] = {
        kind: {
            name: {"kind": key.kind.label, "required": key.required, "default": key.default, "secret": key.secret,
                   "about": key.about}
            for name, key in fields_of(cls).items()
        }
        for kind, cls in TYPES.items()
    }  # fmt: skip
    return found
