"""What a route takes and answers: parsed and written by its declaration, which is its description too."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import msgspec
import orjson
from flask import Response, request

from app.api.request_body import json_object
from app.api.services import reserve_rows
from app.config.arn import TargetId
from app.config.targets.registry import settings_type
from app.resources.declaration import Query, Resource, parse_body, parse_change, parse_query

_encode = msgspec.json.Encoder().encode


def json_response(content: Mapping[str, Any] | Resource, status: int = 200) -> Response:
    """Return a JSON response."""
    if isinstance(content, Resource):
        return Response(_encode(content), status, mimetype="application/json")
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), status, mimetype="application/json")


def target_of(type_name: str, name: str) -> TargetId:
    """Return the target that a path names. Raises `BadSettings` for an unknown type."""
    settings_type(type_name)
    return TargetId(type_name, name)


View = Callable[..., Any]
OtherAnswer = tuple[str, type[Resource] | Mapping[str, Any] | None]
EVENTS_BODY: Mapping[str, Any] = {
    "required": True,
    "description": "as for `POST /v1/events`",
    "content": {"application/json": {"schema": {}}, "application/x-ndjson": {"schema": {}}},
}
_DESCRIPTION = "_description"


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
