"""Sign in with an API token, or by the OpenID Connect provider and back, and sign out.

Who has signed in is in the log and the audit log, and so is a sign-in that was refused, with its reason.
"""

import hmac
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from flask import Response, current_app, g, request

from app.api import Refused
from app.api.auth import ADMIN, READ, acting, refuse_token
from app.api.services import services
from app.api.wsgi_layers import Refusal, set_refusal
from app.config.settings import ApiToken, hash_token
from app.console.pages import check_form, open_page, page, redirect, seals, show, visitor
from app.console.session import (
    LIFETIME,
    Begun,
    Session,
    forget_flow,
    forget_session,
    identity,
    is_secure,
    lacking,
    new_session,
)
from app.logs import clause, printable

log = logging.getLogger("bucketwire.api")

_MAX_NEXT_CHARACTERS = 2000  # characters


@open_page("/sign-in", "GET", "POST")
def sign_in() -> Response:
    """Ask for a token, and begin a session with it."""
    session = seals().read_session(request)
    if request.method != "POST":
        return _form(session or new_session(), ended=bool(request.args.get("ended")))
    check_form(session.number if session else "")
    text = request.form.get("token", "").strip()
    token = services().tokens.find(text) if text else None
    if session is None or token is None:
        problem = refuse_token(services().tokens, hash_token(text) if text else "")
        set_refusal(request.environ, Refusal(problem.reason, problem.actor, problem.fact))
        return _form(session or new_session(), problem=problem.detail if text else "paste a token")
    if not {READ, ADMIN} & token.scopes:
        set_refusal(request.environ, Refusal("scope", token.actor, READ))
        scopes = ", ".join(sorted(token.scopes))
        return _form(
            session, problem=f"the token {token.name} has only the scope {scopes}; the console needs read or admin"
        )
    response = Response(status=303, headers={"Location": f"./{next_page()}"})
    begin_session(response, new_session(token.digest), token, secure=is_secure(request))
    return response


def begin_session(response: Response, session: Session, who: ApiToken, *, secure: bool) -> None:
    """Begin a session of somebody who has signed in, and end the one before in this browser.

    Its number is a new one: a form or a cookie from before the sign-in is worth nothing after it.
    """
    with acting(who):
        _end_session()
        services().sessions.begin(session.number, session.subject, LIFETIME)
    seals().write_session(response, session, secure=secure)
    actor, address = printable(who.actor), request.remote_addr or "an unknown address"
    log.info("%s has signed in to the console from %s", actor, address, extra={"actor": actor, "address": address})


@page("/sign-out", "POST")
def sign_out() -> Response:
    """End the session, also for who has a copy of its cookie."""
    response = redirect("sign-in") if visitor().name else redirect("")
    with acting(g.token):
        _end_session()
    forget_session(response)
    return response


def _end_session() -> None:
    held = seals().read_session(request)
    if held is not None and held.subject:
        services().sessions.end(held.number)


def sign_in_form(problem: str, status: int) -> Response:
    """Return the page with a problem of another way to sign in."""
    return _form(seals().read_session(request) or new_session(), problem=problem, status=status)


def _form(session: Session, *, problem: str = "", ended: bool = False, status: int = 0) -> Response:
    status = status or (401 if problem else 200)
    response = show(
        "sign_in.html",
        status,
        form_of=seals().form(session.number),
        problem=problem,
        ended=ended,
        next=next_page(),
        issuer=urlsplit(services().settings.oidc_issuer).netloc,
    )
    if not seals().read_session(request):
        seals().write_session(response, session, secure=is_secure(request))
    return response


def next_page() -> str:
    """Return the page that was asked for. After `./` it can only be one below the console."""
    asked = request.values.get("next", "")[:_MAX_NEXT_CHARACTERS]
    return "".join(character for character in asked if character.isascii() and character.isprintable()).lstrip("/\\")


if TYPE_CHECKING:
    from app.console.openid_provider import Provider

_MAX_REASON_CHARACTERS = 300  # characters of what the request says
_EXTENSION = "bucketwire_openid"


@open_page("/openid")
def openid() -> Response:
    """Lead the browser to the provider, which asks for another account if the link says so."""
    from app.console.openid_provider import ProviderProblem  # noqa: PLC0415 - loaded where it is used

    try:
        address, begun = _provider().begin(next_page(), other_account="other" in request.args)
    except ProviderProblem as problem:
        return _refused(f"{problem}", 503, "openid-unavailable", f": {problem}")
    response = Response(status=303, headers={"Location": address})
    seals().write_flow(response, begun, secure=_is_secure())
    return response


@open_page("/openid-callback")
def openid_callback() -> Response:
    """End the sign-in that the provider has answered."""
    found, begun = _provider(), seals().read_flow(request)
    given = request.args.get("state", "")
    if begun is None or not hmac.compare_digest(begun.state.encode(), given.encode()):
        problem = "this sign-in was not begun in this browser, or took longer than ten minutes"
        response = _refused(problem, 400, "openid-state")
    elif "error" in request.args:
        # Whoever leads a browser here can write them, so they are not the provider's.
        words = (request.args.get(name, "")[:_MAX_REASON_CHARACTERS] for name in ("error", "error_description"))
        said = clause(" ".join(words)) or "it does not say why"
        response = _refused(
            f"the provider refused the sign-in, says the address of this page: {said}",
            403,
            "openid-refused",
            f": {said}",
        )
    else:
        response = _finish(found, begun)
    forget_flow(response)  # it is used once
    return response


def _finish(found: "Provider", begun: Begun) -> Response:
    from app.console.openid_provider import ProviderProblem, WrongClock  # noqa: PLC0415 - loaded where it is used

    settings = services().settings
    try:
        person, claims = found.finish(begun, request.args.get("code", ""), request.args.get("iss", ""))
    except ProviderProblem as problem:
        reason = "openid-clock" if isinstance(problem, WrongClock) else "openid-failed"
        return _refused(f"{problem}", 502, reason, f": {problem}")
    who = identity(settings, person)
    if who is None:
        unknown = ApiToken(person.name, frozenset(), "", kind="openid", person=person.key)
        set_refusal(request.environ, Refusal("openid-claim", unknown.actor))
        return show("no_access.html", 403, person=person, lacking=lacking(settings, claims), next=begun.following)
    # A page that leads on, and no redirect: after one the browser would not send a strict cookie.
    response = show("signed_in.html", next=begun.following, name=person.name)
    begin_session(response, new_session(person=person), who, secure=_is_secure())
    return response


def _provider() -> "Provider":
    """Return the provider of this app. Raises `Refused` if the settings name none."""
    from app.console.openid_provider import Provider  # noqa: PLC0415 - loaded where it is used

    settings = services().settings
    if not settings.oidc_issuer:
        raise Refused(404, {"title": "Not found", "detail": "there is no sign-in with OpenID Connect here"})
    found: Provider = current_app.extensions.setdefault(_EXTENSION, Provider(settings))
    return found


def _refused(problem: str, status: int, reason: str, fact: str = "") -> Response:
    set_refusal(request.environ, Refusal(reason, fact=fact))
    return sign_in_form(f"{problem}. Signing in with a token works.", status=status)


def _is_secure() -> bool:
    return is_secure(request) or services().settings.oidc_console_url.startswith("https:")
