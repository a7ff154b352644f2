"""Declare what a route takes and answers: its declaration parses and writes it, and is what OpenAPI is generated from.

The OpenAPI 3.1 description has the routes' docstrings too, for what only a person can say.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib.metadata import version
from typing import Any

import msgspec
import orjson
from flask import Blueprint, Flask, Response, current_app, request

from app.api.auth import PUBLIC, VISITOR, needs, scope_of
from app.api.errors import PROBLEM_TYPES
from app.api.request_body import json_object
from app.api.services import reserve_rows
from app.config.arn import TargetId
from app.config.declared_types import SOURCE_TYPES, TYPES, settings_type
from app.config.fields.fields import Declared, fields_of
from app.config.settings import SCOPES
from app.resources.declaration import Query, Resource, body_schema, parameters, parse_body, parse_change, parse_query

_encode = msgspec.json.Encoder().encode
View = Callable[..., Any]
OtherAnswer = tuple[str, type[Resource] | Mapping[str, Any] | None]
EVENTS_BODY: Mapping[str, Any] = {
    "required": True,
    "description": "as for `POST /v1/events`",
    "content": {"application/json": {"schema": {}}, "application/x-ndjson": {"schema": {}}},
}
_DESCRIPTION = "_description"
routes = Blueprint("description", __name__)
_PATH_VARIABLE = re.compile(r"<(?:[a-z]+:)?([a-z_]+)>")
_TARGET: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "type_name": ({"enum": list(TYPES)}, "the target's type"),
    "name": ({"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}, "its name; _ is the unnamed one"),
}
_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}
_ERROR = {"type": "object", "properties": dict.fromkeys(("field", "value", "problem", "hint"), _TEXT)}
_PROBLEM = {
    "type": "object",
    "properties": {
        "type": {**_TEXT, "enum": [f"urn:bucketwire:problem:{kind}" for kind in PROBLEM_TYPES]},
        "title": _TEXT,
        "status": _NUMBER,
        "detail": _TEXT,
        "field": {**_TEXT, "description": "the invalid parameter or member"},
        "offset": {**_NUMBER, "description": "the byte at which the JSON is invalid"},
        "index": {**_NUMBER, "description": "the invalid record, from 0"},
        "errors": {"type": "array", "items": _ERROR},
        "targets": {"type": "array", "items": _TEXT},
        "id": {**_TEXT, "description": "the id of an unexpected error in the API's log"},
    },
}


def json_response(content: Mapping[str, Any] | Resource, status: int = 200) -> Response:
    """Return a JSON response."""
    if isinstance(content, Resource):
        return Response(_encode(content), status, mimetype="application/json")
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), status, mimetype="application/json")


def target_of(type_name: str, name: str) -> TargetId:
    """Return the target that a path names. Raises `BadSettings` for an unknown type."""
    settings_type(type_name)
    return TargetId(type_name, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A route's declaration.

    `text` says what the answer is; without a resource it has no content, or that of `other_answers`, which have a
    resource or, by media type, schemas. `change` is a body that needs a filter or `all`. What the view reads of the
    request itself is described by `content` (a body), and by `query` if `parses` is false. `path` describes the
    variables of the path, some with a schema, `security` what its scope does not say.
    """

    answer: type[Resource] | None
    text: str
    status: int = 200
    query: type[Query] | None = None
    body: type[Query] | None = None
    change: type[Query] | None = None
    parses: bool = True
    content: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None
    media_type: str = ""  # of an answer that is no resource
    other_answers: Mapping[int | str, OtherAnswer] = field(default_factory=dict)
    path: Mapping[str, str | tuple[Mapping[str, Any], str]] = field(default_factory=dict)
    security: Sequence[Mapping[str, Any]] | None = None


def answers(answer: type[Resource] | None, text: str, **declared: Any) -> Callable[[View], View]:
    """Declare a route, below `needs`: what it answers, and the further members of its `Description`.

    The view gets what is declared as `query`, `body` or `change` parsed, under that name, and returns a resource, also
    with a status of its own, a response, or None for an answer without content. Its docstring is the summary and the
    description.
    """
    description = Description(answer=answer, text=text, **declared)

    def decorate(view: View) -> View:
        @wraps(view)
        def respond(**given: Any) -> Response:
            if description.query is not None and description.parses:
                given["query"] = query = parse_query(description.query, request.args)
                reserve_rows(getattr(query, "limit", 0) or 0)
            if description.body is not None:
                given["body"] = parse_body(description.body, json_object(request))
            if description.change is not None:
                given["change"] = parse_change(description.change, json_object(request))
            match view(**given):
                case None:
                    return Response(status=204)
                case Response() as response:
                    return response
                case (Resource() as resource, int(status)):
                    return json_response(resource, status)
                case resource:
                    return json_response(resource, description.status)

        setattr(respond, _DESCRIPTION, description)
        return respond

    return decorate


