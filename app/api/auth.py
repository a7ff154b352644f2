"""Authenticate requests: find out whose token a request presents, and check its scope before a route is called.

Until the first token is created the API needs none, but only for requests from this machine: it must listen on a
loopback address, be called by one, and not through a proxy. From then on the API always needs a token, even after the
last one has been revoked.

The console calls the routes for a browser: its session stands in for the token in the header. A command on the
service's own database runs routes with every right, as the operating system's user: what it could not do by a route, it
could by the database. For metrics, `mc admin prometheus generate` writes bearer tokens into a configuration for
Prometheus: JWTs of a hundred years that it signs by itself with the secret key of its alias (HS512). They end with the
key.

A route declares the scope that it needs: ingest, read or admin, which includes the others. A token may also be limited
to buckets and targets.
"""

import base64
import hmac
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import orjson
from flask import Flask, Request, current_app, g, request

from app.api.errors import ApiProblem
from app.api.services import services
from app.config.arn import TargetId
from app.config.networks import is_loopback
from app.config.settings import ApiToken, S3Key, hash_token
from app.events.buckets import is_fixed
from app.outbox import audit
from app.outbox.engine.database import DatabaseUnavailable
from app.outbox.errors import TokensUnknown

if TYPE_CHECKING:
    from app.outbox.tokens import Sessions, Tokens


# In the environment of a call within the process: a `ConsoleSession`, or the `audit.Actor` of a command. No client can
# set a name of the environment that does not begin with HTTP_.
SESSION, COMMAND = "bucketwire.session", "bucketwire.command"
# Headers by which proxies and content delivery networks name the client or themselves.
_FORWARDED = re.compile(r"x-(?:original-)?forwarded(?:-|$)", re.IGNORECASE)
_FORWARDING = frozenset(
    {
        "forwarded", "via", "x-real-ip", "x-client-ip", "x-cluster-client-ip", "x-original-host", "x-original-url",
        "x-envoy-external-address", "x-envoy-original-path", "x-proxyuser-ip", "x-azure-clientip", "client-ip",
        "true-client-ip", "fastly-client-ip", "cf-connecting-ip", "cdn-loop",
    }
)  # fmt: skip

_DOTS = 2  # of a JWT
_SIGNED = "AWS4-HMAC-SHA256"
_UNSIGNED_ONLY = (
    "this request is signed for AWS, and no such signature is verified here: send it unsigned (boto3: "
    "Config(signature_version=botocore.UNSIGNED)), with a token of the scope ingest in the header Authorization "
    "(Bearer <token>), or in the endpoint's URL: /v1/events?token=<token>"
)
_NOT_IN_A_URL = "and addresses are kept in logs: put one into the URL that has this scope alone"
METRICS = "/metrics"
# Of the paths that `mc` writes those with metrics of notifications, which are all that there are here.
MC_METRICS: Mapping[str, str] = MappingProxyType(
    {
        "/minio/v2/metrics/cluster": METRICS,
        "/minio/metrics/v3": METRICS,
        "/minio/metrics/v3/notification": METRICS,
    }
)
_ISSUER = "prometheus"
F = TypeVar("F", bound=Callable[..., object])
PUBLIC = "anyone"  # for probes, which have no token; reveals nothing about the events
VISITOR = "visitor"  # of a page of the console, which checks its session itself and then calls routes that have a scope
INGEST, READ, ADMIN = "ingest", "read", "admin"
_SCOPE, _LIMITED = "needed_scope", "checks_limits"


@dataclass(frozen=True, slots=True)
class ConsoleSession:
    """What stands in for the token of a call that the console makes; nothing for a visitor who has not signed in.

    A session has the digest of its token, or the `identity` of a person.
    """

    number: str = ""
    digest: str = ""
    identity: ApiToken | None = None


@dataclass(frozen=True, slots=True)
class TokenWatch:
    """Says, in any thread, whether a request's token is still valid; those of requests with the same token are equal.

    A route that answers for long asks it from time to time. After the end of a session it says no to the calls that the
    console makes with the session's token. While neither can be read, it says yes.
    """

    tokens: "Tokens"
    sessions: "Sessions"
    digest: str | None  # None: the request needed no token; "": a person has signed in without one
    session: str = ""  # its number

    def __call__(self) -> bool:
        """Return whether the token is valid."""
        try:
            if self.digest is None:
                return not self.tokens.required()
            if self.digest and self.tokens.find_digest(self.digest) is None:
                return False
            return not self.session or self.sessions.is_active(self.session)
        except (TokensUnknown, *DatabaseUnavailable):
            return True


def watch_token() -> TokenWatch:
    """Return a watch on the token of this request."""
    token: ApiToken | None = g.token
    session: ConsoleSession = request.environ.get(SESSION, ConsoleSession())
    opened, digest = services(), None if token is None else token.digest
    return TokenWatch(opened.tokens, opened.sessions, digest, session.number if token is not None else "")


