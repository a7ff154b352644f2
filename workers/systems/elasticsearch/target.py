"""Elasticsearch and OpenSearch: an index that mirrors the buckets or one that records every event (reference §4.8).

Delivered means: the answer to a `_bulk` request has a success status for the document. Its primary shard has then
written it to its log on disk (unless the index is configured to do so later), and so have all in-sync replicas.

One `_bulk` request is pending at a time, whatever the window; its answer confirms each of its documents individually.
In sync mode (`window == 1`) a request has one document, because one with several would not be confirmed as one.
A request never names an object twice: for a namespace only the last document of an object is sent, and in the access
format an object's second event waits for the answer to its first.

| answer to one document                                     | outcome                                          |
|------------------------------------------------------------|--------------------------------------------------|
| 2xx without an error; 404 to a deletion                    | Delivered                                        |
| 2xx with an error; any status but 400 to 599               | Unavailable                                      |
| 401, 403, 404, 429, 503; index closed, alias of no index   | Unavailable                                      |
| 403, 404 and the like for an index of a template           | Failed                                           |
| 400: a field name, depth, a term too long; other 4xx       | Rejected, with the server's reason               |
| 2xx and `noop`: a pipeline drops the document              | as `workers.targets.batch.resolve` decides       |
| other 400: mapping, parsing, pipelines, limits             | as `workers.targets.batch.resolve` decides       |
| other 5xx                                                  | Failed                                           |
| to the request: 400 or 413                                 | sent again in halves; as above for a single one  |
| to the request: any other status, or no answer             | Unavailable, with Retry-After                    |

With several nodes a request for which no connection can be made goes to the next one; see `cluster.ask`.

No external versions: an older version of a mirror's object may have to be restored (§1.11), and MinIO sets none.
"""

from collections.abc import Sequence
from functools import lru_cache, partial

import orjson

from app.config.targets.elasticsearch import ElasticsearchSettings
from app.events.model import Event
from workers.delivery.outcomes import NOT_ATTEMPTED, Outcome, Unavailable
from workers.systems.elasticsearch.bulk import Bulk, Mirror, Operation
from workers.systems.elasticsearch.cluster import Cluster
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck
from workers.targets.batch import NOWHERE, Batch, places
from workers.targets.http_pool import http_endpoint
from workers.targets.messages import entry_format, shaped
from workers.targets.payloads import elasticsearch_access, waves
from workers.targets.tcp import Endpoint

_CREATE = b'{"create":{}}\n'


class ElasticsearchTarget:
    """One index, one connection to each node."""

    def __init__(self, settings: ElasticsearchSettings) -> None:
        self._settings = settings
        self._cluster: Cluster | None = None
        self._stamp: object = None
        self._is_open = False
        self._bulk = Bulk(settings)
        self._mirror = Mirror(settings, self._bulk)
        self._write = entry_format(settings, shaped(elasticsearch_access, settings.access_shape), end="\n")

    def endpoints(self) -> Sequence[Endpoint]:
        """Return each node, or its proxy."""
        context = partial(tls.context_of, self._settings)
        return [http_endpoint(str(node), context, guarded=False) for node in self._settings.nodes]

    def open(self) -> None:
        """Connect, check that the server can be written to, and create the index if it is missing."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Send requests of up to 10 MB, or of one document; after a refused request send nothing more."""
        cluster = self._cluster
        if cluster is None or not self._is_open or self._stamp != tls.stamp_of(self._settings):
            cluster = self._connect()
        cluster.lease = lease
        batch = Batch(events, lease)
        at_once = 1 if window == 1 else len(events)
        if self._settings.format == "access":
            self._append(cluster, batch, at_once)
        else:
            self._mirror.write(cluster, batch, at_once)
        outcomes = batch.outcomes()
        if any(isinstance(outcome, Unavailable) for outcome in outcomes):
            self.close()
        return outcomes

    def close(self) -> None:
        """Close the connections; which nodes did not answer is remembered."""
        self._is_open = False
        if self._cluster is not None:
            self._cluster.close()

    def _connect(self) -> Cluster:
        self.close()
        stamp = tls.stamp_of(self._settings)
        if self._cluster is None or stamp != self._stamp:
            self._cluster, self._stamp = Cluster(self._settings), stamp
        self._cluster.lease = NO_LEASE
        try:
            self._cluster.check()
            self._cluster.take_index()
        except BaseException:
            self._cluster.close()
            raise
        self._is_open = True
        return self._cluster

    def _append(self, cluster: Cluster, batch: Batch, at_once: int) -> None:
        """Write a document for each event, under an id that the server generates."""
        template = self._settings.index
        actions = [_CREATE] * len(batch.events)
        if template.fixed is None:
            indices = places(template, batch)
            cluster.create_indices(dict.fromkeys(indices))
            actions = [_creation(index) for index in indices]
        for wave in waves(batch.events):
            operations = [
                Operation(batch.events[index].path, [index], actions[index], self._write(batch.events[index]).encode())
                for index in wave
            ]
            for index, outcome in zip(wave, self._bulk.send(cluster, operations, batch, at_once), strict=True):
                if outcome is not NOT_ATTEMPTED:
                    batch.settle(index, outcome)


@lru_cache(maxsize=1024)  # most events go to few indices
def _creation(index: str) -> bytes:
    return _CREATE if index == NOWHERE else orjson.dumps({"create": {"_index": index}}) + b"\n"
