"""Send documents by `_bulk` requests: divide them, and blame the right one if a request is refused as a whole."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from app.config.targets.elasticsearch import ElasticsearchSettings
from workers.delivery.outcomes import NOT_ATTEMPTED, Outcome, Rejected, Unavailable
from workers.systems.elasticsearch.answers import error_of_answer, is_good, outcome_of_item
from workers.systems.elasticsearch.cluster import Cluster
from workers.targets.base import TargetUnavailable
from workers.targets.batch import Batch, Doubt, resolve

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
