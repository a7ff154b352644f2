"""Sessions of the console: a sealed cookie names a token by its digest, and each request looks both up again.

The cookie holds no credential: neither the token, nor anything that opens the API itself. It is sealed with the keys
that seal stored secrets, which all API processes share and which survive a restart. What a session may do is what its
token may do at that moment, so it ends with the token; the outbox has a row of it until somebody signs out
(`app.outbox.sessions`). The cookie has no `Path`: the browser then uses the folder of
the page that sets it, which is the console's, whatever prefix a proxy puts before it.
"""

import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

import orjson
from flask import Request, Response
from werkzeug.datastructures import Headers

from app.config.errors import BadValue
from app.config.secrets import Sealer
from app.console.openid import Begun, Person

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
