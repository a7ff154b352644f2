"""Check the scope of each request's token: a route declares the scope that it needs, before it is called.

The scopes are ingest, read and admin; admin includes the others. A token may also be limited to buckets and targets.
Whose token it is, `app.api.auth` finds out.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

from flask import Flask, Request, current_app, g, request

from app.api.auth import COMMAND, SESSION, authenticate
from app.api.errors import ApiProblem
from app.config.arn import TargetId
from app.config.settings import ApiToken
from app.events.buckets import is_fixed
from app.outbox import audit

F = TypeVar("F", bound=Callable[..., object])

PUBLIC = "anyone"  # for probes, which have no token; reveals nothing about the events
VISITOR = "visitor"  # of a page of the console, which checks its session itself and then calls routes that have a scope
INGEST, READ, ADMIN = "ingest", "read", "admin"
_SCOPE, _LIMITED = "needed_scope", "checks_limits"


def needs(scope: str, *, limited: bool = False) -> Callable[[F], F]:
    """Declare the scope of a route; use it below the routing decorators.

    A token that is limited to buckets and targets is refused, unless the route is declared `limited`: its path names a
    target, which is checked here, or it calls `require_target` or `require_bucket` before it does anything.
    """

    def declare(view: F) -> F:
        setattr(view, _SCOPE, scope)
        setattr(view, _LIMITED, limited)
        return view

    return declare


def scope_of(app: Flask, endpoint: str) -> str | None:
    """Return the scope that a route has declared; a test verifies that every route has one."""
    return getattr(app.view_functions[endpoint], _SCOPE, None)


def scope_of_view(endpoint: str | None) -> str | None:
    """Return the scope of the route that handles a request of this app."""
    return scope_of(current_app, endpoint) if endpoint else None


def install(app: Flask) -> None:
    """Check every request before its route is called."""

    @app.before_request
    def _check() -> None:
        asked: Request = request._get_current_object()  # type: ignore[attr-defined]  # each access to a proxy costs
        endpoint = asked.endpoint
        if endpoint is None:
            return  # the path does not exist
        scope = scope_of(app, endpoint)
        if scope in (PUBLIC, VISITOR):
            return
        token = authorize(asked, scope or ADMIN)
        if token is not None and token.is_limited:
            _check_limits(token, asked)
        if scope not in (INGEST, READ):  # what the others change is in the audit log
            g.acting = ExitStack()
            g.acting.enter_context(audit.acting(_actor(asked, token)))

    @app.teardown_request
    def _end(_error: BaseException | None) -> None:
        acting: ExitStack | None = g.pop("acting", None)
        if acting is not None:
            acting.close()


def check(request: Request, scope: str) -> ApiToken | None:
    """Return the token of the request, or of the console's session; None if none is needed.

    Raises `ApiProblem` unless the request has the scope; `TokensUnknown` if the tokens cannot be read.
    """
    token = authenticate(request, posts_events=scope == INGEST)
    if token is not None and not {scope, ADMIN} & token.scopes:
        detail = f"the token {token.name!r} lacks the scope {scope}"
        raise ApiProblem("forbidden", detail, {"scope": scope}, reason="scope", actor=token.actor, fact=scope)
    return token


def authorize(request: Request, scope: str) -> ApiToken | None:
    """Do as `check`, and remember the token for the limits."""
    token = check(request, scope)
    g.token = token
    return token


def acting(token: ApiToken | None) -> AbstractContextManager[None]:
    """Attribute what is changed within the block to the user of this token, by this request."""
    return audit.acting(_actor(request, token))


def require_target(target: TargetId | None) -> None:
    """Raise `ApiProblem` if the request's token is limited and does not name this target, or none is given."""
    token = _limited_token()
    if token is not None and (target is None or str(target) not in token.targets):
        raise _beyond_limits(token, "targets", token.targets)


def require_bucket(bucket: str) -> None:
    """Raise `ApiProblem` if the request's token is limited and does not name this bucket."""
    token = _limited_token()
    if token is not None and not token.includes(bucket):
        of_tenant = [f"{token.tenant}:…"] if is_fixed(token.tenant) else []
        raise _beyond_limits(token, "buckets", token.buckets or of_tenant)


def is_limited() -> bool:
    """Return whether the request's token is limited to buckets or targets."""
    return _limited_token() is not None


def may_see(target: TargetId) -> bool:
    """Return whether the request's token allows to read about a target."""
    token = _limited_token()
    return token is None or str(target) in token.targets


def _limited_token() -> ApiToken | None:
    token: ApiToken | None = g.get("token")
    return token if token is not None and token.is_limited else None


def _check_limits(token: ApiToken, request: Request) -> None:
    if not getattr(current_app.view_functions[request.endpoint or ""], _LIMITED, False):
        detail = f"the token {token.name!r} is limited to buckets or targets; this concerns all"
        raise ApiProblem("forbidden", detail, reason="limits")
    path = request.view_args or {}
    if "type_name" in path:
        require_target(TargetId(path["type_name"], path["name"]))


def _beyond_limits(token: ApiToken, kind: str, allowed: Sequence[str]) -> ApiProblem:
    names = f"the {kind} {', '.join(allowed)}" if allowed else f"no {kind}"
    return ApiProblem("forbidden", f"the token {token.name!r} is limited to {names}"[:4096], reason="limits")


def _actor(request: Request, token: ApiToken | None) -> audit.Actor:
    if COMMAND in request.environ:
        actor: audit.Actor = request.environ[COMMAND]
        return actor
    route = request.url_rule.rule if request.url_rule else ""
    via = ("console " if SESSION in request.environ else "") + f"{request.method} {route}"
    return audit.Actor(token.actor if token else "local", request.remote_addr or "", via)
