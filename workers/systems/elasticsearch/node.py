"""What the published client lacks for a target: proxies, servers that are not Elastic's, answers that are not JSON.

All are extension points of the client, on the level below it (`elastic_transport`).
"""

import logging
import secrets
from http.client import HTTPException
from typing import Any

from elastic_transport import ConnectionError as ElasticConnectionError
from elastic_transport import (
    ConnectionTimeout,
    HttpHeaders,
    NodeConfig,
    OrjsonSerializer,
    SerializationError,
    Transport,
    TransportApiResponse,
    TransportError,
    Urllib3HttpNode,
)
from urllib3.exceptions import ReadTimeoutError

from app.config.tls import context as tls_context
from workers.targets.http_pool import http_pool
from workers.targets.socket_deadline import Deadline

# Elasticsearch and OpenSearch repeat it in each answer, and have it in their slow logs and lists of tasks.
_REQUEST_ID = "x-opaque-id"

# A target does not log: its outcomes say what happened.
logging.getLogger("elastic_transport").setLevel(logging.CRITICAL)


class HttpNode(Urllib3HttpNode):
    """One node, with one connection, through the proxy that the environment names (as MinIO: §4.8).

    A `NewConnectionError` and a `ConnectTimeoutError` mean that nothing was sent. After `close` it connects again, so
    that the client remembers which nodes were dead. An answer that repeats another request's id, or none although this
    node has repeated one before, is refused as one to another request.
    """

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        if config.ssl_context is not None:
            # The client has taken it from SSLKEYLOGFILE.
            config.ssl_context.keylog_filename = None  # type: ignore[assignment]  # the stubs do not know that
        self._url = self.base_url
        self._repeats_ids = False
        self._open()

    def perform_request(self, *request: Any, **options: Any) -> Any:
        """Make the request within `request_timeout` (seconds), however slowly the answer comes."""
        late = ConnectionTimeout("no answer in time")
        cause = ReadTimeoutError(self.pool, "", "no answer in time")
        sent = options["headers"][_REQUEST_ID] = f"bucketwire-{secrets.token_hex(6)}"
        with Deadline(options["request_timeout"]) as limit:
            try:
                response = super().perform_request(*request, **options)
            except TransportError as error:
                if limit.expired:
                    raise late from cause
                raise error from error.__cause__
        if limit.expired:  # the end of the connection was taken for the end of the answer
            raise late from cause
        self._check(sent, response.meta.headers.get(_REQUEST_ID), response.meta.status)
        return response

    def _check(self, sent: str, received: str | None, status: int) -> None:
        """Raise an error if this is the answer to another request. A refusal without an id may be a proxy's own."""
        if received == sent:
            self._repeats_ids = True
        elif received is not None or (self._repeats_ids and status < 300):
            self.close()
            what = f"with the X-Opaque-Id {received[:80]!r}" if received else "without our X-Opaque-Id"
            problem = f"an answer {what} is none to this request, which had {sent!r}"
            raise ElasticConnectionError(problem) from HTTPException(problem)

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._open()

    def _open(self) -> None:
        context = self.config.ssl_context
        make_context = tls_context if context is None else lambda: context
        http = http_pool(self._url, make_context, guarded=False, connections=1)
        self.pool = http.pool
        self._path_prefix = http.target.rstrip("/")  # a whole URL for a proxy that passes on plain HTTP


class PlainTransport(Transport):
    """A transport with plain media types, as OpenSearch and Elasticsearch 7 refuse those of the client's version."""

    def perform_request(  # type: ignore[override]  # its options are passed on
        self, method: str, target: str, *, headers: HttpHeaders, **options: Any
    ) -> TransportApiResponse:
        """Make the request, and leave out warnings of what a server deprecates."""
        for name in ("accept", "content-type"):
            if name in headers:
                headers[name] = headers[name].replace("vnd.elasticsearch+", "").partition(";")[0]
        response = super().perform_request(method, target, headers=headers, **options)
        response.meta.headers.pop("Warning", None)  # the client would walk the stack, and print it
        return response


class AnyProduct(PlainTransport):
    """A transport to servers that do not name themselves, which the client refuses: it names them."""

    def perform_request(self, *request: Any, **options: Any) -> TransportApiResponse:
        """Make the request, and give the answer the name."""
        response = super().perform_request(*request, **options)
        response.meta.headers["X-Elastic-Product"] = "Elasticsearch"
        return response


class LenientJson(OrjsonSerializer):
    """JSON, in which an answer that is none is None: its status decides what it means."""

    def loads(self, data: bytes) -> Any:
        """Return the parsed answer."""
        try:
            return super().loads(data)
        except SerializationError:
            return None


SERIALIZERS = {"application/json": LenientJson(), "application/*": LenientJson(), "text/*": LenientJson()}