def json_body(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Describe a body of JSON that the view reads itself."""
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def description_of(view: View) -> Description | None:
    """Return a route's declaration."""
    return getattr(view, _DESCRIPTION, None)


@routes.get("/openapi.json")
@needs(PUBLIC)
@answers(None, "the OpenAPI 3.1 document", media_type="application/json")
def openapi() -> Response:
    """Return this description."""
    return Response(_document(current_app._get_current_object()), mimetype="application/json")  # type: ignore[attr-defined] # the app behind the proxy


@cache
def _document(app: Flask) -> bytes:
    """Return the description as JSON: anybody may ask for it, so that costs nothing."""
    return orjson.dumps(described(app), option=orjson.OPT_NON_STR_KEYS)


@cache
def described(app: Flask) -> dict[str, Any]:
    """Return the complete description of an app."""
    # The console's pages are for people.
    shown = {endpoint: view for endpoint, view in app.view_functions.items() if scope_of(app, endpoint) != VISITOR}
    declared = {endpoint: description for endpoint, view in shown.items() if (description := description_of(view))}
    paths: dict[str, dict[str, Any]] = {}
    for rule in app.url_map.iter_rules():
        if (description := declared.get(rule.endpoint)) is not None:
            path = paths.setdefault(_PATH_VARIABLE.sub(r"{\1}", rule.rule), {})
            for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}:
                path[method.lower()] = _operation(app, rule.endpoint, description, sorted(rule.arguments, reverse=True))
    bearer = f"a token with the route's scope: {', '.join(SCOPES)}; admin includes the others"
    problem = "a problem (RFC 9457): `type` names its kind, `detail` says what to do"
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Bucketwire",
            "version": version("bucketwire"),
            "description": "Records S3 bucket events and delivers them at least once, in order per object.",
        },
        "paths": paths,
        "components": {
            "schemas": {
                "Problem": _PROBLEM,
                "Settings": _settings("the settings of a target of the type, by name", TYPES),
                "SourceSettings": _settings("the settings of a source of the type, by name", SOURCE_TYPES),
                **_schemas_of(list(declared.values())),
            },
            "responses": {
                "Problem": {"description": problem, "content": _content("Problem", "application/problem+json")}
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": bearer}},
        },
    }


def _operation(app: Flask, endpoint: str, description: Description, variables: Sequence[str]) -> dict[str, Any]:
    """Return the operation of a route: its docstring says what only a person can say."""
    summary, _, details = inspect.cleandoc(app.view_functions[endpoint].__doc__ or "").partition("\n\n")
    operation: dict[str, Any] = {"summary": " ".join(summary.split()).rstrip(".")}
    if details:
        operation["description"] = " ".join(details.split())
    if (scope := scope_of(app, endpoint)) != PUBLIC or description.security is not None:
        operation["security"] = description.security or [{"token": [scope]}]
    described = [_variable(name, description.path) for name in variables]
    described += parameters(description.query) if description.query is not None else []
    if described:
        operation["parameters"] = described
    if description.content is not None:
        operation["requestBody"] = description.content() if callable(description.content) else description.content
    elif (body := description.change or description.body) is not None:
        operation["requestBody"] = {"required": True, "content": _content(body.__name__)}
    operation["responses"] = {str(description.status): _answer(description), **_other_answers(description)}
    return operation


def _answer(description: Description) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": description.text}
    if description.answer is not None:
        answer["content"] = _content(description.answer.__name__)
    elif description.media_type:
        is_json = description.media_type == "application/json"
        answer["content"] = {description.media_type: {"schema": {"type": "object"} if is_json else _TEXT}}
    return answer


def _other_answers(description: Description) -> dict[str, Any]:
    others: dict[str, Any] = {"default": {"$ref": "#/components/responses/Problem"}}
    for status, (text, answer) in description.other_answers.items():
        others[str(status)] = {"description": text}
        if answer is not None:
            others[str(status)]["content"] = _content(answer.__name__) if isinstance(answer, type) else answer
    return others


def _variable(name: str, described: Mapping[str, str | tuple[Mapping[str, Any], str]]) -> dict[str, Any]:
    """Return a variable of a path; the type and the name of a target are described here."""
    own = described.get(name, _TARGET.get(name, ""))
    schema, text = ({}, own) if isinstance(own, str) else own
    kind: dict[str, Any] = {"type": "integer" if name == "number" else "string"}
    return {"name": name, "in": "path", "required": True, "schema": {**kind, **schema}, "description": text}


def _schemas_of(descriptions: Sequence[Description]) -> dict[str, Any]:
    """Return the schemas of what the routes take and answer, by name."""
    resources = {one.answer for one in descriptions if one.answer is not None}
    others = [answer for one in descriptions for _, answer in one.other_answers.values()]
    resources |= {answer for answer in others if isinstance(answer, type)}
    _, schemas = msgspec.json.schema_components(resources, ref_template="#/components/schemas/{name}")
    bodies = {one.body: False for one in descriptions if one.body is not None}
    bodies |= {one.change: True for one in descriptions if one.change is not None}
    return schemas | {body.__name__: body_schema(body, with_all=with_all) for body, with_all in bodies.items()}


def _settings(about: str, types: Mapping[str, type[Declared]]) -> dict[str, Any]:
    """Return the schema of settings, and what is known of the keys of each type."""
    known = {
        kind: {
            name: {"kind": key.kind.label, "required": key.required, "default": key.default, "secret": key.secret,
                   "about": key.about}
            for name, key in fields_of(cls).items()
        }
        for kind, cls in types.items()
    }  # fmt: skip
    return {"type": "object", "additionalProperties": True, "description": about, "x-settings": known}


def _content(name: str, media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": f"#/components/schemas/{name}"}}}
