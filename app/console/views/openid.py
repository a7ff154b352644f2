"""The way to the OpenID Connect provider and back."""

import hmac
from typing import TYPE_CHECKING

from flask import Response, current_app, request

from app.api.refused import Refused
from app.api.services import services
from app.console.openid import Begun, identity
from app.console.pages import error_page, open_page, seals, show
from app.console.session import forget_flow, is_secure, new_session
from app.console.views.sign_in import begin_session, next_page, sign_in_form

if TYPE_CHECKING:
    from app.console.openid_provider import Provider

_MAX_REASON_CHARACTERS = 300  # characters of what the provider says
_EXTENSION = "bucketwire_openid"


@open_page("/openid")
def openid() -> Response:
    """Lead the browser to the provider."""
    from app.console.openid_provider import ProviderProblem  # noqa: PLC0415 - loaded where it is used

    try:
        address, begun = _provider().begin(next_page())
    except ProviderProblem as problem:
        return _refused(f"{problem}", 503)
    response = Response(status=303, headers={"Location": address})
    seals().write_flow(response, begun, secure=_is_secure())
    return response


@open_page("/openid-callback")
def openid_callback() -> Response:
    """End the sign-in that the provider has answered."""
    found, begun = _provider(), seals().read_flow(request)
    given = request.args.get("state", "")
    if begun is None or not hmac.compare_digest(begun.state.encode(), given.encode()):
        response = _refused("this sign-in was not begun in this browser, or took longer than ten minutes", 400)
    elif "error" in request.args:
        said = " ".join(
            request.args.get(name, "")[:_MAX_REASON_CHARACTERS] for name in ("error", "error_description")
        ).strip()
        response = _refused(f"the provider refused the sign-in: {said}", 403)
    else:
        response = _finish(found, begun)
    forget_flow(response)  # it is used once
    return response


def _finish(found: "Provider", begun: Begun) -> Response:
    from app.console.openid_provider import ProviderProblem  # noqa: PLC0415 - loaded where it is used

    settings = services().settings
    try:
        person, claims = found.finish(begun, request.args.get("code", ""), request.args.get("iss", ""))
    except ProviderProblem as problem:
        return _refused(f"{problem}", 502)
    if identity(settings, person) is None:
        has = "has no value that" if settings.oidc_claim in claims else "is missing, and has no value that"
        detail = (
            f"{person.name} is known to {person.issuer}, but may not use this console: the claim "
            f"{settings.oidc_claim} {has} BUCKETWIRE_OIDC_ADMIN or BUCKETWIRE_OIDC_READ names"
        )
        return error_page(Refused(403, {"title": "No access", "detail": detail}))
    # A page that leads on, and no redirect: after one the browser would not send a strict cookie.
    response = show("signed_in.html", next=begun.following, name=person.name)
    begin_session(response, new_session(person=person), secure=_is_secure())
    return response


def _provider() -> "Provider":
    """Return the provider of this app. Raises `Refused` if the settings name none."""
    from app.console.openid_provider import Provider  # noqa: PLC0415 - loaded where it is used

    settings = services().settings
    if not settings.oidc_issuer:
        raise Refused(404, {"title": "Not found", "detail": "there is no sign-in with OpenID Connect here"})
    found: Provider = current_app.extensions.setdefault(_EXTENSION, Provider(settings))
    return found


def _refused(problem: str, status: int) -> Response:
    return sign_in_form(f"{problem}. Signing in with a token works.", status=status)


def _is_secure() -> bool:
    return is_secure(request) or services().settings.oidc_console_url.startswith("https:")
