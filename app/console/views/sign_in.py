"""Sign in with an API token, and sign out."""

from urllib.parse import urlsplit

from flask import Response, request

from app.api.auth import describe_refusal
from app.api.services import services
from app.api.token_scopes import ADMIN, READ
from app.config.settings import hash_token
from app.console.pages import check_form, open_page, page, redirect, seals, show, visitor
from app.console.session import LIFETIME, Session, forget_session, is_secure, new_session

_MAX_NEXT_CHARACTERS = 2000  # characters


@open_page("/sign-in", "GET", "POST")
def sign_in() -> Response:
    """Ask for a token, and begin a session with it."""
    session = seals().read_session(request)
    if request.method == "GET":
        return _form(session or new_session(), ended=bool(request.args.get("ended")))
    check_form(session.number if session else "")
    text = request.form.get("token", "").strip()
    token = services().tokens.find(text) if text else None
    if session is None or token is None:
        problem = describe_refusal(services().tokens, hash_token(text)) if text else "paste a token"
        return _form(session or new_session(), problem=problem)
    if not {READ, ADMIN} & token.scopes:
        scopes = ", ".join(sorted(token.scopes))
        return _form(
            session, problem=f"the token {token.name} has only the scope {scopes}; the console needs read or admin"
        )
    response = Response(status=303, headers={"Location": f"./{next_page()}"})
    begin_session(response, new_session(token.digest), secure=is_secure(request))
    return response


def begin_session(response: Response, session: Session, *, secure: bool) -> None:
    """Begin a session of somebody who has signed in, and end the one before in this browser.

    Its number is a new one: a form or a cookie from before the sign-in is worth nothing after it.
    """
    _end_session()
    services().sessions.begin(session.number, session.subject, LIFETIME)
    seals().write_session(response, session, secure=secure)


@page("/sign-out", "POST")
def sign_out() -> Response:
    """End the session, also for who has a copy of its cookie."""
    response = redirect("sign-in") if visitor().name else redirect("")
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
