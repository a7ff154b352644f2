"""Keep the console's sessions in sealed cookies, and call the API's routes with the rights of a session.

A session's cookie names a token by its digest, and each request looks both up again. The cookie holds no credential:
neither the token, nor anything that opens the API itself. It is sealed with the keys that seal stored secrets, which
all API processes share and which survive a restart. What a session may do is what its token may do at that moment, so
it ends with the token; the outbox has a row of it until somebody signs out (`app.outbox.tokens`). The cookie has no
`Path`: the browser then uses the folder of the page that sets it, which is the console's, whatever prefix a proxy puts
before it.

The way to an OpenID provider and back is the authorization code flow with PKCE, state and nonce. What a browser carries
from the sign-in page to the provider and back is in a sealed cookie of ten minutes, so any API process can end what
another one has begun.

A call passes through the API's own checks of scopes, values and limits, exactly as a request over the network does:
what the session's token may not do is refused there, not here.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import orjson
from flask import Request, Response, current_app, request
from werkzeug.datastructures import Headers

from app.api import Refused, in_process
from app.api.auth import SESSION, ConsoleSession
from app.api.services import reserve
from app.config.errors import BadValue
from app.config.secrets import Sealer
from app.config.settings import ApiToken, Settings

ADMIN, READ, EVERYBODY = "admin", "read", "*"
_MAX_KEY_CHARACTERS = 200  # characters
_GROUPS = frozenset({"groups", "roles"})  # claims whose values are of no person
_MAX_NAMED = 5  # values
CALLBACK = "openid-callback"  # in the console's folder, whose cookies a page below it would not get


@dataclass(frozen=True, slots=True)
class Begun:
    """What a browser keeps while its person is at the provider."""

    state: str
    nonce: str
    verifier: str
    following: str  # the page to show then


@dataclass(frozen=True, slots=True)
class Person:
    """Who has signed in, and those of the claim's values that the settings name.

    Only issuer and subject together are one person's for ever: two people can have the same `name`, one after the other
    or at once, and choose it themselves.
    """

    issuer: str
    subject: str
    name: str
    values: tuple[str, ...]

    @property
    def key(self) -> str:
        """Return issuer and subject as one text without spaces, of at most 200 characters."""
        key = f"{self.issuer}#{quote(self.subject, safe='@:|~')}"
        return key if len(key) <= _MAX_KEY_CHARACTERS else hashlib.sha256(key.encode()).hexdigest()


def redirect_address(settings: Settings) -> str:
    """Return the address to which the provider leads a browser back, which has to be registered there."""
    return settings.oidc_console_url + CALLBACK


def granted(settings: Settings, claims: Mapping[str, Any]) -> tuple[str, ...]:
    """Return those of the claim's values that give a scope; pure.

    A text is one value, also if it has spaces. An email address counts only if the provider has verified it.
    """
    value = claims.get(settings.oidc_claim)
    if settings.oidc_claim == "email" and claims.get("email_verified") is not True:
        value = None
    values = value if isinstance(value, list) else [value]
    has = {EVERYBODY, *(each for each in values if isinstance(each, str))}
    return tuple(each for each in dict.fromkeys((*settings.oidc_admin, *settings.oidc_read)) if each in has)


def lacking(settings: Settings, claims: Mapping[str, Any]) -> str:
    """Say what somebody lacks who may do nothing; pure.

    Groups are named, so that people know what to ask for. Values of another claim are not: they may be addresses of
    those who may sign in.
    """
    has = "has no value that gives access" if settings.oidc_claim in claims else "is missing"
    named = tuple(dict.fromkeys((*settings.oidc_admin, *settings.oidc_read)))
    if settings.oidc_claim not in _GROUPS:
        return f"the claim {settings.oidc_claim} {has}"
    more = f" or {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
    return f"the claim {settings.oidc_claim} {has}: {' or '.join(named[:_MAX_NAMED])}{more}"


def scopes(settings: Settings, values: Collection[str]) -> frozenset[str]:
    """Return the scopes that these values of the claim give now; pure."""
    if set(values) & set(settings.oidc_admin):
        return frozenset({ADMIN})
    return frozenset({READ}) if set(values) & set(settings.oidc_read) else frozenset()


def identity(settings: Settings, person: Person) -> ApiToken | None:
    """Return what stands in for a token in the calls of a person's session; None if it may do nothing any more."""
    if not settings.oidc_issuer or person.issuer != settings.oidc_issuer:
        return None
    has = scopes(settings, person.values)
    return ApiToken(person.name, has, "", kind="openid", person=person.key) if has else None


COOKIE = "bucketwire_console"
LIFETIME = 12 * 3600  # seconds of a session
_FORM_LIFETIME = LIFETIME  # seconds in which a form can be sent
_NOTICE_LIFETIME = 60  # seconds in which the result of an action is shown
LOCAL = "local"  # the number of every session on a loopback address without tokens: there is nothing to sign in to
FLOW_COOKIE = "bucketwire_console_flow"
_FLOW_LIFETIME = 600  # seconds that a sign-in at the provider may take
_SESSION, _FORM, _NOTICE, _FLOW = "console session", "console form", "console notice", "console flow"
_DIVIDER = ","  # settings name the values, divided by commas
_MAX_SEALED_CHARACTERS = 4096  # characters of a sealed text that is worth unsealing


