"""Match events with the filters of rules: what a record carries, and compiled filters."""

from collections.abc import Collection, Iterator
from typing import Any

import orjson

from app.rules.expressions import Effort, Expressions
from app.rules.filters import Filters

Pair = tuple[str, str, str]  # metadata or tags, the name, the value
_METADATA, _TAGS = "metadata", "tags"
# MinIO and RustFS, MinIO until 2018, Ceph
_METADATA_MEMBERS = ("userMetadata", "userDefined", "metadata")
_USER = "x-amz-meta-"


class EventFacts:
    """What filters ask about an event, read from its record as late as a filter asks. `record` is "" for none."""

    __slots__ = ("_name", "_object", "_pairs", "_record", "effort")

    def __init__(self, name: str, record: str) -> None:
        self.effort = Effort()  # of the expressions that are tried for it
        self._name = name
        self._record = record
        self._object: dict[str, Any] | None = None
        self._pairs: frozenset[Pair] | None = None

    @property
    def size(self) -> int | None:
        """The object's size in bytes; None if the event has none.

        MinIO leaves out a size of 0: an event without a size that creates an object, or has its ETag, has size 0.
        """
        thing = self._read()
        if "size" not in thing:
            return 0 if thing and (thing.get("eTag") or self._name.startswith("s3:ObjectCreated:")) else None
        size = thing["size"]
        return size if type(size) is int and size >= 0 else None

    @property
    def pairs(self) -> frozenset[Pair]:
        """The object's metadata and tags. The name of an entry of metadata is in lower case.

        An entry `x-amz-meta-color` is there under the name `color` too, because senders differ in that.
        """
        if self._pairs is None:
            self._pairs = frozenset(_pairs(self._read()))
        return self._pairs

    def _read(self) -> dict[str, Any]:
        if self._object is None:
            try:
                record = orjson.loads(self._record or "{}")
            except orjson.JSONDecodeError:
                record = None
            s3 = record.get("s3") if isinstance(record, dict) else None
            thing = s3.get("object") if isinstance(s3, dict) else None
            self._object = thing if isinstance(thing, dict) else {}
        return self._object


class Condition:
    """The filters of one rule; `regex` is for others to match."""

    __slots__ = ("_max_size", "_min_size", "pairs", "regex")

    def __init__(self, filters: Filters) -> None:
        self.regex = filters.regex
        self._min_size = filters.min_size
        self._max_size = filters.max_size
        metadata = {(_METADATA, name.lower(), value) for name, value in filters.metadata.items()}
        self.pairs: frozenset[Pair] = frozenset(metadata | {(_TAGS, *pair) for pair in filters.tags.items()})

    def is_met(self, facts: EventFacts) -> bool:
        """Return whether an event passes all of the filters except the regular expression."""
        if self.pairs and not self.pairs <= facts.pairs:
            return False
        if self._min_size is None and self._max_size is None:
            return True
        size = facts.size
        if size is None:
            return False
        return (self._min_size or 0) <= size and (self._max_size is None or size <= self._max_size)


class Candidates:
    """Filtered rules that have everything else in common, with the ranks of their values.

    A rule that requires metadata or tags is tried only for events that carry one of them, so that ten thousand rules,
    each with a tag of its own, cost about as much as ten.
    """

    __slots__ = ("_by_pair", "_expressions", "_others")

    def __init__(self) -> None:
        self._expressions = Expressions()
        self._by_pair: dict[Pair, list[tuple[Condition, int]]] = {}
        self._others: list[tuple[Condition, int]] = []

    def add(self, condition: Condition, rank: int) -> None:
        """Add a rule."""
        if condition.regex:
            self._expressions.add(condition.regex)
        if condition.pairs:
            rarest = min(sorted(condition.pairs), key=lambda pair: len(self._by_pair.get(pair, ())))
            self._by_pair.setdefault(rarest, []).append((condition, rank))
        else:
            self._others.append((condition, rank))

    def find(self, key: bytes, facts: EventFacts, matched: set[int]) -> None:
        """Add the ranks of the rules whose filters the event passes; `key` is its decoded key."""
        regexes: Collection[str] | None = None
        for condition, rank in self._tried(facts):
            if rank in matched:
                continue
            if condition.regex:
                if regexes is None:
                    regexes = self._expressions.matches(key, facts.effort)
                if condition.regex not in regexes:
                    continue
            if condition.is_met(facts):
                matched.add(rank)

    def _tried(self, facts: EventFacts) -> Iterator[tuple[Condition, int]]:
        yield from self._others
        if self._by_pair:
            for pair in facts.pairs:
                yield from self._by_pair.get(pair, ())


def _pairs(thing: dict[str, Any]) -> Iterator[Pair]:
    for member in _METADATA_MEMBERS:
        for name, value in _entries(thing.get(member)):
            lowered = name.lower()
            yield _METADATA, lowered, value
            if lowered.startswith(_USER):
                yield _METADATA, lowered.removeprefix(_USER), value
    for name, value in _entries(thing.get("tags")):
        yield _TAGS, name, value


def _entries(value_of: object) -> Iterator[tuple[str, str]]:
    """Yield the names and values of an object, or of Ceph's array `[{"key": …, "val": …}]`; nothing of other forms."""
    if isinstance(value_of, dict):
        pairs = list(value_of.items())
    elif isinstance(value_of, list):
        pairs = [(entry.get("key"), entry.get("val")) for entry in value_of if isinstance(entry, dict)]
    else:
        return
    yield from ((name, value) for name, value in pairs if isinstance(name, str) and isinstance(value, str))
