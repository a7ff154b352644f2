"""A cluster of Elasticsearch or OpenSearch nodes: the requests that a target makes, and the index it writes to (§4.8).

The published client makes them: it chooses the node, and leaves out for a while those that did not answer. What it
lacks is added at its extension points, on the level below it (`elastic_transport`): proxies, servers that are not
Elastic's, answers that are not JSON.
"""

import importlib.metadata
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

from elastic_transport import (
    ApiResponse,
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
from elastic_transport import ConnectionError as ElasticConnectionError
from elasticsearch import Elasticsearch, UnsupportedProductError
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from app.config.targets.elasticsearch import ElasticsearchSettings
from app.config.tls import context as tls_context
from workers.systems.elasticsearch import answers
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import NOWHERE
from workers.targets.http_pool import describe_http_error, http_pool, retry_after
from workers.targets.sockets import Deadline

USER_AGENT = f"Bucketwire/{importlib.metadata.version('bucketwire')}"

Response = ApiResponse[Any]

_ANY_STATUS = range(100, 1000)  # what a status means is decided here
# Seconds for which a node that did not answer is left out, at first and at most: one that hangs costs a call its whole
# timeout at each attempt. If none is left, all are tried at once.
_MIN_LEFT_OUT_SECONDS, _MAX_LEFT_OUT_SECONDS = 10, 300
_NO_ANSWER = (502, 504)  # from a proxy, which got none from the server
# Of the indices that are created here. By default a text that looks like a date, such as a key `2024-01-01`, makes its
# field a date, and the index refuses every other text there. Only times are dates; templates of the cluster go first.
_TIMES = ("Records.eventTime", "@timestamp", "time", "data.Records.eventTime")
_DATE = {"type": "date", "ignore_malformed": True}
_MAPPINGS = {
    "date_detection": False,
    "numeric_detection": False,
    "dynamic_templates": [
        {path: {"path_match": path, "match_mapping_type": "string", "mapping": _DATE}} for path in _TIMES
    ],
}
_MAX_REMEMBERED = 1_000  # indices of a template that are known to exist


class Cluster:
    """The nodes in the settings, with one connection each; `lease` is checked before a request is sent again."""

    def __init__(self, settings: ElasticsearchSettings) -> None:
        self._settings = settings
        self._index = settings.index.fixed  # None: each document of a request names its own
        context = tls.context_of(settings) if settings.uses_tls else None
        nodes = [
            NodeConfig(
                node.scheme,
                *node.address,
                path_prefix=node.path,
                http_compress=settings.compression,
                ssl_context=context,
            )
            for node in settings.nodes
        ]
        login = {"Authorization": settings.authorization} if settings.authorization else {}
        self._client = Elasticsearch(
            nodes,
            headers={"User-Agent": USER_AGENT} | login,
            request_timeout=settings.timeout,
            max_retries=0,  # see `ask`
            dead_node_backoff_factor=_MIN_LEFT_OUT_SECONDS,
            max_dead_node_backoff=_MAX_LEFT_OUT_SECONDS,
            serializers=SERIALIZERS,
            node_class=HttpNode,
            transport_class=AnyProduct if settings.opensearch else PlainTransport,
            meta_header=False,
        ).options(ignore_status=_ANY_STATUS)
        self._nodes = len(nodes)
        self._created: set[str] = set()
        self.lease: LeaseCheck = NO_LEASE
        self.where = f"Elasticsearch index {settings.index} at {','.join(map(str, settings.nodes))}"
        # The server stops waiting for a shard a little before we stop waiting for the server, and reports the reason.
        self._patience = f"{max(1, round(settings.timeout * 800))}ms"

    def bulk(self, body: bytes) -> Response:
        """Make a `_bulk` request. Raises as `ask`."""
        only = ",".join(f"items.*.{member}" for member in ("_id", "status", "error", "result", "failure_store"))
        return self.ask(
            lambda client: client.bulk(
                index=self._index,
                operations=body,  # type: ignore[arg-type]  # it sends bytes as they are
                filter_path=only,
                timeout=self._patience,
            )
        )

    def versions(self, ids: Sequence[str]) -> Response:
        """Read what the documents with these ids describe, and their sequence numbers. Raises as `ask`."""
        fields = "Records.s3.object.key,Records.s3.object.versionId"
        return self.ask(lambda client: client.mget(index=self._index, ids=ids, source_includes=fields))

    def check(self) -> None:
        """Raise `TargetUnavailable` unless this is a server that can be written to."""
        answer = self._opened(self.ask(lambda client: client.info()), "the privilege monitor of the cluster is needed")
        product = answer.meta.headers.get("X-Elastic-Product")
        self._refuse(answers.problem_of_server(answer.body, product, opensearch=self._settings.opensearch))

    def take_index(self) -> None:
        """Check that the index exists and is fit for the format, or create it (as MinIO: §4.8).

        Those of a template are created with their first documents. Raises `TargetUnavailable`.
        """
        index = self._index
        if index is None:
            return
        is_mirror = self._settings.format == "namespace"
        answer = self.ask(lambda client: client.indices.resolve_index(name=index))
        if answer.meta.status != 404:
            resolved = self._opened(answer, "the privilege read or view_index_metadata of the index is needed").body
            problem = answers.problem_of_index(resolved, index, is_mirror=is_mirror)
            self._refuse(problem or "")
            if answers.indices_of_alias(resolved, index) != 1:
                alias = self._opened(self.ask(lambda client: client.indices.get_alias(name=index)), "")
                self._refuse(answers.problem_of_alias(alias.body, index))
            if problem is not None:
                return
        answer = self._create(index)
        refusal = answers.error_of_answer(answer.meta.status, answer.body)
        if answer.meta.status == 400 and "resource_already_exists" in refusal:
            return
        if not answers.is_good(answer.meta.status) and "creates data streams only" in refusal:
            self._refuse(answers.NO_MIRROR if is_mirror else "")
            return  # the first document creates it
        self._opened(answer, f"create the index, or give the privilege create_index of {index}")

    def create_indices(self, names: Iterable[str]) -> None:
        """Create the indices that are not known to exist; a refusal is left to the documents. Raises as `ask`."""
        for name in names:
            if name not in self._created and name != NOWHERE:
                self.lease.check()
                self._create(name)
                if len(self._created) >= _MAX_REMEMBERED:
                    self._created.clear()
                self._created.add(name)

    def _create(self, index: str) -> Response:
        return self.ask(lambda client: client.indices.create(index=index, mappings=_MAPPINGS))

    def close(self) -> None:
        """Close the connections; the next request connects again."""
        self._client.close()

    def ask(self, request: Callable[[Elasticsearch], Response]) -> Response:
        """Make one request; return the answer, whatever its status.

        If no connection to a node can be made, within the timeout the next one is tried. The client would also repeat
        requests that may have been carried out, and after the lease has ended. Raises `TargetUnavailable` without an
        answer, or for one that every request would get.
        """
        ends = time.monotonic() + self._settings.timeout
        for left in range(self._nodes - 1, -1, -1):
            try:
                answer = request(self._client)
                break
            except UnsupportedProductError as error:
                answer = ApiResponse(error.body, error.meta)
                break
            except SerializationError as error:
                raise TargetUnavailable(f"{self.where}: the server is not Elasticsearch") from error
            except TransportError as error:
                unsent = isinstance(error.__cause__, NewConnectionError | ConnectTimeoutError)
                if not unsent or not left or time.monotonic() >= ends:
                    reason = f"{self.where}: {self._describe(error)}"
                    raise TargetUnavailable(reason, may_arrive=not unsent) from error
                self.lease.check()
        if problem := answers.problem_of_answer(answer.meta.status, answer.body):
            raise TargetUnavailable(f"{self.where} {problem}")
        return answer

    @contextmanager
    def reading(self, answer: Response) -> Iterator[Any]:
        """Yield what an answer says. Raises `TargetUnavailable` where the block finds that no cluster says that."""
        try:
            yield answer.body
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            reason = f"{self.where} answered {answer.meta.status}: the server is not Elasticsearch"
            raise TargetUnavailable(reason) from error

    def unavailable(self, answer: Response, hint: str = "") -> TargetUnavailable:
        """Return the error for an answer that refuses a request; `hint` is for one that names a missing privilege."""
        status = answer.meta.status
        reason = f"{self.where} answered {status}: {answers.error_of_answer(status, answer.body)}"
        return TargetUnavailable(
            reason + (f" ({hint})" if hint and status == 403 else ""),
            retry_after(answer.meta.headers),
            may_arrive=status in _NO_ANSWER,
        )

    def _opened(self, answer: Response, hint: str) -> Response:
        if answers.is_good(answer.meta.status):
            return answer
        raise self.unavailable(answer, hint)

    def _refuse(self, problem: str) -> None:
        if problem:
            raise TargetUnavailable(f"{self.where}: {problem}")

    def _describe(self, error: TransportError) -> str:
        cause = error.__cause__
        if isinstance(cause, ReadTimeoutError):
            return f"no answer within {self._settings.timeout:g} s"
        return describe_http_error(cause) if isinstance(cause, HTTPError) else str(cause or error)


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
