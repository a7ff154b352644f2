"""Run routes of the API within a process: for the console's pages, and for commands on the service's own database.

A call passes through the API's own checks of scopes, values and limits, exactly as a request over the network does.
"""

import io
import logging
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import orjson
from flask import Flask, Response

from app.api import Refused, auth, errors, services
from app.api.services import App, Services
from app.outbox.audit import Actor

# The routes that commands call, by the first part of their paths, and their modules. A command imports what it calls:
# all of them take three times as long to import as those of the targets.
_MODULES: Mapping[str, str] = MappingProxyType(
    {
        "audit": "access",
        "buckets": "declaration",
        "dead-letters": "undelivered",
        "declaration": "declaration",
        "doctor": "service",
        "events": "event_log",
        "processes": "service",
        "reconciliations": "reconciliations",
        "replays": "undelivered",
        "retries": "undelivered",
        "rules": "rules",
        "settings": "declaration",
        "sources": "sources",
        "status": "service",
        "targets": "targets",
        "tokens": "access",
    }
)
_NO_LOG = logging.NullHandler()  # what the API would log, a command reports, or its user need not know
_FLUSH_SECONDS = 3.0  # that a command waits until the drain is woken


def respond(app: Flask, method: str, path: str, query: str, body: bytes | None, environ: Mapping[str, Any]) -> Response:
    """Run a route and return its response, whatever its status; `path` is decoded, `environ` says who calls."""
    request = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path.encode().decode("latin-1"),
        "QUERY_STRING": query,
        "wsgi.input": io.BytesIO(body or b""),
    }
    if body is not None:
        request |= {"CONTENT_TYPE": "application/json", "CONTENT_LENGTH": str(len(body))}
    # A context of its own for the app too: a call shares nothing with its caller, as if it came over the network.
    with app.app_context(), app.request_context({**environ, **request}):
        response: Response = app.full_dispatch_request()
    return response


def read(response: Response) -> dict[str, Any]:
    """Return the JSON of a response, {} if it has none. Raises `Refused`."""
    content = response.get_data()
    answer = orjson.loads(content) if content else {}
    if response.status_code >= 400:
        raise Refused(response.status_code, answer)
    return dict(answer)


class CommandApi:
    """The routes for one command, with every right and no token: `actor` is who the audit log names.

    `opened` is closed by its owner. A route's own errors raise `Refused`; a database that is unavailable, and what is
    unexpected, raise the exception itself, because it concerns this machine.
    """

    def __init__(self, opened: Services, actor: Actor) -> None:
        self._opened = opened
        self._actor = actor
        self._apps: dict[str, Flask] = {}
        self._due = False
        logging.getLogger("bucketwire").addHandler(_NO_LOG)

    def call(self, method: str, path: str, query: str, body: bytes | None) -> dict[str, Any]:
        """Run a route and return its JSON. Raises `Refused`."""
        app = self._app(path)
        environ = {
            "SERVER_NAME": "localhost", "SERVER_PORT": "0", "SERVER_PROTOCOL": "HTTP/1.1", "wsgi.url_scheme": "http",
            auth.COMMAND: self._actor,
        }  # fmt: skip
        answer = read(respond(app, method, path, query, body, environ))
        self._due |= method not in ("GET", "HEAD")
        return answer

    def close(self) -> None:
        """Wake the drain if anything was changed, as the server does after each change."""
        if self._due:
            self._opened.wakeups.request()
            self._opened.wakeups.flush(_FLUSH_SECONDS)
            self._opened.wakeups.close()

    def _app(self, path: str) -> Flask:
        module = _MODULES[path.split("/", 3)[2]]
        if module not in self._apps:
            app = self._apps[module] = App()
            services.install(app, self._opened)
            auth.install(app)
            app.register_error_handler(Exception, _answer)
            app.register_blueprint(import_module(f"app.api.routes.{module}").routes)
        return self._apps[module]


def _answer(error: Exception) -> Response:
    if not errors.is_refusal(error):
        raise error
    return errors.to_problem(error).response()
