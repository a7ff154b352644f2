"""Speak with the OpenID Connect provider of the settings, and check that it has what a sign-in needs.

Authlib checks its answers. Only an API process in which somebody signs in this way, and the doctor where there is a
provider, import this module: its packages take a while to load.

Everybody who can reach the console causes requests to the provider, by beginning a sign-in; so it is bounded what they
cost the API, whatever the provider does.

In the check nobody signs in, so whether the client, its secret and its redirect address are registered stays unknown.
"""

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import requests
from authlib.common.errors import AuthlibBaseError
from authlib.integrations.requests_client import OAuth2Session
from authlib.oidc.core import CodeIDToken
from joserfc import jwt
from joserfc.errors import InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jws import JWSRegistry
from requests import PreparedRequest, Response

from app import socket_watchdog
from app.cli_common.api_session import StrictAdapter
from app.config.settings import Settings
from app.console.openid_discovery import (
    LEEWAY,
    TIMEOUT,
    USELESS,
    account_prompt,
    answered_at,
    ask,
    describe_clocks,
    describe_wrong_time,
    description_problems,
    discovery_url,
    kind,
    said,
)
from app.console.session import Begun, Person, granted, redirect_address

S = TypeVar("S", bound=requests.Session)
ANSWER_SECONDS = 5.0  # for one answer, from the connection to its last byte
_MAX_ANSWER_BYTES = 1 << 20
_PATIENCE_SECONDS = 2.0  # that somebody waits for the request of another one


class Busy(Exception):
    """Others wait for the provider already."""


class Turns:
    """Lets `running` threads in at a time, and `waiting` others wait shortly for their turn."""

    def __init__(self, running: int, waiting: int) -> None:
        self._running = threading.Semaphore(running)
        self._all = threading.Semaphore(running + waiting)

    @contextmanager
    def take(self) -> Iterator[None]:
        """Run the block in turn. Raises `Busy`."""
        if not self._all.acquire(blocking=False):
            raise Busy
        try:
            if not self._running.acquire(timeout=_PATIENCE_SECONDS):
                raise Busy
            try:
                yield
            finally:
                self._running.release()
        finally:
            self._all.release()


def bound(session: S, seconds: float = ANSWER_SECONDS) -> S:
    """Return the session, in which all answers together take at most so long, and none is large.

    A time limit of requests is that of one read, which a server that sends a byte a second never exceeds.
    """
    adapter = _Adapter(time.monotonic() + seconds)
    for scheme in ("http://", "https://"):
        session.mount(scheme, adapter)
    return session


def without_login() -> requests.Session:
    """Return a session that sends no login; requests would take one from a netrc file of the host."""
    session = requests.Session()
    session.auth = lambda request: request
    return session


class _Adapter(StrictAdapter):
    """Cuts its connections at a time (`time.monotonic()`)."""

    def __init__(self, ends: float) -> None:
        super().__init__(_MAX_ANSWER_BYTES)
        self.ends = ends
        self._expired = False
        self._wires: list[int] = []

    def cut(self) -> None:
        """Cut the connections, because the time is over."""
        self._expired = True
        for wire in self._wires:
            socket_watchdog.shut_down(wire)

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        """Return the pool for a request, whose connections are watched."""
        pool: Any = super().get_connection_with_tls_context(*arguments, **options)
        pool.ConnectionCls = _watched(pool.ConnectionCls, self._watch)
        return pool

    def send(self, request: PreparedRequest, *arguments: Any, **options: Any) -> Response:
        """Send a request and read the answer. Raises `requests.RequestException`."""
        socket_watchdog.add(self)
        try:
            response = super().send(request, *arguments, **options)
        except requests.RequestException as error:
            if self._expired:
                raise requests.ReadTimeout("no answer in time", request=request) from error
            raise
        finally:
            socket_watchdog.remove(self)
            self.close()
            for wire in self._wires:
                os.close(wire)
            self._wires.clear()
        if self._expired:  # the end of the connection was taken for the end of the answer
            raise requests.ReadTimeout("no answer in time", request=request)
        return response

    def _watch(self, descriptor: int) -> None:
        self._wires.append(os.dup(descriptor))  # the connection may be closed, and another one get its number
        if self._expired:
            self.cut()


def _watched(kind: Any, watch: Any) -> Any:
    def new_connection(connection: Any) -> Any:
        wire = kind._new_conn(connection)
        watch(wire.fileno())
        return wire

    return type("Watched", (kind,), {"_new_conn": new_connection})


# Of the provider's algorithms those that sign with a private key.
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")
_FRESH = 600.0  # seconds in which the provider's description and keys are not asked for again
_SEARCHED = 5.0  # seconds after a search for a key that a token names in which there is no other search
_FAILED = 5.0  # seconds in which a provider that could not be reached is not asked again
_UNREACHABLE = (requests.ConnectionError, requests.Timeout)  # which nobody who signs in can bring about
# What the libraries raise for an answer that is not as it should be; an OverflowError is an ArithmeticError.
_INVALID = (JoseError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError)
_MAX_NAME_CHARACTERS = 100  # characters of a name that are shown and recorded


