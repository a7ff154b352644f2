"""Read an Elasticsearch or OpenSearch target's index at one point in time, one slice per task.

In the server's point in time neither pages nor slices lose or repeat documents that are written meanwhile. It expires
some time after the last request: until then Spark can read a slice again.

With plain ids the key of a document is in its id. A hash cannot be reversed: there the document itself names its
object; a document under another object's id is malformed, and a document that names no object is ignored.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote, unquote_plus, urlencode
from urllib.request import getproxies, proxy_bypass

import orjson
from elastic_transport import NodeConfig, SerializationError, Transport, TransportApiResponse, TransportError
from elastic_transport import Urllib3HttpNode as HttpNode
from pyspark.sql import DataFrame, SparkSession
from urllib3 import PoolManager, ProxyManager, Timeout
from urllib3.util import make_headers, parse_url

from app.config import tls
from app.config.fields.addresses import HostPort
from app.config.targets.elasticsearch import ElasticsearchSettings
from app.events.highwayhash import document_ids
from app.http_pools import pool_classes
from spark_jobs.frames import PATHS, ROWS
from spark_jobs.stores import CannotRead

HAS_SINGLE_ROWS = False  # whether one reading probably finds each key once
_KEEP = "15m"
_PAGE_SIZE = 5_000  # documents of one response; servers allow 10,000
_MAX_SLICES = 1_024  # that servers allow
_TIMEOUT = Timeout(connect=10, read=60)  # seconds
_MAX_PAGE_BYTES = 1 << 26  # keys of 1,024 bytes, twice, each of whose bytes may be written as three
_MAX_MESSAGE = 300
_JSON = "application/json"
_NOT_ELASTICSEARCH = "the server that answers there is not Elasticsearch"
_BUCKET = "Records.s3.bucket.name"
_PATH_NAMES = tuple(PATHS)
_NO_TEXTS = (None,) * len(PATHS)

# Its lines say what `CannotRead` says.
logging.getLogger("elastic_transport").setLevel(logging.CRITICAL)

Row = tuple[str | None, ...]  # ROWS


@dataclass(frozen=True, slots=True)
class PointInTime:
    """An index at a point in time, divided into slices; it is sent to the executors."""

    settings: ElasticsearchSettings
    bucket: str
    id: str
    sort: str  # the field by which a slice is paged
    slices: int
    page: int

    def read(self, number: int) -> Iterator[Row]:
        """Read the rows of one slice. Raises `CannotRead`, also if the point in time has expired."""
        search: dict[str, Any] = {
            "pit": {"id": self.id, "keep_alive": _KEEP},
            "query": _documents_of(self.bucket),
            "_source": [".".join(("Records", *path)) for path in PATHS.values()],
            "sort": [{self.sort: "asc"}],
            "size": self.page,
            "track_total_hits": False,
        }
        if self.slices > 1:
            search["slice"] = {"id": number, "max": self.slices}
        # A shard that does not answer must not be read as an empty one.
        params = {
            "allow_partial_search_results": "false",
            "filter_path": "error,timed_out,hits.hits._id,hits.hits._source,hits.hits.sort",
        }
        with Cluster(self.settings) as cluster:
            while True:
                answer = cluster.request("POST", "/_search", params, search)
                hits = _hits(answer)
                yield from _rows(hits, self.bucket, self.settings.id_style)
                if len(hits) < self.page:
                    return
                after = hits[-1].get("sort")
                if not after or after == search.get("search_after"):
                    raise CannotRead(
                        f"Elasticsearch at {_url(answer.meta.node)} answered with the same documents again"
                    )
                search["search_after"] = after


def rows(
    spark: SparkSession, settings: ElasticsearchSettings, bucket: str, *, tasks: int, page: int = _PAGE_SIZE
) -> DataFrame:
    """Return the ROWS of the bucket, `page` documents in a response; empty without an index. Raises `CannotRead`."""
    point = open_point_in_time(settings, bucket, tasks=tasks, page=page)
    if point is None:
        return spark.createDataFrame([], ROWS)
    slices = spark.sparkContext.parallelize(range(point.slices), point.slices)
    return spark.createDataFrame(slices.flatMap(point.read), ROWS, verifySchema=False)


def hosts(settings: ElasticsearchSettings) -> Sequence[str]:
    """Return the hosts of the nodes that are set."""
    return [node.address.host for node in settings.nodes]


def open_point_in_time(
    settings: ElasticsearchSettings, bucket: str, *, tasks: int, page: int = _PAGE_SIZE
) -> PointInTime | None:
    """Return the index as it is now, in about `tasks` slices; None if there is no index. Raises `CannotRead`."""
    index = f"/{settings.index}"
    keep = {"keep_alive": _KEEP}
    with Cluster(settings) as cluster:
        # Recent documents are visible only after a refresh, and would count as missing.
        refreshed = cluster.request("POST", f"{index}/_refresh")
        if refreshed.meta.status == 404 and "index_not_found" in str(refreshed.body):
            return None
        _parse(refreshed, "maintenance")
        server = _parse(cluster.request("GET", "/"), "monitor (of the cluster)").get("version", {})
        if server.get("distribution") == "opensearch":
            whole = keep | {"allow_partial_pit_creation": "false"}
            opened = _parse(cluster.request("POST", f"{index}/_search/point_in_time", whole), "read")
            # OpenSearch has no order over several shards: a slice must not span two.
            shards = opened["_shards"]["total"]
            per_shard = max(1, min(-(-tasks // shards), _MAX_SLICES // shards))
            return PointInTime(settings, bucket, opened["pit_id"], "_doc", shards * per_shard, page)
        answer = cluster.request("POST", f"{index}/_pit", keep)
        if answer.meta.status in (400, 405):
            raise CannotRead(f"{_problem(answer)} (Elasticsearch 7.15 or OpenSearch 2.4 is needed)")
        return PointInTime(settings, bucket, _parse(answer, "read")["id"], "_shard_doc", min(tasks, _MAX_SLICES), page)


class Cluster:
    """The nodes in the target's settings; requests are repeated at the next node. Raises `CannotRead`.

    They are made on the client's transport: the client itself refuses OpenSearch.
    """

    def __init__(self, settings: ElasticsearchSettings) -> None:
        try:
            context = tls.context(
                settings.tls_ca,
                skip_verify=settings.tls_skip_verify,
                client_cert=settings.client_cert,
                client_key=settings.client_key,
            )
        except tls.BadFile as error:
            raise CannotRead(f"Elasticsearch: {error}") from None
        login = {"Authorization": settings.authorization} if settings.authorization else {}
        nodes = [
            NodeConfig(
                node.scheme,
                *node.address,
                path_prefix=node.path,
                headers=login,
                http_compress=settings.compression,
                ssl_context=context if node.scheme == "https" else None,
                ssl_show_warn=False,
                verify_certs=not settings.tls_skip_verify,
            )
            for node in settings.nodes
        ]
        self._where = ",".join(map(str, settings.nodes))
        self._transport = Transport(nodes, node_class=_Node, meta_header=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._transport.close()

    def request(
        self, method: str, path: str, params: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> TransportApiResponse:
        """Return the answer, whatever its status. Raises `CannotRead` without one."""
        target = f"{path}?{urlencode(params)}" if params else path
        headers = {"Accept": _JSON} | ({"Content-Type": _JSON} if body is not None else {})
        try:
            return self._transport.perform_request(method, target, body=body, headers=headers)
        except SerializationError:
            raise CannotRead(f"Elasticsearch at {self._where}: {_NOT_ELASTICSEARCH}") from None
        except TransportError as error:
            reason = str(error.__cause__ or error) or type(error).__name__
            raise CannotRead(f"Elasticsearch at {self._where}: {reason}") from None


class _Node(HttpNode):
    """A node behind the proxy that the environment names, whose certificate only the context's authorities verify.

    The transport's own connections know no proxy, and trust the authorities of `certifi` beside those of the context.
    """

    pool: PoolManager  # type: ignore[assignment]  # it is asked for whole URLs

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self._path_prefix = self.base_url
        options: dict[str, Any] = {"ssl_context": config.ssl_context, "timeout": _TIMEOUT}
        proxy = "" if proxy_bypass(f"{config.host}:{config.port}") else getproxies().get(config.scheme, "")
        if proxy:
            login = parse_url(proxy).auth
            headers = make_headers(proxy_basic_auth=unquote(login)) if login else None
            self.pool = ProxyManager(proxy, proxy_headers=headers, **options)
        else:
            self.pool = PoolManager(**options)
        self.pool.pool_classes_by_scheme = pool_classes(_MAX_PAGE_BYTES)

    def close(self) -> None:
        """Close the connections."""
        self.pool.clear()


def _documents_of(bucket: str) -> Mapping[str, Any]:
    """Return a query that excludes only documents that name another bucket, whatever the mapping."""
    names_no_bucket = {"bool": {"must_not": {"exists": {"field": _BUCKET}}}}
    # A name in which the analyzer finds no word matches every document: `_rows` filters by the bucket.
    phrase = {"match_phrase": {_BUCKET: {"query": bucket, "zero_terms_query": "all"}}}
    return {"bool": {"should": [phrase, names_no_bucket]}}


def _hits(answer: TransportApiResponse) -> Sequence[Mapping[str, Any]]:
    """Return the documents that a search has found. Raises `CannotRead` for one that is not whole, or is none."""
    body = _parse(answer, "read")
    if body.get("timed_out") is not False:  # without documents nothing else would tell it from any other answer
        raise CannotRead(f"Elasticsearch at {_url(answer.meta.node)} has not searched to the end, or not at all")
    hits: Sequence[Mapping[str, Any]] = body.get("hits", {}).get("hits", [])
    return hits


def _rows(hits: Sequence[Mapping[str, Any]], bucket: str, id_style: str) -> Iterator[Row]:
    prefix = f"{bucket}/"
    documents = [(str(hit["_id"]), _texts(hit.get("_source"))) for hit in hits]
    if id_style == "plain":
        yield from ((id_[len(prefix) :], *texts) for id_, texts in documents if id_.startswith(prefix))
        return
    named = []
    for id_, texts in documents:
        by_name = dict(zip(_PATH_NAMES, texts, strict=True))
        if by_name["bucket"] == bucket and by_name["object"]:
            named.append((id_, unquote_plus(by_name["object"]), texts))
    ids = document_ids([prefix + key for _, key, _ in named])
    for (id_, key, texts), expected in zip(named, ids, strict=True):
        yield (key, *(texts if id_ == expected else _NO_TEXTS))


def _texts(source: Any) -> Row:
    """Return the texts of PATHS in a document, as `get_json_object` would return them."""
    try:
        record = source["Records"][0]
    except (LookupError, TypeError):
        return _NO_TEXTS
    return tuple(_text(record, path) for path in PATHS.values())


def _text(value: Any, path: Sequence[str]) -> str | None:
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


def _parse(answer: TransportApiResponse, privilege: str) -> Any:
    """Return the JSON of a successful answer; if access is denied, the message names the missing privilege."""
    status, body = answer.meta.status, answer.body
    is_success = 200 <= status <= 299
    if not isinstance(body, dict) or (is_success and "error" in body):
        raise CannotRead(f"Elasticsearch at {_url(answer.meta.node)}: {_NOT_ELASTICSEARCH} ({status})")
    if is_success:
        return body
    hint = {401: " (check the login)", 403: f" (the privilege {privilege} is needed)"}.get(status, "")
    raise CannotRead(f"{_problem(answer)}{hint}")


def _problem(answer: TransportApiResponse) -> str:
    error = answer.body.get("error") if isinstance(answer.body, dict) else None
    message = f"{error.get('type')}: {error.get('reason')}" if isinstance(error, dict) else str(error)
    shown = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}…"
    return f"Elasticsearch at {_url(answer.meta.node)} answered {answer.meta.status}: {shown}"


def _url(node: NodeConfig) -> str:
    return f"{node.scheme}://{HostPort(node.host, node.port)}/"
