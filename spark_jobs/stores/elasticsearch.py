"""An Elasticsearch or OpenSearch target's index as it is at one moment, a slice of it for each task.

The moment is a point in time of the server's, in which neither pages nor slices lose or double what is written
meanwhile. It lapses by itself some time after it was last asked: until then Spark can read a slice again.

The key of a document is its id's where ids are plain. A hash does not tell what it was made of: there the document
itself names its object, one that stands under another object's id is malformed, and one that names none is nobody's.
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
_PAGE = 5_000  # documents of one answer; a server gives 10,000
_MOST_SLICES = 1_024  # that a server allows
_TIMEOUT = httpx.Timeout(60, connect=10)  # seconds
_SHOWN = 300
_BUCKET = "Records.s3.bucket.name"
_MEMBERS = tuple(PATHS)
_NOTHING = (None,) * len(PATHS)

Row = tuple[str | None, ...]  # ROWS


@dataclass(frozen=True, slots=True)
class Moment:
    """An index at a moment, divided into slices; goes to the executors as it is."""

    settings: ElasticsearchSettings
    bucket: str
    id: str
    sort: str  # by what a slice is paged
    slices: int
    page: int

    def read(self, number: int) -> Iterator[Row]:
        """The rows of one slice. Raises `CannotRead`, also when the moment has lapsed."""
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
        # A shard that does not answer must not pass for one that holds nothing.
        params = {
            "allow_partial_search_results": "false",
            "filter_path": "error,hits.hits._id,hits.hits._source,hits.hits.sort",
        }
        with connect(self.settings) as client:
            while True:
                answer = _ask(client, "POST", "/_search", params=params, json=search)
                hits = _body(answer, "read").get("hits", {}).get("hits", [])
                yield from _rows(hits, self.bucket, self.settings.id_style)
                if len(hits) < self.page:
                    return
                search["search_after"] = hits[-1]["sort"]


def rows(
    spark: SparkSession, settings: ElasticsearchSettings, bucket: str, *, tasks: int, page: int = _PAGE
) -> DataFrame:
    """ROWS of the bucket, `page` documents in an answer; none where there is no index. Raises `CannotRead`."""
    found = moment(settings, bucket, tasks=tasks, page=page)
    if found is None:
        return spark.createDataFrame([], ROWS)
    slices = spark.sparkContext.parallelize(range(found.slices), found.slices)
    return spark.createDataFrame(slices.flatMap(found.read), ROWS, verifySchema=False)


def moment(settings: ElasticsearchSettings, bucket: str, *, tasks: int, page: int = _PAGE) -> Moment | None:
    """The index as it is now, in about `tasks` slices; None where there is none. Raises `CannotRead`."""
    index = f"/{settings.index}"
    with connect(settings) as client:
        # What was written a moment ago is found only after a refresh, and would count as missing.
        refreshed = _ask(client, "POST", f"{index}/_refresh")
        if refreshed.status_code == 404 and "index_not_found" in refreshed.text:
            return None
        _body(refreshed, "maintenance")
        server = _body(_ask(client, "GET", "/"), "monitor (of the cluster)").get("version", {})
        if server.get("distribution") == "opensearch":
            whole = {"keep_alive": _KEEP, "allow_partial_pit_creation": "false"}
            opened = _body(_ask(client, "POST", f"{index}/_search/point_in_time", params=whole), "read")
            # It has no order over several shards: a slice must not reach beyond one.
            shards = opened["_shards"]["total"]
            each = max(1, min(-(-tasks // shards), _MOST_SLICES // shards))
            return Moment(settings, bucket, opened["pit_id"], "_doc", shards * each, page)
        opened = _body(_ask(client, "POST", f"{index}/_pit", params={"keep_alive": _KEEP}), "read")
        return Moment(settings, bucket, opened["id"], "_shard_doc", min(tasks, _MOST_SLICES), page)


def connect(settings: ElasticsearchSettings) -> httpx.Client:
    """A client by the target's own settings, to be closed by the caller. Raises `CannotRead`."""
    try:
        context = tls.context(
            settings.tls_ca,
            skip_verify=settings.tls_skip_verify,
            client_cert=settings.client_cert,
            client_key=settings.client_key,
        )
    except tls.BadFile as bad:
        raise CannotRead(f"Elasticsearch: {bad}") from None
    login = {"Authorization": settings.authorization} if settings.authorization else {}
    place = urlsplit(settings.url)
    bare = place._replace(netloc=place.netloc.rpartition("@")[2]).geturl()
    return httpx.Client(base_url=bare, headers=login, verify=context, timeout=_TIMEOUT)


