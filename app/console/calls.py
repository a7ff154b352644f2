"""Call the routes of the public API within the process, with the rights of the browser's session.

A call passes through the API's own checks of scopes, values and limits, exactly as a request over the network does:
what the session's token may not do is refused there, not here.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
from flask import Response, current_app, request

from app.api import Refused, in_process
from app.api.auth import SESSION, ConsoleSession
from app.api.services import reserve

_SERVER = (
    "SERVER_NAME", "SERVER_PORT", "SERVER_PROTOCOL", "REMOTE_ADDR", "REMOTE_PORT", "wsgi.version", "wsgi.url_scheme",
    "wsgi.errors", "wsgi.multithread", "wsgi.multiprocess", "wsgi.run_once",
)  # fmt: skip
# Of the browser's headers the calls keep those that say where it comes from, and none that says who it is.
_LEFT_OUT = frozenset(
    {
        "HTTP_AUTHORIZATION", "HTTP_COOKIE", "HTTP_CONTENT_ENCODING", "HTTP_TRANSFER_ENCODING", "HTTP_RANGE",
        "HTTP_IF_NONE_MATCH", "HTTP_IF_MODIFIED_SINCE", "HTTP_EXPECT",
    }
)  # fmt: skip


def get(path: str, **query: Any) -> dict[str, Any]:
    """Return the answer of a route; a parameter that is empty or None is left out. Raises `Refused`."""
    given = {name: value for name, value in query.items() if value not in (None, "")}
    return _call("GET", path, urlencode(given), None)


def targets() -> list[dict[str, Any]]:
    """Return the visitor's targets with their states and settings, but without their counters, which take longer."""
    return list(get("/v1/targets", brief="true")["targets"])


def checks() -> dict[str, dict[str, Any]]:
    """Return the checks of the service by name, whether it is ready or not."""
    try:
        answer: Mapping[str, Any] = get("/readyz")
    except Refused as refused:
        answer = refused.body
    return dict(answer["checks"])


def change(method: str, path: str, body: Mapping[str, Any] | None = None, **query: str) -> dict[str, Any]:
    """Call a route that changes something; `body` is sent as JSON. Raises `Refused`."""
    return _call(method, path, urlencode(query), orjson.dumps(body or {}))


def stream(path: str, **query: str) -> Response:
    """Return the answer of a route that streams, for the browser itself. Raises `Refused`."""
    response = _respond(request.method, path, urlencode({name: text for name, text in query.items() if text}), None)
    if response.status_code >= 400:
        in_process.read(response)
    return response


def resource_path(room: str, type_name: str, name: str) -> str:
    """Return the path of the routes of a target or, in the room `sources`, a source."""
    return f"/v1/{room}/{type_name}/{name}"  # as the server decodes it


def _respond(method: str, path: str, query: str, body: bytes | None) -> Response:
    outer = request.environ
    kept = {name: outer[name] for name in _SERVER if name in outer}
    kept |= {name: value for name, value in outer.items() if name.startswith("HTTP_") and name not in _LEFT_OUT}
    kept |= {SESSION: outer.get(SESSION, ConsoleSession())}
    app = current_app._get_current_object()  # type: ignore[attr-defined]  # the app behind the proxy
    return in_process.respond(app, method, path, query, body, kept)


def _call(method: str, path: str, query: str, body: bytes | None) -> dict[str, Any]:
    response = _respond(method, path, query, body)
    reserve(response.content_length or 0)  # it is read, and a page made of it
    return in_process.read(response)
