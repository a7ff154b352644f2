"""Elasticsearch and OpenSearch: an index that mirrors the buckets or one that records every event (reference §4.8).

Delivered means: the answer to a `_bulk` request has a success status for the document. Its primary shard has then
written it to its log on disk (unless the index is configured to do so later), and so have all in-sync replicas.

One `_bulk` request is pending at a time, whatever the window; its answer confirms each of its documents individually.
In sync mode (`window == 1`) a request has one document, because one with several would not be confirmed as one.
A request never names an object twice: for a namespace only the last document of an object is sent, and in the access
format an object's second event waits for the answer to its first.

| answer to one document                                     | outcome                                          |
|------------------------------------------------------------|--------------------------------------------------|
| 2xx; 404 to a deletion                                     | Delivered                                        |
| 401, 403, 404, 429, 503; index closed, alias of no index   | Unavailable                                      |
| 400 and other 4xx: mapping, parsing, limits                | Rejected, with the server's reason               |
| other 5xx                                                  | Failed                                           |
| to the request: 400 or 413                                 | sent again in halves; Rejected for a single one  |
| to the request: any other status, or no answer             | Unavailable, with Retry-After                    |

No external versions: an older version of a mirror's object may have to be restored (§1.11), and MinIO sets none.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from app.config.targets.elasticsearch import ElasticsearchSettings
from app.events.highwayhash import document_ids
from app.events.model import Effect, Event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, Outcome, Rejected, Unavailable
from workers.targets import tls
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch
from workers.targets.elasticsearch.node import Node, error_words
from workers.targets.payloads import Rows, change, collapse, line, text, version_name, waves

_PORTION = 10_000_000  # bytes of a request; a server accepts 100 MB, and is fastest with a tenth of that
_LONGEST_ID = 512
_READ_AT_ONCE = 1_000
_TRIES = 3  # for a version that changes between reading and removing

_UNAVAILABLE = frozenset({401, 403, 404, 429, 503})
_NOT_THE_EVENTS_FAULT = (
    "index_closed_exception",
    "no write index is defined",
    "only write ops with an op_type of create",
)
_CHANGED = Failed("the document was changed by others, again and again, while its version was looked at")


class _Operation(NamedTuple):
    """One object's part of a `_bulk` request: an action, and the document if there is one, as lines.

    `places` are the indexes of the object's events that it represents.
    """

    path: str
    places: Sequence[int]
    action: bytes
    document: bytes = b""

    @property
    def size(self) -> int:
        """Its bytes in a request."""
        return len(self.action) + len(self.document)


class ElasticsearchTarget:
    """One index, one connection."""

    def __init__(self, settings: ElasticsearchSettings) -> None:
        self._settings = settings
        self._node: Node | None = None
        self._stamp: object = None
        self._where = f"Elasticsearch index {settings.index}"
        self._portion = _PORTION
        # The server stops waiting for a shard a little before we stop waiting for the server, and reports the reason.
        patience = max(1, round(settings.timeout * 800))
        self._bulk = f"/{settings.index}/_bulk?filter_path=errors,items.*.status,items.*.error&timeout={patience}ms"
        wanted = "Records.s3.object.key,Records.s3.object.versionId"
        self._read = f"/{settings.index}/_mget?_source_includes={wanted}"

    def open(self) -> None:
        """Connect, check that the server can be written to, and create the index if it is missing."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Send requests of up to 10 MB, or of one document; after a refused request send nothing more."""
        node = self._node
        if node is None or self._stamp != self._files():
            node = self._connect()
        work = Batch(events, lease)
        at_once = 1 if window == 1 else len(events)
        if self._settings.format == "access":
            self._append(node, work, at_once)
        else:
            self._mirror(node, work, at_once)
        outcomes = work.outcomes()
        if any(isinstance(outcome, Unavailable) for outcome in outcomes):
            self.close()
        return outcomes

    def close(self) -> None:
        """Close the connection."""
        node, self._node = self._node, None
        if node is not None:
            node.close()

    def _connect(self) -> Node:
        self.close()
        self._stamp = self._files()
        node = Node(self._settings)
        try:
            node.check()
            node.take_index()
        except BaseException:
            node.close()
            raise
        self._node = node
        return node

    def _append(self, node: Node, work: Batch, at_once: int) -> None:
        """Write a document for each event, under an id that the server generates."""
        for wave in waves(work.events):
            made = [
                _Operation(work.events[place].path, [place], b'{"create":{}}\n', line(work.events[place]).encode())
                for place in wave
            ]
            for place, outcome in zip(wave, self._carry_out(node, made, work, at_once), strict=True):
                if outcome is not NOT_ATTEMPTED:
                    work.settle(place, outcome)

    def _mirror(self, node: Node, work: Batch, at_once: int) -> None:
        """Write one document per object. If one is rejected, the object's previous event is written instead."""
        ids = self._ids(work)
        waiting = [place for place, event in enumerate(work.events) if event.path in ids]
        while waiting and not work.is_over:
            rows = collapse(change(work.events[place], "namespace") for place in waiting)
            settled = self._write(node, rows, ids, work, waiting, at_once)
            blamed: set[str] = set()
            left: list[int] = []
            for place in reversed(waiting):
                event = work.events[place]
                outcome = settled.get(event.path, DELIVERED)
                if not isinstance(outcome, Rejected):
                    if outcome is not NOT_ATTEMPTED:
                        work.settle(place, outcome)
                elif event.path not in blamed and _caused(event, rows):
                    blamed.add(event.path)
                    work.settle(place, outcome)
                else:
                    left.append(place)
            waiting = left[::-1]

    def _ids(self, work: Batch) -> dict[str, bytes]:
        """Return the id of each path as JSON text; reject events of paths that cannot have one."""
        paths = list(dict.fromkeys(event.path for event in work.events))
        if self._settings.id_style == "hash":
            return {path: b'"%s"' % id_.encode() for path, id_ in zip(paths, document_ids(paths), strict=True)}
        sizes = {path: len(path.encode()) for path in paths}
        for place, event in enumerate(work.events):
            if (size := sizes[event.path]) > _LONGEST_ID:
                reason = f"the id would have {size} of at most {_LONGEST_ID} bytes; id_style=hash has no such limit"
                work.settle(place, Rejected(f"{self._where}: {reason}"))
        return {path: text(path).encode() for path, size in sizes.items() if size <= _LONGEST_ID}

    def _write(
        self, node: Node, rows: Rows, ids: Mapping[str, bytes], work: Batch, waiting: Sequence[int], at_once: int
    ) -> dict[str, Outcome]:
        """Write the combined result of the waiting events; a path missing from the result needed no change."""
        places: dict[str, list[int]] = {}
        for place in waiting:
            places.setdefault(work.events[place].path, []).append(place)
        made = [
            _Operation(path, places[path], b'{"index":{"_id":%s}}\n' % ids[path], document.encode() + b"\n")
            for path, document in rows.documents.items()
        ]
        made += [_Operation(path, places[path], b'{"delete":{"_id":%s}}\n' % ids[path]) for path in rows.removed]
        settled: dict[str, Outcome] = {}
        versions: dict[str, set[str]] = {}
        for path, version in rows.versions:
            versions.setdefault(path, set()).add(version)
        for _ in range(_TRIES):
            settled = {path: outcome for path, outcome in settled.items() if path not in versions}
            found = self._holding(node, versions, ids, places)
            if isinstance(found, Unavailable):
                settled |= dict.fromkeys(versions, found)
                found = []
            made += found
            settled |= zip((each.path for each in made), self._carry_out(node, made, work, at_once), strict=True)
            made = []
            versions = {path: each for path, each in versions.items() if settled.get(path) is _CHANGED}
            if not versions:
                break
        return settled

    def _holding(
        self,
        node: Node,
        versions: Mapping[str, Set[str]],
        ids: Mapping[str, bytes],
        places: Mapping[str, Sequence[int]],
    ) -> list[_Operation] | Unavailable:
        """Return removals of the documents that describe one of the versions, unless they change meanwhile."""
        made: list[_Operation] = []
        paths = list(versions)
        for start in range(0, len(paths), _READ_AT_ONCE):
            part = paths[start : start + _READ_AT_ONCE]
            try:
                answer = node.request("POST", self._read, b'{"ids":[%s]}' % b",".join(ids[path] for path in part))
            except TargetUnavailable as error:
                return Unavailable(error.reason, error.retry_after)
            if not answer.is_good:
                hint = " (the privilege read of the index is needed)" if answer.status == 403 else ""
                return Unavailable(f"{node.where} answered {answer.status}: {answer.words}{hint}", answer.retry_after)
            for path, held in zip(part, answer.body["docs"], strict=True):
                said = error_words(held.get("error"))
                if said and "index_not_found" not in said:
                    return Unavailable(f"{self._where}: {said}")
                if _described(held) in versions[path]:
                    condition = b'"if_seq_no":%d,"if_primary_term":%d' % (held["_seq_no"], held["_primary_term"])
                    made.append(_Operation(path, places[path], b'{"delete":{"_id":%s,%s}}\n' % (ids[path], condition)))
        return made

    def _carry_out(self, node: Node, operations: Sequence[_Operation], work: Batch, at_once: int) -> list[Outcome]:
        """Return an outcome for each operation; after a request with a refused one, send no more."""
        outcomes: list[Outcome] = []
        for portion in _portions(operations, self._portion, at_once):
            try:
                outcomes += self._send(node, portion, work)
            except TargetUnavailable as error:
                outcomes += [Unavailable(error.reason, error.retry_after)] * len(portion)
            if any(isinstance(each, Unavailable) for each in outcomes[-len(portion) :]):
                outcomes += [NOT_ATTEMPTED] * (len(operations) - len(outcomes))
                break
        return outcomes

    def _send(self, node: Node, operations: Sequence[_Operation], work: Batch) -> list[Outcome]:
        """Make one request for the operations that may be sent; if it is refused as a whole, send its halves."""
        chosen = set(work.begin([place for each in operations for place in each.places]))
        held = [not chosen.isdisjoint(each.places) for each in operations]
        if not all(held):
            free = [each for each, may in zip(operations, held, strict=True) if may]
            settled = iter(self._send(node, free, work) if free else ())
            return [next(settled) if may else NOT_ATTEMPTED for may in held]
        body = b"".join(part for each in operations for part in (each.action, each.document))
        answer = node.request("POST", self._bulk, body, lines=True)
        if answer.is_good:
            items = answer.body.get("items", ())
            if len(items) != len(operations):
                raise TargetUnavailable(f"{node.where} answered for {len(items)} of {len(operations)} documents")
            if not answer.body.get("errors", True):
                return [DELIVERED] * len(operations)
            return [self._outcome(each, item) for each, item in zip(operations, items, strict=True)]
        reason = f"{node.where} answered {answer.status}: {answer.words}"
        if answer.status not in (400, 413):
            raise TargetUnavailable(reason, answer.retry_after)
        if len(operations) == 1:
            return [Rejected(reason)]
        if answer.status == 413:
            self._portion = max(1, len(body) // 2)  # permanently: the server, or a proxy, accepts no larger requests
        middle = len(operations) // 2
        return self._send(node, operations[:middle], work) + self._send(node, operations[middle:], work)

    def _outcome(self, operation: _Operation, item: Mapping[str, Any]) -> Outcome:
        ((kind, result),) = item.items()
        status, error = result["status"], result.get("error")
        if 200 <= status <= 299 or (status == 404 and kind == "delete"):
            return DELIVERED
        words = error_words(error)
        reason = f"{self._where}: {status} {words}"
        if status == 409 and b'"if_seq_no"' in operation.action:
            return _CHANGED
        if status in _UNAVAILABLE or any(state in words for state in _NOT_THE_EVENTS_FAULT):
            return Unavailable(reason)
        return Failed(reason) if status >= 500 else Rejected(reason)

    def _files(self) -> object:
        chosen = self._settings
        return tls.stamp(chosen.tls_ca, chosen.client_cert, chosen.client_key)


def _caused(event: Event, rows: Rows) -> bool:
    """Return whether the last such event of its object is the one whose row was rejected."""
    if event.path in rows.documents:
        return event.effect is Effect.UPSERT
    return event.effect in (Effect.REMOVE, Effect.REMOVE_VERSION)


def _described(held: Mapping[str, Any]) -> str | None:
    """Return the version in a document; None if there is no document, or others wrote it."""
    try:
        thing = held["_source"]["Records"][0]["s3"]["object"]
        return version_name(thing.get("versionId")) if "key" in thing else None
    except (LookupError, TypeError, AttributeError):
        return None


def _portions(operations: Sequence[_Operation], most: int, at_once: int) -> Iterator[Sequence[_Operation]]:
    """Yield parts of at most `most` bytes (more only for a single operation) and `at_once` operations."""
    start = size = 0
    for place, each in enumerate(operations):
        if place > start and (size + each.size > most or place - start == at_once):
            yield operations[start:place]
            start, size = place, 0
        size += each.size
    if start < len(operations):
        yield operations[start:]