def authenticate(request: Request, *, posts_events: bool = False) -> ApiToken | None:
    """Return the token of the request, or of the console's session; None if none is needed.

    A command needs none, nor does anybody before the first one exists. A request that posts events may have its token
    in other places than `Authorization`, and one for the metrics may have a token that `mc` has signed. Raises
    `ApiProblem` for a request that has no valid one; `TokensUnknown` if the tokens cannot be read.
    """
    if COMMAND in request.environ:
        return None
    opened = services()
    tokens = opened.tokens
    session: ConsoleSession | None = request.environ.get(SESSION)
    in_url = False
    if session is None:
        authorization = request.headers.get("Authorization", "")
        if authorization.startswith(_SIGNED):
            raise _unauthorized(_UNSIGNED_ONLY, "signed-for-aws")
        presented = presented_token(authorization)
        if posts_events and not authorization:
            presented = request.headers.get("X-Amz-Firehose-Access-Key", "")
            if not presented and request.environ.get("QUERY_STRING"):
                presented = request.args.get("token", "")
                in_url = bool(presented)
        digest, identity = hash_token(presented) if presented else "", None
        if presented.count(".") == _DOTS and request.path == METRICS:
            identity = identify_mc(presented, opened.settings.every_s3_key, time.time())
    else:
        digest, identity = session.digest, session.identity
    token = identity or (tokens.find_digest(digest) if digest else None)
    if token is None:
        if opened.loopback and not tokens.required():
            _check_local(request)  # also if it presents a token, configured before the first one existed
            return None
        raise refuse_token(tokens, digest)
    if in_url and token.scopes != {"ingest"}:
        detail = f"the token {token.name!r} has more scopes than ingest, {_NOT_IN_A_URL}"
        raise ApiProblem("forbidden", detail, reason="token-in-url", actor=token.actor)
    return token


def refuse_token(tokens: "Tokens", digest: str) -> ApiProblem:
    """Return the problem of a token with this SHA-256, which is not valid, or of none ("")."""
    if digest and (former := tokens.find_former(digest)) is not None:
        did, reason = ("was revoked", "token-revoked") if former.is_revoked else ("has expired", "token-expired")
        detail = f"this token {did}; create another one: `bucketwire token create`"
        fact = f" at {datetime.fromtimestamp(former.since / 1000, UTC):%Y-%m-%d %H:%M} UTC"
        return _unauthorized(detail, reason, f"token:{former.name}", fact)
    reason = "token-unknown" if digest else "token-missing"
    if tokens.any():
        detail = "this token is not valid; `bucketwire token ls` lists them by name"
        return _unauthorized(detail if digest else "send a token: Authorization: Bearer <token>", reason)
    state = "every token was revoked, and the API requires one" if tokens.required() else "there is no token yet"
    return _unauthorized(f"{state}; create one: bucketwire token create <name> --scope ingest", reason)


def presented_token(authorization: str) -> str:
    """Return the token in an `Authorization` header, "" for none.

    It may be a bearer token, the password of basic authentication (Ceph's push endpoints can only carry user
    information in their URL), or the token alone: these are the forms in which known senders pass on a token.
    """
    scheme, _, rest = authorization.strip().partition(" ")
    if scheme.lower() == "bearer":
        return rest.strip()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(rest.strip(), validate=True).decode().partition(":")[2]
        except ValueError:  # neither base64, nor ASCII, nor UTF-8
            return ""
    return scheme if not rest else ""


def is_signed_for(service: str, environ: Mapping[str, Any]) -> bool:
    """Return whether a request has a signature of AWS for this service in its header, valid or not."""
    authorization: str = environ.get("HTTP_AUTHORIZATION", "")
    return authorization.startswith(_SIGNED) and f"/{service}/aws4_request" in authorization


def _check_local(request: Request) -> None:
    """Refuse requests that may come from elsewhere: through a proxy here, or from a web page on this machine."""
    forwarded = _forwarding_header(tuple([name for name in request.environ if name.startswith("HTTP_")]))
    if forwarded:
        raise ApiProblem(
            "loopback-only",
            f"a proxy has forwarded this request ({forwarded}), so it may come from anywhere; "
            "create a token first: bucketwire token create <name> --scope ingest",
        )
    if not _is_local(request.host, request.headers.get("Origin", "")):
        raise ApiProblem(
            "loopback-only",
            "there is no token yet, so only this machine may call, by 127.0.0.1 or localhost; "
            "create a token for other callers: bucketwire token create <name> --scope ingest",
        )


# A sender's requests all have the same headers, so the answers are remembered.
@lru_cache(maxsize=256)
def _forwarding_header(names: tuple[str, ...]) -> str:
    """Return the first of the WSGI names that is of a header added by proxies, as the header's name; "" for none."""
    headers = [name.removeprefix("HTTP_").replace("_", "-").title() for name in names]
    return next((name for name in headers if name.lower() in _FORWARDING or _FORWARDED.match(name)), "")


@lru_cache(maxsize=256)
def _is_local(host: str, origin: str) -> bool:
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "") and (not origin or urlsplit(origin).netloc == host)
    except ValueError:  # no address is written like that
        return False


def _unauthorized(detail: str, reason: str, actor: str = "", fact: str = "") -> ApiProblem:
    headers = {"WWW-Authenticate": 'Bearer realm="bucketwire"'}
    return ApiProblem("unauthorized", detail, headers=headers, reason=reason, actor=actor, fact=fact)


def identify_mc(token: str, keys: Iterable[S3Key], now: float) -> ApiToken | None:
    """Return what a token allows, which is what the S3 key does that has signed it; None if none of the keys has.

    `now` is in seconds since 1970.
    """
    signed, _, signature = token.rpartition(".")
    _, _, content = signed.partition(".")
    try:
        claims, given = orjson.loads(_decoded(content)), _decoded(signature)
    except ValueError:
        return None
    if not isinstance(claims, dict) or claims.get("iss") != _ISSUER:
        return None
    key = next((key for key in keys if key.access_key == claims.get("sub")), None)
    if key is None or not hmac.compare_digest(hmac.digest(key.secret_key.encode(), signed.encode(), "sha512"), given):
        return None
    expires = claims.get("exp")
    if not isinstance(expires, int | float) or not now < expires < math.inf:
        return None
    return ApiToken(key.name, key.scopes, "", kind="key")


def _decoded(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


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
