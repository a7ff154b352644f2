"""Generate the API's OpenAPI 3.1 description from the routes and the YAML in their docstrings."""

import inspect
import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import msgspec
from apispec import APISpec
from apispec_webframeworks.flask import FlaskPlugin
from flask import Blueprint, Flask, Response, current_app

from app.api.auth import PUBLIC, VISITOR, needs, scope_of
from app.api.description import Description, description_of
from app.api.schemas import SCHEMAS
from app.api.serialization import json_response
from app.config.fields.fields import fields_of
from app.config.settings import SCOPES
from app.config.targets.registry import TYPES
from app.resources.declaration import body_schema, parameters

routes = Blueprint("description", __name__)
_PATH_VARIABLE = re.compile(r"<(?:[a-z]+:)?([a-z_]+)>")


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
    declared = {endpoint: description_of(view) for endpoint, view in app.view_functions.items()}
    with app.test_request_context():
        for endpoint, view in app.view_functions.items():
            if scope_of(app, endpoint) != VISITOR and declared[endpoint] is None:  # the console's pages are for people
                spec.path(view=view, app=app)
    found: dict[str, Any] = spec.to_dict()
    descriptions = [description for description in declared.values() if description is not None]
    found["components"]["schemas"] |= _schemas_of(descriptions)
    for rule in app.url_map.iter_rules():
        if (description := declared[rule.endpoint]) is not None:
            path = found["paths"].setdefault(_PATH_VARIABLE.sub(r"{\1}", rule.rule), {})
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                path[method.lower()] = _operation(app, rule.endpoint, description, sorted(rule.arguments))
    found["components"]["schemas"]["Settings"]["x-settings"] = {
        kind: {
            name: {"kind": key.kind.label, "required": key.required, "default": key.default, "secret": key.secret,
                   "about": key.about}
            for name, key in fields_of(cls).items()
        }
        for kind, cls in TYPES.items()
    }  # fmt: skip
    return found


def _operation(app: Flask, endpoint: str, description: Description, variables: Sequence[str]) -> dict[str, Any]:
    """Return the operation of a declared route: its docstring says what only a person can say."""
    summary, _, details = inspect.cleandoc(app.view_functions[endpoint].__doc__ or "").partition("\n\n")
    operation: dict[str, Any] = {"summary": summary.rstrip(".")}
    if details:
        operation["description"] = " ".join(details.split())
    scope = scope_of(app, endpoint)
    if scope != PUBLIC:
        operation["security"] = [{"token": [scope]}]
    described = [_variable(name, description.path.get(name, "")) for name in variables]
    described += parameters(description.query) if description.query is not None else []
    if described:
        operation["parameters"] = described
    if (body := description.change or description.body) is not None:
        operation["requestBody"] = {"required": True, "content": _json(_reference(body.__name__))}
    content = {} if description.answer is None else {"content": _json(_reference(description.answer.__name__))}
    operation["responses"] = {
        str(description.status): {"description": description.text} | content,
        "default": {"$ref": "#/components/responses/Problem"},
    }
    return operation


def _variable(name: str, text: str) -> dict[str, Any]:
    """Return a variable of a path; the names of targets are described once."""
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}, "description": text}


def _schemas_of(descriptions: Sequence[Description]) -> dict[str, Any]:
    """Return the schemas of what the routes take and answer, by name."""
    answers = {description.answer for description in descriptions if description.answer is not None}
    _, schemas = msgspec.json.schema_components(answers, ref_template="#/components/schemas/{name}")
    bodies = {one.body: False for one in descriptions if one.body is not None}
    bodies |= {one.change: True for one in descriptions if one.change is not None}
    return schemas | {body.__name__: body_schema(body, with_all=with_all) for body, with_all in bodies.items()}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
