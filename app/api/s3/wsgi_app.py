"""Answer S3 requests before Flask sees them: check their signatures, run the operation or refuse it in S3's XML."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from werkzeug.wrappers import Request, Response

from app.api.auth import is_signed_for
from app.api.listen.streams import Streams
from app.api.mc_bearer import MC_METRICS
from app.api.probes import PROBES
from app.api.request_marks import set_route
from app.api.s3.errors import S3Error, error_response
from app.api.s3.operations import BUCKET_CALLS, Handler, Operation, list_buckets, listen
from app.api.s3.signature import ALGORITHM, Received
from app.api.s3.signed_app import Environ, SignedApp, Wsgi, actor_of, parse_query_pairs
from app.api.services import Services
from app.outbox import audit
from app.resources.refusal import S3_ROUTE

_SIGNED = frozenset({"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Signature", "AWSAccessKeyId"})
_SUBRESOURCES = ("notification", "location", "events")
_SIGNED_SUBRESOURCES = (*_SUBRESOURCES, "policy")
_CONSOLE = "/console"
_IGNORED = frozenset({"x-id"})  # SDKs add it to name their own call
# What MinIO itself keeps below its reserved bucket: signed like S3 requests, and answered in JSON.
_ADMIN = ("/minio/admin/", "/minio/kms/")


class Front:
    """Three WSGI applications at one address: for S3 requests, for MinIO's admin API, and for all others."""

    def __init__(self, s3: Wsgi, admin: Wsgi, others: Wsgi) -> None:
        self._s3 = s3
        self._admin = admin
        self._others = others

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        """Pass the request to the application that it is for."""
        asked = environ.get("PATH_INFO", "")
        ours = PROBES.get(asked) or MC_METRICS.get(asked)
        if ours:
            environ = environ | {"PATH_INFO": ours}
        return self._application(environ)(environ, start_response)

    def _application(self, environ: Environ) -> Wsgi:
        if environ.get("PATH_INFO", "").startswith(_ADMIN):
            return self._admin
        return self._s3 if is_s3_request(environ) else self._others


def is_s3_request(environ: Environ) -> bool:
    """Return whether this is an S3 request: signed like one, or unsigned for a subresource that only S3 has.

    An unsigned one for `/console` is for the console; a signed one is for the bucket of that name. One that is signed
    for SNS publishes a message.
    """
    if is_signed_for("sns", environ):
        return False
    if environ.get("HTTP_AUTHORIZATION", "").startswith((ALGORITHM, "AWS ")):
        return True
    query, path = environ.get("QUERY_STRING", ""), environ.get("PATH_INFO", "")
    if not query or path.startswith("/v1/"):
        return False
    names = {name for name, _ in parse_query_pairs(query[:8192], most=None)}
    if names & _SIGNED:
        return True
    return not (path == _CONSOLE or path.startswith(f"{_CONSOLE}/")) and bool(names.intersection(_SUBRESOURCES))


class S3App(SignedApp):
    """The S3 API of one process, as a WSGI application."""

    route = S3_ROUTE

    def __init__(self, parts: Services, streams: Streams) -> None:
        super().__init__(parts)
        self._listening = streams

    def answer(self, request: Request, received: Received, number: str) -> Response:
        """Verify the signature and run the operation."""
        scope = "read" if received.method in ("GET", "HEAD") else "admin"
        seal = self.authenticate(received, scope=scope, region=self._parts.settings.region)
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
        subresource, handler = _find_handler(received, bucket, key)
        via = f"{received.method} /<bucket>" + (f"?{subresource}" if subresource else "")
        set_route(request.environ, via)
        with audit.acting(actor_of(seal, request, via)):
            return handler(call)

    def refuse(self, error: S3Error, request: Request, number: str) -> Response:
        """Write the error in S3's XML."""
        return error_response(error, method=request.method, path=request.path, number=number)


def _find_handler(received: Received, bucket: str, key: str) -> tuple[str, Handler]:
    """Return the subresource, "" for the bucket itself, and what answers the request. Raises `S3Error`."""
    if key:
        raise S3Error("NotImplemented", "Bucketwire stores no objects: send this request to the storage.")
    if not bucket:
        if received.method != "GET":
            raise S3Error("MethodNotAllowed")
        return ("", list_buckets) if received.parameter("events") is None else ("events", listen)
    names = {name for name, _ in received.query if name not in _IGNORED and not name.lower().startswith("x-amz-")}
    query = next((name for name in _SIGNED_SUBRESOURCES if name in names), "")
    handler = BUCKET_CALLS.get((received.method, query))
    if handler is None or (names and not query):
        raise S3Error("NotImplemented", "Bucketwire supports only a bucket's notification rules and events.")
    return query, handler
