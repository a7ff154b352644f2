"""Who may call what: each route declares the scope that it needs, and no request gets by without it.

Scopes are those of the tokens: ingest, read, admin; admin includes the others. Until the first token is made the API is
open, but only to this machine: it has to listen on a loopback address, be called by one, and not through a proxy. From
then on it needs a token for good, also when the last one was revoked.
"""

import base64
import binascii
import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import sqlalchemy as sa
from flask import Flask, Request, current_app, request

from app.api.errors import ApiProblem
from app.api.services import services
from app.config.errors import BadSettings, Problem
from app.config.networks import is_loopback
from app.config.settings import Settings
from app.outbox.engine.database import Database
from app.outbox.tokens import Tokens

F = TypeVar("F", bound=Callable[..., object])

PUBLIC = "anyone"  # what a probe has to reach without a token; says nothing of the events
INGEST, READ, ADMIN = "ingest", "read", "admin"
_SCOPE = "needed_scope"
# Headers by which proxies and content delivery networks name the client or themselves.
_FORWARDED = re.compile(r"x-(?:original-)?forwarded(?:-|$)", re.IGNORECASE)
_FORWARDING = frozenset(
    {
        "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-host", "x-original-url",
        "x-envoy-external-address", "x-envoy-original-path", "x-proxyuser-ip", "x-azure-clientip", "client-ip",
        "true-client-ip", "fastly-client-ip", "cf-connecting-ip", "cdn-loop",
    }
)  # fmt: skip


def needs(scope: str) -> Callable[[F], F]:
    """Declare the scope of a route; it stands below the routing decorators."""

    def declare(view: F) -> F:
        setattr(view, _SCOPE, scope)
        return view

    return declare


def scope_of(app: Flask, endpoint: str) -> str | None:
    """What a route has declared; a test sees to it that each has."""
    return getattr(app.view_functions[endpoint], _SCOPE, None)


def install(app: Flask) -> None:
    """Check every request before its route is called."""

    @app.before_request
    def _check() -> None:
        if request.endpoint is None:
            return  # there is no such path
        scope = scope_of(current_app, request.endpoint)
        if scope != PUBLIC:
            check(request, scope or ADMIN)


def check(request: Request, scope: str) -> None:
    """Raise `ApiProblem` unless the request may do what the scope allows; `TokensUnknown` when nobody can say."""
    tokens = services().tokens
    presented = presented_token(request.headers.get("Authorization", ""))
    found = tokens.find(presented) if presented else None
    if found is None:
        if services().settings.loopback and not tokens.required():
            _check_local(request)  # also of a sender that was given a token before there were any
            return
        raise _unauthorized(_refused(tokens, presented))
    if not {scope, ADMIN} & found.scopes:
        raise ApiProblem("forbidden", f"the token {found.name!r} lacks the scope {scope}", {"scope": scope})


def _refused(tokens: Tokens, presented: str) -> str:
    if tokens.any():
        if presented:
            return "this token does not hold; `bucketwire token ls` shows the names of those that do"
        return "send a token: Authorization: Bearer <token>"
    stands = "no token is left, and the API stays closed" if tokens.required() else "there is no token yet"
    return f"{stands}; make one: bucketwire token create <name> --scope ingest"


def presented_token(authorization: str) -> str:
    """The token in an `Authorization` header, "" for none.

    As a bearer token, as the password of basic authentication (Ceph's push endpoints carry user information in their
    URL and nothing else), or the token alone: the ways in which senders are known to hand on what they are given.
    """
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return scheme if not rest else ""


def check_listen(settings: Settings, database: Database) -> None:
    """Raise `BadSettings` where the API would be open to the network: no token, and no loopback address.

    A database that cannot be read is no reason: then the tokens are not known, and without one nobody gets in.
    """
    if settings.loopback or settings.api_tokens:
        return
    try:
        if Tokens(database).list():
            return
    except sa.exc.SQLAlchemyError:
        return
    hint = (
        "make one with `bucketwire token create minio --scope ingest`, set BUCKETWIRE_API_TOKENS, "
        "or listen on 127.0.0.1"
    )
    raise BadSettings(
        [Problem("BUCKETWIRE_LISTEN", str(settings.listen), "can be reached from outside, and there is no token", hint)]
    )


def _check_local(request: Request) -> None:
    """Refuse what may come from elsewhere: through a proxy here, or from a page in a browser on this machine."""
    forwarded = [name for name, _ in request.headers if name.lower() in _FORWARDING or _FORWARDED.match(name)]
    if forwarded:
        raise ApiProblem(
            "loopback-only",
            f"a proxy has forwarded this request ({forwarded[0]}), so it may come from anywhere; "
            "make a token first: bucketwire token create <name> --scope ingest",
        )
    host = urlsplit(f"//{request.host}").hostname or ""
    origin = request.headers.get("Origin", "")
    if not is_loopback(host) or (origin and urlsplit(origin).netloc != request.host):
        raise ApiProblem(
            "loopback-only",
            "there is no token yet, so only this machine may call, by 127.0.0.1 or localhost; "
            "make a token for everybody else: bucketwire token create <name> --scope ingest",
        )


def _unauthorized(detail: str) -> ApiProblem:
    return ApiProblem("unauthorized", detail, headers={"WWW-Authenticate": 'Bearer realm="bucketwire"'})