def _documents_of(bucket: str) -> Mapping[str, Any]:
    """A query that leaves out what says that it is about another bucket, and nothing else, whatever the mapping."""
    says_nothing = {"bool": {"must_not": {"exists": {"field": _BUCKET}}}}
    # A name in which an analyzer finds no word matches every document: which are the bucket's is seen afterwards.
    phrase = {"match_phrase": {_BUCKET: {"query": bucket, "zero_terms_query": "all"}}}
    return {"bool": {"should": [phrase, says_nothing]}}


def _rows(hits: Sequence[Mapping[str, Any]], bucket: str, id_style: str) -> Iterator[Row]:
    prefix = f"{bucket}/"
    found = [(str(hit["_id"]), _texts(hit.get("_source"))) for hit in hits]
    if id_style == "plain":
        yield from ((id_[len(prefix) :], *texts) for id_, texts in found if id_.startswith(prefix))
        return
    named = []
    for id_, texts in found:
        about = dict(zip(_MEMBERS, texts, strict=True))
        if about["bucket"] == bucket and about["object"]:
            named.append((id_, unquote_plus(about["object"]), texts))
    ids = document_ids([prefix + key for _, key, _ in named])
    for (id_, key, texts), own in zip(named, ids, strict=True):
        yield (key, *(texts if id_ == own else _NOTHING))


def _texts(source: Any) -> Row:
    """The texts of PATHS that a document holds, as `get_json_object` would have them."""
    try:
        record = source["Records"][0]
    except (LookupError, TypeError):
        return _NOTHING
    return tuple(_text(record, path) for path in PATHS.values())


def _text(found: Any, path: Sequence[str]) -> str | None:
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found if found is None or isinstance(found, str) else orjson.dumps(found).decode()


def _ask(client: httpx.Client, method: str, path: str, **options: Any) -> httpx.Response:
    try:
        return client.request(method, path, **options)
    except httpx.HTTPError as error:
        raise CannotRead(f"Elasticsearch at {client.base_url}: {error or type(error).__name__}") from None


def _body(answer: httpx.Response, privilege: str) -> Any:
    """The JSON of a good answer; where it is refused, the message names the privilege that it takes."""
    place = answer.request.url.copy_with(path="/", query=None)
    try:
        body = orjson.loads(answer.content)
    except orjson.JSONDecodeError:
        body = None
    if not isinstance(body, dict) or (answer.is_success and "error" in body):
        raise CannotRead(f"Elasticsearch at {place}: what answers there ({answer.status_code}) is no Elasticsearch")
    if answer.is_success:
        return body
    hint = {401: " (check the login)", 403: f" (the privilege {privilege} is needed)"}.get(answer.status_code, "")
    if answer.status_code in (400, 405) and "_pit" in answer.request.url.path:
        hint = " (Elasticsearch 7.15 or OpenSearch 2.4 is needed)"
    raise CannotRead(f"Elasticsearch at {place} answered {answer.status_code}: {_words(body.get('error'))}{hint}")


def _words(error: Any) -> str:
    words = f"{error.get('type')}: {error.get('reason')}" if isinstance(error, dict) else str(error)
    return words if len(words) <= _SHOWN else f"{words[:_SHOWN]}…"
