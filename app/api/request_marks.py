"""What is noted in a request's environment for those who count requests (`app.api.request_counts`)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

_REFUSAL, _ROUTE = "bucketwire.refusal", "bucketwire.route"
_REQUEST = "werkzeug.request"  # where Werkzeug's requests are in their environments


class Refusal(NamedTuple):
    """Why a request is refused (`app.resources.refusal`), whose it is, and a fact; "" for what is not known."""

    reason: str
    actor: str = ""
    fact: str = ""


def set_refusal(environ: dict[str, Any], refusal: Refusal) -> None:
    """Have a request, which is answered with an error, counted as refused."""
    environ[_REFUSAL] = refusal


def refusal_of(environ: Mapping[str, Any]) -> Refusal | None:
    """Return why a request is refused; None if it is not."""
    return environ.get(_REFUSAL)


def set_route(environ: dict[str, Any], route: str) -> None:
    """Name the route of a request that Flask does not get, as method and template of the path."""
    environ[_ROUTE] = route


def route_of(environ: Mapping[str, Any]) -> tuple[str, str]:
    """Return the method, "" if the route has it, and the route of a request that is answered; two "" for no route."""
    route: str | None = environ.get(_ROUTE)
    if route is not None:
        return "", route
    rule = getattr(environ.get(_REQUEST), "url_rule", None)
    return ("", "") if rule is None else (environ["REQUEST_METHOD"], rule.rule)