class ProviderProblem(Exception):
    """The provider cannot be reached, or its answer is not valid; the message is for the person who signs in."""


class WrongClock(ProviderProblem):
    """A token of the provider is not valid at the time of this host."""


class Provider:
    """The provider of the settings. Its description and keys are kept for ten minutes.

    Everybody may begin a sign-in, so a provider that does not answer may occupy only a few threads of the API: one asks
    for what is kept and two for a person's token, a few others wait shortly, all others are told at once.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, dict[str, Any]]] = {}
        self._searched_at = -math.inf
        self._failed: dict[str, tuple[float, Exception]] = {}
        self._asking = Turns(running=1, waiting=4)
        self._signing_in = Turns(running=2, waiting=4)

    def begin(self, following: str, *, other_account: bool = False) -> tuple[str, Begun]:
        """Return the address at the provider to which the browser goes, and what it keeps. Raises `ProviderProblem`.

        For another account the provider has to ask who it is, also if it knows the browser already.
        """
        state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
        begun = Begun(state, nonce, verifier, following)
        description = self._describe()
        with self._session() as session:
            address, _ = session.create_authorization_url(
                description["authorization_endpoint"],
                state=begun.state,
                nonce=begun.nonce,
                code_verifier=begun.verifier,
                **({"prompt": account_prompt(description)} if other_account else {}),
            )
        return str(address), begun

    def finish(self, begun: Begun, code: str, issuer: str) -> tuple[Person, Mapping[str, Any]]:
        """Return who has signed in, and the claims about them. Raises `ProviderProblem`.

        `issuer` is what the provider has added to the browser's address (RFC 9207), "" if it did not.
        """
        if issuer and issuer != self._settings.oidc_issuer:
            raise ProviderProblem("another provider has answered; nobody was signed in")
        try:
            with self._signing_in.take():
                claims = self._remembering("token", _UNREACHABLE, lambda: self._claims(begun, code))
        except Busy:
            raise self._busy() from None
        except requests.RequestException as error:
            raise ProviderProblem(
                f"the provider {self._settings.oidc_issuer} does not answer: {kind(error)}"
            ) from error
        except AuthlibBaseError as error:
            raise ProviderProblem(f"the provider refused the sign-in: {said(error.error)}") from error
        except _INVALID as error:
            raise ProviderProblem(f"the provider's answer is not valid: {kind(error)}") from error
        subject = str(claims["sub"])
        name = _printable(str(claims.get("preferred_username") or claims.get("email") or subject))
        return Person(self._settings.oidc_issuer, subject, name, granted(self._settings, claims)), claims

    def _claims(self, begun: Begun, code: str) -> dict[str, Any]:
        description = self._describe()
        now, issued_at = time.time(), None

        def note_time(response: Response) -> Response:
            nonlocal now, issued_at
            now, issued_at = time.time(), answered_at(response.headers)
            return response

        with bound(self._session(), 2 * ANSWER_SECONDS) as session:
            session.register_compliance_hook("access_token_response", note_time)
            answer = session.fetch_token(
                description["token_endpoint"],
                grant_type="authorization_code",
                code=code,
                code_verifier=begun.verifier,
                allow_redirects=False,
            )
            token = self._verified(answer["id_token"])
            options = {
                "iss": {"essential": True, "value": self._settings.oidc_issuer},
                "aud": {"essential": True, "value": self._settings.oidc_client_id},
                "nonce": {"essential": True, "value": begun.nonce},
            }
            expected = {
                "nonce": begun.nonce,
                "client_id": self._settings.oidc_client_id,
                "access_token": answer.get("access_token"),
            }
            if problem := describe_wrong_time(self._settings.oidc_issuer, token.claims, now, issued_at):
                raise WrongClock(problem)
            claims = CodeIDToken(token.claims, token.header, options, expected)
            claims.validate(now=int(now), leeway=LEEWAY)
            found = dict(claims)
            if self._settings.oidc_claim not in found and "userinfo_endpoint" in description:
                about = session.get(description["userinfo_endpoint"], allow_redirects=False)
                about.raise_for_status()
                more = about.json()
                if more["sub"] != found["sub"]:
                    raise ValueError("userinfo is about somebody else")
                found = more | found
        return found

    def _verified(self, text: str) -> Any:
        """Return the token if a key of the provider has signed it; keys that are new are searched for once."""
        registry = JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        try:
            return jwt.decode(text, KeySet.import_key_set(self._keys()), registry=registry)
        except InvalidKeyIdError:
            pass
        return jwt.decode(text, KeySet.import_key_set(self._keys(again=True)), registry=registry)

    def _describe(self) -> dict[str, Any]:
        """Return the provider's description of itself (OpenID Connect Discovery)."""
        issuer = self._settings.oidc_issuer
        try:
            description = self._get(discovery_url(issuer))
        except USELESS as error:
            raise ProviderProblem(f"the provider {issuer} cannot be reached: {kind(error)}") from error
        if problem := next(description_problems(issuer, description), ""):
            raise ProviderProblem(problem)
        return description

    def _keys(self, *, again: bool = False) -> Any:
        url = self._describe()["jwks_uri"]
        with self._lock:
            may_search = again and time.monotonic() - self._searched_at >= _SEARCHED
            if may_search:
                self._searched_at = time.monotonic()
        return self._get(url, 0.0 if may_search else _FRESH)

    def _get(self, url: str, fresh: float = _FRESH) -> dict[str, Any]:
        """Return what is at a URL, not older than `fresh` seconds. Raises as `requests` does, and `ProviderProblem`."""
        if content := self._kept(url, fresh):
            return content
        try:
            with self._asking.take():
                # Who has waited for another one gets what that one got.
                return self._kept(url, fresh) or self._remembering(url, USELESS, lambda: self._ask(url))
        except Busy:
            raise self._busy() from None

    def _kept(self, url: str, fresh: float) -> dict[str, Any]:
        with self._lock:
            at, content = self._known.get(url, (0.0, {}))
        return content if time.monotonic() - at < fresh else {}

    def _ask(self, url: str) -> dict[str, Any]:
        with bound(without_login()) as session:
            content, _ = ask(session, url)
        with self._lock:
            self._known[url] = (time.monotonic(), content)
        return content

    def _remembering(
        self, what: str, failures: tuple[type[Exception], ...], ask: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Return what `ask` does; after one of these failures the provider is not asked for this for some seconds."""
        with self._lock:
            at, failure = self._failed.get(what, (0.0, None))
        if failure is not None and time.monotonic() - at < _FAILED:
            raise failure.with_traceback(None)
        try:
            return ask()
        except failures as error:
            with self._lock:
                self._failed[what] = (time.monotonic(), error)
            raise

    def _busy(self) -> ProviderProblem:
        issuer = self._settings.oidc_issuer
        return ProviderProblem(f"the provider {issuer} has not answered others yet; try again in some seconds")

    def _session(self) -> Any:
        settings = self._settings
        return OAuth2Session(
            client_id=settings.oidc_client_id,
            client_secret=settings.oidc_client_secret or None,
            scope=settings.oidc_scope,
            redirect_uri=redirect_address(settings),
            code_challenge_method="S256",
            default_timeout=TIMEOUT,
        )


def _printable(name: str) -> str:
    return "".join(character for character in name if character.isprintable())[:_MAX_NAME_CHARACTERS] or "unnamed"


_SECONDS = 3.0  # for both answers
_KEY_TYPES = frozenset({"RSA", "EC", "OKP"})


def problems(settings: Settings) -> Iterator[str]:
    """Yield what keeps people from signing in with the provider, as far as it can be asked; nothing if all is well."""
    issuer = settings.oidc_issuer
    with bound(without_login(), _SECONDS) as session:
        try:
            description, answer = ask(session, discovery_url(issuer), _SECONDS)
        except USELESS as error:
            yield f"the provider {issuer} cannot be reached: {_describe(error, 'BUCKETWIRE_OIDC_ISSUER')}"
            return
        if clocks := describe_clocks(issuer, time.time(), answered_at(answer.headers)):
            yield clocks
        found = list(description_problems(issuer, description))
        yield from found or _algorithm_problems(issuer, description)
        if found:
            return
        try:
            keys, _ = ask(session, description["jwks_uri"], _SECONDS)
        except USELESS as error:
            yield f"the keys of the provider {issuer} cannot be read: {_describe(error, 'its jwks_uri')}"
            return
    yield from key_problems(issuer, keys)


def _algorithm_problems(issuer: str, description: Mapping[str, Any]) -> Iterator[str]:
    signs = description.get("id_token_signing_alg_values_supported")
    if isinstance(signs, list) and not set(ALGORITHMS) & {each for each in signs if isinstance(each, str)}:
        yield f"the provider {issuer} signs id tokens by no algorithm with a public key: let it use RS256 or ES256"


def key_problems(issuer: str, content: Mapping[str, Any]) -> Iterator[str]:
    """Yield why these keys of a provider cannot verify an id token; pure."""
    mend = "let the provider have a key that signs with RS256 or ES256"
    try:
        keys = KeySet.import_key_set(content)  # type: ignore[arg-type]  # it is checked here
    except (JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
        yield f"the keys of the provider {issuer} are not valid: {kind(error)}; {mend}"
        return
    if not any(key.key_type in _KEY_TYPES and key.as_dict().get("use", "sig") == "sig" for key in keys):
        yield f"the provider {issuer} has no key that verifies an id token: {mend}"


def _describe(error: Exception, setting: str) -> str:
    match error:
        case requests.exceptions.SSLError():
            mend = "set REQUESTS_CA_BUNDLE to the file of the authority that signed its certificate"
        case requests.HTTPError(response=requests.Response(status_code=status)):
            return f"it answers {status}; compare {setting} with what the provider shows"
        case requests.RequestException():
            mend = "look at its name, at the proxy and at firewalls from the API's host"
        case _:
            return f"its answer is no JSON object; compare {setting} with what the provider shows"
    return f"{kind(error)}; {mend}"
