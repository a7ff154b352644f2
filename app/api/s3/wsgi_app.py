"""Answer S3 requests before Flask sees them: check their signatures, run the operation or refuse it in S3's XML."""

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import sqlalchemy as sa
from werkzeug.wrappers import Request, Response

from app.api.listen.gunicorn_worker import SocketHandedOver
from app.api.listen.streams import Streams
from app.api.s3.errors import S3Error, error_response, request_id
from app.api.s3.operations import BUCKET_CALLS, Handler, Operation, list_buckets, listen
from app.api.s3.signature import ALGORITHM, Received, known_keys, verify
from app.api.services import Services
from app.outbox.engine.database import DatabaseUnavailable, describe_error

log = logging.getLogger("bucketwire.api")
Environ = dict[str, Any]
Wsgi = Callable[[Environ, Any], Iterable[bytes]]

_SIGNED = frozenset({"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "AWSAccessKeyId"})
_SUBRESOURCES = ("notification", "location", "events")
_IGNORED = frozenset({"x-id"})  # SDKs add it to name their own call
_MOST_PARAMETERS = 1000


class Front:
    """Two WSGI applications at one address: one for S3 requests, one for all others."""

    def __init__(self, s3: Wsgi, others: Wsgi) -> None:
        self._s3 = s3
        self._others = others

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Pass the request to the application that it is for."""
        return (self._s3 if is_s3_request(environ) else self._others)(environ, start_response)


def is_s3_request(environ: Environ) -> bool:
    """Return whether this is an S3 request: signed like one, or unsigned for a subresource that only S3 has."""
    if environ.get("HTTP_AUTHORIZATION", "").startswith((ALGORITHM, "AWS ")):
        return True
    query = environ.get("QUERY_STRING", "")
    if not query or environ.get("PATH_INFO", "").startswith("/v1/"):
        return False
    names = {name for name, _ in _pairs(query[:8192], most=None)}
    return bool(names & _SIGNED) or bool(names.intersection(_SUBRESOURCES))


class S3App:
    """The S3 API of one process, as a WSGI application."""

    def __init__(self, parts: Services) -> None:
        self._parts = parts
        self._listening = Streams(parts.database)
        self._keys = known_keys(parts.settings.every_s3_key)

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Answer a request, errors in XML."""
        request = Request(environ)
        number, path = request_id(), request.path
        try:
            response = self._answer(request, number)
        except SocketHandedOver:
            raise
        except S3Error as error:
            response = error_response(error, method=request.method, path=path, number=number)
        except (*DatabaseUnavailable, sa.exc.ProgrammingError) as error:
            log.warning("the outbox database is unavailable: %s", describe_error(error))
            response = error_response(S3Error("ServiceUnavailable"), method=request.method, path=path, number=number)
            response.headers["Retry-After"] = "5"
        except Exception:
            log.exception("unexpected error %s", number)
            response = error_response(S3Error("InternalError"), method=request.method, path=path, number=number)
        response.headers["x-amz-request-id"] = number
        response.headers["x-amz-bucket-region"] = self._parts.settings.region or "us-east-1"
        return response(environ, start_response)

    def _answer(self, request: Request, number: str) -> Response:
        received = request_from(request.environ)
        if not self._keys:
            raise S3Error(
                "AccessDenied", "No S3 key is configured: set BUCKETWIRE_ACCESS_KEY and BUCKETWIRE_SECRET_KEY."
            )
        seal = verify(received, self._keys, region=self._parts.settings.region, now=datetime.now(UTC))
        bucket, _, key = unquote(received.path).removeprefix("/").partition("/")
        call = Operation(
            parts=self._parts,
            streams=self._listening,
            received=received,
            seal=seal,
            bucket=bucket,
            number=number,
            sender=request.remote_addr or "",
            content_length=request.content_length,
            stream=request.stream,
            chunked=request.environ.get("SERVER_PROTOCOL") != "HTTP/1.0",
        )
        scope = "read" if received.method in ("GET", "HEAD") else "admin"
        if scope not in seal.key.scopes and "admin" not in seal.key.scopes:
            raise S3Error("AccessDenied", f"Access Denied. The key {seal.key.name} lacks the scope {scope}.")
        return _find_handler(received, bucket, key)(call)


def _find_handler(received: Received, bucket: str, key: str) -> Handler:
    if key:
        raise S3Error("NotImplemented", "Bucketwire stores no objects: send this request to the storage.")
    if not bucket:
        if received.method != "GET":
            raise S3Error("MethodNotAllowed")
        return list_buckets if received.parameter("events") is None else listen
    names = {name for name, _ in received.query if name not in _IGNORED and not name.lower().startswith("x-amz-")}
    query = next((name for name in _SUBRESOURCES if name in names), "")
    handler = BUCKET_CALLS.get((received.method, query))
    if handler is None or (names and not query):
        raise S3Error("NotImplemented", "Bucketwire supports only a bucket's notification rules and events.")
    return handler


def request_from(environ: Environ) -> Received:
    """Return the request as it was received. Raises `S3Error` for a query with too many parameters."""
    raw = urlsplit(environ.get("RAW_URI") or environ["PATH_INFO"])
    headers = {
        name[5:].replace("_", "-").lower(): _text(value) for name, value in environ.items() if name.startswith("HTTP_")
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = _text(environ[name])
    query = tuple(_pairs(environ.get("QUERY_STRING", ""), most=_MOST_PARAMETERS))
    return Received(environ["REQUEST_METHOD"], raw.path, query, headers)


def _pairs(query: str, *, most: int | None) -> list[tuple[str, str]]:
    try:
        return parse_qsl(query, keep_blank_values=True, errors="replace", max_num_fields=most)
    except ValueError:
        raise S3Error("InvalidArgument", f"A request may have at most {most} parameters.") from None


def _text(value: str) -> str:
    """Decode WSGI's latin-1 text as the UTF-8 that was sent."""
    return value.encode("latin-1", "replace").decode("utf-8", "replace")
