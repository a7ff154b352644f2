"""What the S3 API and MinIO's admin API share: each request is signed, and each error is one of the codes."""

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, ClassVar
from urllib.parse import parse_qsl, urlsplit

import sqlalchemy as sa
from werkzeug.wrappers import Request, Response

from app.api.errors import ClientGone, database_unavailable
from app.api.listen.streams import SocketHandedOver
from app.api.request_marks import Refusal, set_refusal, set_route
from app.api.s3.errors import S3Error, request_id
from app.api.s3.signature import Received, Seal, known_keys, verify
from app.api.services import Services
from app.outbox import audit
from app.outbox.engine.database import DatabaseUnavailable

log = logging.getLogger("bucketwire.api")
Environ = dict[str, Any]
Wsgi = Callable[[Environ, Any], Iterable[bytes]]

_MAX_PARAMETERS = 1000


class SignedApp:
    """A WSGI application for signed requests; a subclass answers them and writes errors in its own format.

    `route` is what requests are counted as for which `answer` has named no other one.
    """

    route: ClassVar[str]

    def __init__(self, parts: Services) -> None:
        self._parts = parts
        self._keys = known_keys(parts.settings.every_s3_key)

    def answer(self, request: Request, received: Received, number: str) -> Response:
        """Return the response to a request, whose signature is not verified yet. Raises `S3Error`."""
        raise NotImplementedError

    def refuse(self, error: S3Error, request: Request, number: str) -> Response:
        """Return the response for an error."""
        raise NotImplementedError

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Answer a request, also one that fails."""
        request, number = Request(environ), request_id()
        set_route(environ, self.route)
        try:
            response = self.answer(request, request_from(environ), number)
        except SocketHandedOver:
            raise
        except S3Error as error:
            response = self._refuse(error, request, number)
        except ClientGone:
            response = self._refuse(S3Error("IncompleteBody", reason="client-gone"), request, number)
        except (*DatabaseUnavailable, sa.exc.ProgrammingError) as error:
            database_unavailable(error)
            response = self._refuse(S3Error("ServiceUnavailable"), request, number)
            response.headers["Retry-After"] = "5"
        except Exception:
            log.exception("unexpected error %s", number)
            response = self._refuse(S3Error("InternalError"), request, number)
        response.headers["x-amz-request-id"] = number
        response.headers["x-amz-bucket-region"] = self._parts.settings.region or "us-east-1"
        return response(environ, start_response)

    def _refuse(self, error: S3Error, request: Request, number: str) -> Response:
        if error.reason:
            set_refusal(request.environ, Refusal(error.reason, error.actor, error.fact))
        return self.refuse(error, request, number)

    def authenticate(self, received: Received, *, scope: str, region: str) -> Seal:
        """Verify the signature, for `region` if there is one, and the key's scope. Raises `S3Error`."""
        if not self._keys:
            raise S3Error(
                "AccessDenied", "No S3 key is configured: set BUCKETWIRE_ACCESS_KEY and BUCKETWIRE_SECRET_KEY."
            )
        seal = verify(received, self._keys, region=region, now=datetime.now(UTC))
        if scope not in seal.key.scopes and "admin" not in seal.key.scopes:
            message = f"Access Denied. The key {seal.key.name} lacks the scope {scope}."
            raise S3Error("AccessDenied", message, reason="scope", actor=seal.key.actor, fact=scope)
        return seal


def actor_of(seal: Seal, request: Request, via: str) -> audit.Actor:
    """Return who acts by a signed request, for the audit log; `via` must not contain the query, which may be signed."""
    return audit.Actor(seal.key.actor, request.remote_addr or "", via)


def request_from(environ: Environ) -> Received:
    """Return the request as it was received. Raises `S3Error` for one with too many parameters, or no valid path."""
    try:
        raw = urlsplit(environ.get("RAW_URI") or environ["PATH_INFO"])
    except ValueError:
        raise S3Error("InvalidArgument", "The path is not valid.") from None
    headers = {
        name[5:].replace("_", "-").lower(): _text(value) for name, value in environ.items() if name.startswith("HTTP_")
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = _text(environ[name])
    query = tuple(parse_query_pairs(environ.get("QUERY_STRING", ""), most=_MAX_PARAMETERS))
    return Received(environ["REQUEST_METHOD"], raw.path, query, headers)


def parse_query_pairs(query: str, *, most: int | None) -> list[tuple[str, str]]:
    """Return the decoded parameters of a query. Raises `S3Error` for more than `most`."""
    try:
        return parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=most)
    except ValueError:
        raise S3Error("InvalidArgument", f"A request may have at most {most} parameters.") from None


def _text(value: str) -> str:
    """Decode WSGI's latin-1 text as the UTF-8 that was sent."""
    return value.encode("latin-1", "replace").decode("utf-8", "replace")
