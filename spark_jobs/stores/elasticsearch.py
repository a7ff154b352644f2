"""Read an Elasticsearch or OpenSearch target's index at one point in time, one slice per task.

In the server's point in time neither pages nor slices lose or repeat documents that are written meanwhile. It expires
some time after the last request: until then Spark can read a slice again.

With plain ids the key of a document is in its id. A hash cannot be reversed: there the document itself names its
object; a document under another object's id is malformed, and a document that names no object is ignored.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import httpx
import orjson
from pyspark.sql import DataFrame, SparkSession

from app.config import tls
from app.config.targets.elasticsearch import ElasticsearchSettings
from app.events.highwayhash import document_ids
from spark_jobs.schemas import PATHS, ROWS
from spark_jobs.stores.base import CannotRead

_KEEP = "15m"
_PAGE_SIZE = 5_000  # documents of one response; servers allow 10,000
_MAX_SLICES = 1_024  # that servers allow
_TIMEOUT = httpx.Timeout(60, connect=10)  # seconds
_MAX_MESSAGE = 300
_BUCKET = "Records.s3.bucket.name"
_PATH_NAMES = tuple(PATHS)
_NO_TEXTS = (None,) * len(PATHS)

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
            "filter_path": "error,hits.hits._id,hits.hits._source,hits.hits.sort",
        }
        with connect(self.settings) as client:
            while True:
                response = _request(client, "POST", "/_search", params=params, json=search)
                hits = _parse(response, "read").get("hits", {}).get("hits", [])
                yield from _rows(hits, self.bucket, self.settings.id_style)
                if len(hits) < self.page:
                    return
                search["search_after"] = hits[-1]["sort"]


def rows(
    spark: SparkSession, settings: ElasticsearchSettings, bucket: str, *, tasks: int, page: int = _PAGE_SIZE
) -> DataFrame:
    """Return the ROWS of the bucket, `page` documents in a response; empty without an index. Raises `CannotRead`."""
    point = open_point_in_time(settings, bucket, tasks=tasks, page=page)
    if point is None:
        return spark.createDataFrame([], ROWS)
    slices = spark.sparkContext.parallelize(range(point.slices), point.slices)
    return spark.createDataFrame(slices.flatMap(point.read), ROWS, verifySchema=False)


def open_point_in_time(
    settings: ElasticsearchSettings, bucket: str, *, tasks: int, page: int = _PAGE_SIZE
) -> PointInTime | None:
    """Return the index as it is now, in about `tasks` slices; None if there is no index. Raises `CannotRead`."""
    index = f"/{settings.index}"
    with connect(settings) as client:
        # Recent documents are visible only after a refresh, and would count as missing.
        refreshed = _request(client, "POST", f"{index}/_refresh")
        if refreshed.status_code == 404 and "index_not_found" in refreshed.text:
            return None
        _parse(refreshed, "maintenance")
        server = _parse(_request(client, "GET", "/"), "monitor (of the cluster)").get("version", {})
        if server.get("distribution") == "opensearch":
            whole = {"keep_alive": _KEEP, "allow_partial_pit_creation": "false"}
            opened = _parse(_request(client, "POST", f"{index}/_search/point_in_time", params=whole), "read")
            # OpenSearch has no order over several shards: a slice must not span two.
            shards = opened["_shards"]["total"]
            per_shard = max(1, min(-(-tasks // shards), _MAX_SLICES // shards))
            return PointInTime(settings, bucket, opened["pit_id"], "_doc", shards * per_shard, page)
        opened = _parse(_request(client, "POST", f"{index}/_pit", params={"keep_alive": _KEEP}), "read")
        return PointInTime(settings, bucket, opened["id"], "_shard_doc", min(tasks, _MAX_SLICES), page)


def connect(settings: ElasticsearchSettings) -> httpx.Client:
    """Return a client with the target's settings; the caller closes it. Raises `CannotRead`."""
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
    url = urlsplit(settings.url)
    without_login = url._replace(netloc=url.netloc.rpartition("@")[2]).geturl()
    return httpx.Client(base_url=without_login, headers=login, verify=context, timeout=_TIMEOUT)


def _documents_of(bucket: str) -> Mapping[str, Any]:
    """Return a query that excludes only documents that name another bucket, whatever the mapping."""
    names_no_bucket = {"bool": {"must_not": {"exists": {"field": _BUCKET}}}}
    # A name in which the analyzer finds no word matches every document: `_rows` filters by the bucket.
    phrase = {"match_phrase": {_BUCKET: {"query": bucket, "zero_terms_query": "all"}}}
    return {"bool": {"should": [phrase, names_no_bucket]}}


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


def _request(client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
    try:
        return client.request(method, path, **options)
    except httpx.HTTPError as error:
        raise CannotRead(f"Elasticsearch at {client.base_url}: {error or type(error).__name__}") from None


def _parse(response: httpx.Response, privilege: str) -> Any:
    """Return the JSON of a successful response; if access is denied, the message names the missing privilege."""
    server = response.request.url.copy_with(path="/", query=None)
    try:
        body = orjson.loads(response.content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict) or (response.is_success and "error" in body):
        raise CannotRead(
            f"Elasticsearch at {server}: the server that answers there ({response.status_code}) is not Elasticsearch"
        )
    if response.is_success:
        return body
    hint = {401: " (check the login)", 403: f" (the privilege {privilege} is needed)"}.get(response.status_code, "")
    if response.status_code in (400, 405) and "_pit" in response.request.url.path:
        hint = " (Elasticsearch 7.15 or OpenSearch 2.4 is needed)"
    raise CannotRead(f"Elasticsearch at {server} answered {response.status_code}: {_message(body.get('error'))}{hint}")


def _message(error: Any) -> str:
    message = f"{error.get('type')}: {error.get('reason')}" if isinstance(error, dict) else str(error)
    return message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}…"
