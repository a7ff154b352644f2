"""Call the routes of the public API within the process, with the rights of the browser's session.

A call passes through the API's own checks of scopes, values and limits, exactly as a request over the network does:
what the session's token may not do is refused there, not here.
"""

import io
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import orjson
from flask import Response, current_app, request

from app.api.auth import SESSION, ConsoleSession

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


class Refused(Exception):
    """The API has refused a call: `status`, and `body`, its problem (RFC 9457)."""

    def __init__(self, status: int, body: Mapping[str, Any]) -> None:
        super().__init__(str(body.get("detail") or body.get("title") or status))
        self.status = status
        self.body = body

    @property
    def kind(self) -> str:
        """The problem's type, such as `bad-value`."""
        return str(self.body.get("type", "")).rpartition(":")[2]

    @property
    def sentences(self) -> list[str]:
        """What is wrong: one sentence for each wrong field, or the problem's detail."""
        fields = [
            f"{error['field']} {error['problem']}" + (f"; {error['hint']}" if error.get("hint") else "")
            for error in self.body.get("errors", ())
        ]
        return fields or [str(self)]

    @property
    def by_field(self) -> dict[str, str]:
        """What is wrong with each field, by its name."""
        wrong = {
            str(error["field"]): error["problem"] + (f"; {error['hint']}" if error.get("hint") else "")
            for error in self.body.get("errors", ())
        }
        return wrong or ({str(self.body["field"]): str(self)} if self.body.get("field") else {})


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
        raise Refused(response.status_code, orjson.loads(response.get_data() or b"{}"))
    return response


def target_path(type_name: str, name: str) -> str:
    """Return the path of a target's routes."""
    return f"/v1/targets/{type_name}/{name}"  # as the server decodes it


def _respond(method: str, path: str, query: str, body: bytes | None) -> Response:
    app = current_app._get_current_object()  # type: ignore[attr-defined]  # the app behind the proxy
    # A context of its own for the app too: a call shares nothing with the page, as if it came over the network.
    with app.app_context(), app.request_context(_environ(method, path, query, body)):
        response: Response = app.full_dispatch_request()
    return response


def _call(method: str, path: str, query: str, body: bytes | None) -> dict[str, Any]:
    response = _respond(method, path, query, body)
    content = response.get_data()
    answer = orjson.loads(content) if content else {}
    if response.status_code >= 400:
        raise Refused(response.status_code, answer)
    return dict(answer)


def _environ(method: str, path: str, query: str, body: bytes | None) -> dict[str, Any]:
    outer = request.environ
    kept = {name: outer[name] for name in _SERVER if name in outer}
    kept |= {name: value for name, value in outer.items() if name.startswith("HTTP_") and name not in _LEFT_OUT}
    kept |= {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": query,
        "wsgi.input": io.BytesIO(body or b""),
        SESSION: outer.get(SESSION, ConsoleSession()),
    }
    if body is not None:
        kept |= {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body))}
    return kept
