"""Write documents by `_bulk` requests, also those of an index that mirrors the buckets: one for each object.

Requests are divided, and the right document is blamed if a request is refused as a whole.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

import orjson

from app.config.targets.elasticsearch import ElasticsearchSettings
from app.events.highwayhash import document_ids
from app.events.model import Effect, Event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Outcome, Rejected, Unavailable
from workers.systems.elasticsearch.answers import CHANGED, describe_error, error_of_answer, is_good, outcome_of_item
from workers.systems.elasticsearch.cluster import Cluster
from workers.targets.base import TargetUnavailable
from workers.targets.batch import Batch, Doubt, resolve
from workers.targets.payloads import Rows, change, collapse, version_name

BATCH_BYTES = 10_000_000  # of a request; a server accepts 100 MB, and is fastest with a tenth of that


class Operation(NamedTuple):
    """One object's part of a `_bulk` request: an action, and the document if there is one, as lines.

    `indexes` are those of the object's events that it represents, `document_id` is what the action names, if it names
    one. A `conditional` action names the document's version.
    """

    path: str
    indexes: Sequence[int]
    action: bytes
    document: bytes = b""
    document_id: str = ""
    conditional: bool = False

    @property
    def size(self) -> int:
        """Its bytes in a request."""
        return len(self.action) + len(self.document)


class Bulk:
    """`_bulk` requests of up to 10 MB, less once a server has refused one as too large."""

    def __init__(self, settings: ElasticsearchSettings) -> None:
        self._most_bytes = BATCH_BYTES
        self._where = f"Elasticsearch index {settings.index}"
        self._of_template = settings.index.fixed is None

    def send(self, cluster: Cluster, operations: Sequence[Operation], batch: Batch, at_once: int) -> list[Outcome]:
        """Return an outcome for each operation; after a request with a refused one, send no more."""
        outcomes: list[Outcome] = []
        for portion in _portions(operations, self._most_bytes, at_once):
            kinds = [operation.action if self._of_template else bool(operation.document) for operation in portion]
            try:
                outcomes += resolve(self._send(cluster, portion, batch), kinds)
            except TargetUnavailable as error:
                lost = Unavailable(error.reason, error.retry_after, may_arrive=error.may_arrive)
                outcomes += [lost] * len(portion)
            if any(isinstance(outcome, Unavailable) for outcome in outcomes[-len(portion) :]):
                outcomes += [NOT_ATTEMPTED] * (len(operations) - len(outcomes))
                break
        return outcomes

    def _send(self, cluster: Cluster, operations: Sequence[Operation], batch: Batch) -> list[Outcome | Doubt]:
        """Make one request for the operations that may be sent; if it is refused as a whole, send its halves."""
        chosen = set(batch.begin([index for operation in operations for index in operation.indexes]))
        allowed = [not chosen.isdisjoint(operation.indexes) for operation in operations]
        if not all(allowed):
            free = [operation for operation, may in zip(operations, allowed, strict=True) if may]
            settled = iter(self._send(cluster, free, batch) if free else ())
            return [next(settled) if may else NOT_ATTEMPTED for may in allowed]
        body = b"".join(part for operation in operations for part in (operation.action, operation.document))
        answer = cluster.bulk(body)
        status = answer.meta.status
        if is_good(status):
            with cluster.reading(answer) as body_of_answer:
                return self._outcomes(cluster, body_of_answer, operations)
        if status not in (400, 413):
            raise cluster.unavailable(answer)
        if len(operations) == 1:
            reason = f"{cluster.where} answered {status}: {error_of_answer(status, answer.body)}"
            return [Rejected(reason) if status == 413 else Doubt(reason)]
        if status == 413:
            self._most_bytes = max(1, len(body) // 2)  # permanently: the server, or a proxy, accepts no larger requests
        middle = len(operations) // 2
        return self._send(cluster, operations[:middle], batch) + self._send(cluster, operations[middle:], batch)

    def _outcomes(self, cluster: Cluster, answer: Any, operations: Sequence[Operation]) -> list[Outcome | Doubt]:
        """Return the outcomes that an answer has. Raises any error for an answer that is none of a cluster."""
        items = answer.get("items", ())
        if len(items) != len(operations):
            raise TargetUnavailable(f"{cluster.where} answered for {len(items)} of {len(operations)} documents")
        for operation, item in zip(operations, items, strict=True):
            ((action, result),) = item.items()
            if not operation.action.startswith(b'{"%s":' % action.encode()):
                reason = f"{cluster.where} answered for the action {action!r:.80}, which was not asked for"
                raise TargetUnavailable(reason, may_arrive=True)
            if operation.document_id not in ("", result["_id"]):
                reason = f"{cluster.where} answered for the document {result['_id']!r:.80}, which was not asked for"
                raise TargetUnavailable(reason, may_arrive=True)
        return [
            outcome_of_item(self._where, item, conditional=operation.conditional, of_template=self._of_template)
            for operation, item in zip(operations, items, strict=True)
        ]


def _portions(operations: Sequence[Operation], most_bytes: int, at_once: int) -> Iterator[Sequence[Operation]]:
    """Yield parts of at most `most_bytes` (more only for a single operation) and `at_once` operations."""
    start = size = 0
    for index, operation in enumerate(operations):
        if index > start and (size + operation.size > most_bytes or index - start == at_once):
            yield operations[start:index]
            start, size = index, 0
        size += operation.size
    if start < len(operations):
        yield operations[start:]


MAX_ID_BYTES = 512
BATCH_READ_DOCUMENTS = 1_000
MAX_TRIES = 3  # for a version that changes between reading and removing


class Mirror:
    """The documents of one index, one for each object of the events."""

    def __init__(self, settings: ElasticsearchSettings, bulk: Bulk) -> None:
        self._bulk = bulk
        self._hashed_ids = settings.id_style == "hash"
        self._where = f"Elasticsearch index {settings.index}"

    def write(self, cluster: Cluster, batch: Batch, at_once: int) -> None:
        """Write one document per object. If one is rejected, the object's previous event is written instead."""
        ids = self._ids(batch)
        waiting = [index for index, event in enumerate(batch.events) if event.path in ids]
        while waiting and not batch.is_over:
            rows = collapse(change(batch.events[index], "namespace") for index in waiting)
            settled = self._write(cluster, rows, ids, batch, waiting, at_once)
            blamed: set[str] = set()
            left: list[int] = []
            for index in reversed(waiting):
                event = batch.events[index]
                outcome = settled.get(event.path, DELIVERED)
                if not isinstance(outcome, Rejected):
                    if outcome is not NOT_ATTEMPTED:
                        batch.settle(index, outcome)
                elif event.path not in blamed and _is_cause(event, rows):
                    blamed.add(event.path)
                    batch.settle(index, outcome)
                else:
                    left.append(index)
            waiting = left[::-1]

    def _ids(self, batch: Batch) -> dict[str, str]:
        """Return the id of each path; reject events of paths that cannot have one."""
        paths = list(dict.fromkeys(event.path for event in batch.events))
        if self._hashed_ids:
            return dict(zip(paths, document_ids(paths), strict=True))
        sizes = {path: len(path.encode()) for path in paths}
        for index, event in enumerate(batch.events):
            if (size := sizes[event.path]) > MAX_ID_BYTES:
                reason = f"the id would have {size} of at most {MAX_ID_BYTES} bytes; id_style=hash has no such limit"
                batch.settle(index, Rejected(f"{self._where}: {reason}"))
        return {path: path for path, size in sizes.items() if size <= MAX_ID_BYTES}

    def _write(
        self, cluster: Cluster, rows: Rows, ids: Mapping[str, str], batch: Batch, waiting: Sequence[int], at_once: int
    ) -> dict[str, Outcome]:
        """Write the combined result of the waiting events; a path missing from the result needed no change."""
        indexes: dict[str, list[int]] = {}
        for index in waiting:
            indexes.setdefault(batch.events[index].path, []).append(index)
        operations = [
            Operation(path, indexes[path], _action("index", ids[path]), document.encode() + b"\n", ids[path])
            for path, document in rows.documents.items()
        ]
        operations += [
            Operation(path, indexes[path], _action("delete", ids[path]), document_id=ids[path]) for path in rows.removed
        ]
        settled: dict[str, Outcome] = {}
        versions: dict[str, set[str]] = {}
        for path, version in rows.versions:
            versions.setdefault(path, set()).add(version)
        for _ in range(MAX_TRIES):
            settled = {path: outcome for path, outcome in settled.items() if path not in versions}
            removals = self._removals(cluster, versions, ids, indexes)
            if isinstance(removals, Unavailable):
                settled |= dict.fromkeys(versions, removals)
            else:
                operations += removals
            outcomes = self._bulk.send(cluster, operations, batch, at_once)
            settled |= zip((operation.path for operation in operations), outcomes, strict=True)
            operations = []
            versions = {path: named for path, named in versions.items() if settled.get(path) is CHANGED}
            if not versions:
                break
        return settled

    def _removals(
        self,
        cluster: Cluster,
        versions: Mapping[str, Set[str]],
        ids: Mapping[str, str],
        indexes: Mapping[str, Sequence[int]],
    ) -> list[Operation] | Unavailable:
        """Return removals of the documents that describe one of the versions, unless they change meanwhile."""
        operations: list[Operation] = []
        paths = list(versions)
        for start in range(0, len(paths), BATCH_READ_DOCUMENTS):
            part = paths[start : start + BATCH_READ_DOCUMENTS]
            try:
                answer = cluster.versions([ids[path] for path in part])
                if not is_good(answer.meta.status):
                    raise cluster.unavailable(answer, "the privilege read of the index is needed")
                with cluster.reading(answer) as said:
                    for path, document in zip(part, said["docs"], strict=True):
                        if document["_id"] != ids[path]:
                            return Unavailable(f"{self._where}: the answer is about documents that were not asked for")
                        problem = describe_error(document.get("error"))
                        if problem and "index_not_found" not in problem:
                            return Unavailable(f"{self._where}: {problem}")
                        if _version(document) in versions[path]:
                            action = _action(
                                "delete",
                                ids[path],
                                if_seq_no=document["_seq_no"],
                                if_primary_term=document["_primary_term"],
                            )
                            made = Operation(path, indexes[path], action, document_id=ids[path], conditional=True)
                            operations.append(made)
            except TargetUnavailable as error:
                return Unavailable(error.reason, error.retry_after)
        return operations


def _action(name: str, document_id: str, **conditions: int) -> bytes:
    """Return the line of an action."""
    return orjson.dumps({name: {"_id": document_id} | conditions}) + b"\n"


def _is_cause(event: Event, rows: Rows) -> bool:
    """Return whether the last such event of its object is the one whose row was rejected."""
    if event.path in rows.documents:
        return event.effect is Effect.UPSERT
    return event.effect in (Effect.REMOVE, Effect.REMOVE_VERSION)


def _version(document: Mapping[str, Any]) -> str | None:
    """Return the version in a document; None if there is no document, or others wrote it."""
    try:
        object_ = document["_source"]["Records"][0]["s3"]["object"]
        return version_name(object_.get("versionId")) if "key" in object_ else None
    except (LookupError, TypeError, AttributeError):
        return None