@dataclass(frozen=True, slots=True)
class Session:
    """A browser's session: a random number, and the digest of its token or the person who has signed in.

    It has neither before the sign-in.
    """

    number: str
    digest: str = ""
    person: Person | None = None

    @property
    def subject(self) -> str:
        """Return the SHA-256 digest of the token or the person, "" before the sign-in."""
        if self.person is None:
            return self.digest
        return hashlib.sha256(self.person.key.encode()).hexdigest()


def new_session(digest: str = "", person: Person | None = None) -> Session:
    """Return a session with a number that nobody can guess."""
    return Session(secrets.token_urlsafe(18), digest, person)


class Seals:
    """What the console gives to a browser and gets back: each for one purpose, for some time, and unforgeable."""

    def __init__(self, sealer: Sealer) -> None:
        self._sealer = sealer

    def read_session(self, request: Request) -> Session | None:
        """Return the session of a request; None without one, or with one that has expired or is not ours."""
        held = self._unseal(_SESSION, request.cookies.get(COOKIE, ""))
        if held is None:
            return None
        values = tuple(filter(None, held.get("values", "").split(_DIVIDER)))
        person = None
        if held.get("issuer"):
            if not held.get("subject"):  # of a version that knew a person by the name
                return None
            person = Person(held["issuer"], held["subject"], held["name"], values)
        return Session(held["number"], held["digest"], person)

    def write_session(self, response: Response, session: Session, *, secure: bool) -> None:
        """Give the browser a session."""
        held = {"number": session.number, "digest": session.digest}
        if session.person is not None:
            values = _DIVIDER.join(session.person.values)
            person = session.person
            held |= {"issuer": person.issuer, "subject": person.subject, "name": person.name, "values": values}
        text = self._seal(_SESSION, LIFETIME, **held)
        response.set_cookie(COOKIE, text, max_age=LIFETIME, path=None, httponly=True, samesite="Strict", secure=secure)

    def read_flow(self, request: Request) -> Begun | None:
        """Return what this browser has begun at the OpenID Connect provider; None without it, or after ten minutes."""
        held = self._unseal(_FLOW, request.cookies.get(FLOW_COOKIE, ""))
        return Begun(held["state"], held["nonce"], held["verifier"], held["following"]) if held else None

    def write_flow(self, response: Response, begun: Begun, *, secure: bool) -> None:
        """Give the browser what it has begun. The cookie is not strict: a page of the provider leads back here."""
        text = self._seal(_FLOW, _FLOW_LIFETIME, **asdict(begun))
        response.set_cookie(
            FLOW_COOKIE, text, max_age=_FLOW_LIFETIME, path=None, httponly=True, samesite="Lax", secure=secure
        )

    def form(self, number: str) -> str:
        """Return the text that a form of this session must send back."""
        return self._seal(_FORM, _FORM_LIFETIME, number=number)

    def is_form_of(self, number: str, text: str) -> bool:
        """Return whether a form was made for this session."""
        held = self._unseal(_FORM, text)
        return held is not None and hmac.compare_digest(held["number"].encode(), number.encode())

    def notice(self, text: str, *, bad: bool = False) -> str:
        """Return the result of an action for the address of the next page: nobody else can write one."""
        return self._seal(_NOTICE, _NOTICE_LIFETIME, text=text[:500], bad="1" if bad else "")

    def read_notice(self, text: str) -> Mapping[str, str] | None:
        """Return `text` and `bad` of a result, for a minute."""
        return self._unseal(_NOTICE, text)

    def _seal(self, purpose: str, lifetime: int, **held: str) -> str:
        content = {"for": purpose, "until": int(time.time()) + lifetime, **held}
        return self._sealer.seal(orjson.dumps(content).decode()).partition(":")[2]

    def _unseal(self, purpose: str, text: str) -> dict[str, str] | None:
        if not text or len(text) > _MAX_SEALED_CHARACTERS:
            return None
        try:
            held = orjson.loads(self._sealer.unseal(f"enc:{text}"))
        except (BadValue, ValueError):  # sealed by nobody, with a key that is gone, or a stored secret
            return None
        if not isinstance(held, dict) or held.get("for") != purpose or held.get("until", 0) < time.time():
            return None
        return held


def forget_session(response: Response) -> None:
    """Take the session from the browser."""
    response.set_cookie(COOKIE, "", max_age=0, path=None, httponly=True, samesite="Strict")


def forget_flow(response: Response) -> None:
    """Take what has been begun at the provider from the browser: it is used once."""
    response.set_cookie(FLOW_COOKIE, "", max_age=0, path=None, httponly=True, samesite="Lax")


def is_same_site(headers: Headers) -> bool:
    """Return whether a form was sent from a page of this console, as far as the browser says.

    Every browser of today sends `Sec-Fetch-Site` (to HTTPS or loopback addresses) and `Origin`, and no page can change
    them. A proxy may have replaced `Host`; then it passes the browser's in `X-Forwarded-Host`.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = headers.get("Origin")
    hosts = {headers.get("Host", ""), headers.get("X-Forwarded-Host", "").partition(",")[0].strip()} - {""}
    try:
        return origin is None or urlsplit(origin).netloc in hosts
    except ValueError:
        return False


def is_secure(request: Request) -> bool:
    """Return whether the browser speaks TLS, to this server or to a proxy before it."""
    forwarded = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip()
    return request.is_secure or forwarded == "https"


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
