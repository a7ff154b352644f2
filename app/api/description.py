"""What a route takes and answers: parsed and written by its declaration, which is its description too."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from flask import Response, request

from app.api.request_body import json_object
from app.api.serialization import json_response
from app.resources.declaration import Query, Resource, parse_body, parse_change, parse_query

View = Callable[..., Any]
_DESCRIPTION = "_description"


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A route's declaration. `change` is a body that needs a filter or `all`; `text` says what the answer is."""

    answer: type[Resource] | None
    text: str
    status: int = 200
    query: type[Query] | None = None
    body: type[Query] | None = None
    change: type[Query] | None = None
    path: Mapping[str, str] = field(default_factory=dict)


def answers(answer: type[Resource] | None, text: str, **declared: Any) -> Callable[[View], View]:
    """Declare a route, below `needs`: what it answers, and the further members of its `Description`.

    The view gets what is declared as `query`, `body` or `change` parsed, under that name, and returns a resource, or
    None for an answer without content. Its docstring is the summary and the description.
    """
    description = Description(answer=answer, text=text, **declared)

    def decorate(view: View) -> View:
        @wraps(view)
        def respond(**given: Any) -> Response:
            if description.query is not None:
                given["query"] = parse_query(description.query, request.args)
            if description.body is not None:
                given["body"] = parse_body(description.body, json_object(request))
            if description.change is not None:
                given["change"] = parse_change(description.change, json_object(request))
            answered = view(**given)
            return Response(status=204) if answered is None else json_response(answered, description.status)

        setattr(respond, _DESCRIPTION, description)
        return respond

    return decorate


def description_of(view: View) -> Description | None:
    """Return a route's declaration."""
    return getattr(view, _DESCRIPTION, None)
