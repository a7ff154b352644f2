"""Share among the layers around Flask what is noted of a request, the headers of every answer, and the paths of probes.

What is noted in a request's environment is for those who count requests (`app.api.request_counts`). The headers are
there so that no browser takes an answer for something else, or for another site's. Probes are answered whatever else is
asked, and say whether this API stops soon.
"""

import mmap
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

_REFUSAL, _ROUTE = "bucketwire.refusal", "bucketwire.route"
_REQUEST = "werkzeug.request"  # where Werkzeug's requests are in their environments
# No guess at the kind of the content, and no page of another origin may embed an answer.
PROTECTION: Mapping[str, str] = MappingProxyType(
    {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
)
_HEADERS = tuple(PROTECTION.items())
ALIVE, READY = "/healthz", "/readyz"
# With MinIO's, for `mc ready` and for load balancers that probe a MinIO; and which of ours answers each.
PROBES: Mapping[str, str] = MappingProxyType(
    {
        ALIVE: ALIVE,
        READY: READY,
        "/minio/health/live": ALIVE,
        "/minio/health/ready": READY,
        "/minio/health/cluster": READY,
        "/minio/health/cluster/read": READY,
    }
)


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


def protecting(start_response: Any) -> Any:
    """Return a WSGI server's `start_response` that adds `PROTECTION`, unless an application has added them."""

    def start(status: str, headers: list[tuple[str, str]], *error: Any) -> Any:
        added = [header for header in _HEADERS if header not in headers]
        return start_response(status, headers + added, *error)

    return start


class Stopping:
    """A flag that the API's processes share: the parent allocates it before it forks them, and sets it once."""

    def __init__(self) -> None:
        self._flag: mmap.mmap | None = None

    def share(self) -> None:
        """Allocate the flag, unset; call this before the processes are forked."""
        self._flag = mmap.mmap(-1, 1)

    def begin(self) -> None:
        """Set the flag, for all processes."""
        if self._flag is not None:
            self._flag[0] = 1

    @property
    def begun(self) -> bool:
        """Whether it is set."""
        return self._flag is not None and self._flag[0] == 1


stopping = Stopping()  # of the API that this process belongs to
