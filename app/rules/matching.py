"""Match events with rules to find their targets, by MinIO's matching rules (reference §2.2).

A rule's prefix and suffix form one pattern over the bytes of the decoded key. `*` matches any run of bytes, `?` one
byte, and a `?` that is reached at the end of the key makes the whole match true (a quirk of MinIO that is kept).

Ten thousand rules cost about as much as ten: dictionaries index them by bucket, event name, and the literal beginning
and end of their pattern. A rule with wildcards inside its values is tried only if the key has its literal beginning
and contains some bytes that it requires. A rule with further filters is tried if its pattern matches: `Candidates`.

Rules whose regular expressions would together take too long for a key that is written for them are refused.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import orjson

from app.config.errors import Problem
from app.events.names import EVERY, families, family_of
from app.events.own_events import SERVICE_BUCKET
from app.rules.filters import MAX_PROGRAMS, Effort, Expressions, Filters, literal_beginning, regex_size
from app.rules.model import EVERY_BUCKET, BadRules, Rule, event_names

T = TypeVar("T", bound=Hashable)
Ranks = tuple[int, ...]
_STAR, _ONE = ord("*"), ord("?")
_INDEXED = 4  # bytes of a pattern by which it is indexed
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


class Matcher(Generic[T]):
    """Compiled rules, each with a value. A matcher never changes, so threads may share it."""

    __slots__ = ("_buckets", "_values")

    def __init__(self, rules: Iterable[tuple[Rule, T]]) -> None:
        ranks: dict[T, int] = {}
        self._buckets: dict[str, _Bucket] = {}
        for rule, value in rules:
            bucket = self._buckets.setdefault(rule.bucket, _Bucket())
            bucket.add(rule, ranks.setdefault(value, len(ranks)))
        self._values = tuple(ranks)

    def targets(self, bucket: str, name: str, key: str, record: str = "") -> tuple[T, ...]:
        """Return the values of the rules that match an event, each once, in the order of the rules.

        `key` is the decoded key. An event with an unknown name matches rules for its family and for event `*`, an event
        about the service only rules for its bucket. The `record`'s JSON is read if a rule with a filter on metadata,
        tags or size matches otherwise; without it none of those matches.
        """
        raw = _encode(key)
        matched: set[int] = set()
        facts: EventFacts | None = None
        every = self._buckets.get(EVERY_BUCKET) if bucket != SERVICE_BUCKET else None
        for rules in (self._buckets.get(bucket), every):
            if rules is not None:
                index = rules.index(name)
                index.plain.find(raw, matched)
                if index.filtered is not None:
                    if facts is None:
                        facts = EventFacts(name, record)
                    index.filtered.find(raw, facts, matched)
        return tuple([self._values[rank] for rank in sorted(matched)])


def compile_rules(rules: Iterable[tuple[Rule, T]]) -> Matcher[T]:
    """Compile pairs of a rule and its value for matching.

    An unknown event name in a rule matches nothing; `app.rules.model.check` refuses such a rule.
    """
    return Matcher(rules)


def pattern(prefix: str, suffix: str) -> bytes:
    """Return the pattern of a rule's filter; `*` without a filter."""
    text = ""
    if prefix:
        text = prefix if prefix.endswith("*") else prefix + "*"
    if suffix:
        text += suffix if suffix.startswith("*") else "*" + suffix
    return _encode(text.replace("**", "*") or "*")


def rule_pattern(rule: Rule) -> bytes:
    """Return the pattern of a rule, which every key has that the rule matches.

    Without prefix and suffix it is what the rule's regular expression obviously begins with, so that rules which differ
    in that are not all tried.
    """
    if rule.filters.regex and not rule.prefix and not rule.suffix:
        return pattern(literal_beginning(rule.filters.regex), "")
    return pattern(rule.prefix, rule.suffix)


class _Bucket:
    """The rules of one bucket, with an index for each event name that is built for its first event."""

    __slots__ = ("_indexes", "_names", "_rules")

    def __init__(self) -> None:
        self._rules: list[tuple[frozenset[str], bytes, Condition | None, int]] = []
        self._names: set[str] = set()
        self._indexes: dict[str, _NameIndex] = {}

    def add(self, rule: Rule, rank: int) -> None:
        names = frozenset(name for event in rule.events for name in event_names(event) | families(event))
        self._names |= names
        condition = Condition(rule.filters) if rule.filters else None
        self._rules.append((names, rule_pattern(rule), condition, rank))

    def index(self, name: str) -> "_NameIndex":
        if name not in self._names:
            name = family_of(name)  # so that unknown names from senders never add indexes
            name = name if name in self._names else EVERY
        index = self._indexes.get(name)
        if index is None:
            # Threads that run this at the same time build equal indexes, and any of them may be kept.
            index = _NameIndex([rule[1:] for rule in self._rules if name in rule[0] or EVERY in rule[0]])
            self._indexes[name] = index
        return index


class _NameIndex:
    """The rules of a bucket for one event name: those of prefix and suffix alone, and those with further filters."""

    __slots__ = ("filtered", "plain")

    def __init__(self, rules: Sequence[tuple[bytes, Condition | None, int]]) -> None:
        self.plain = _Index((text, rank) for text, condition, rank in rules if condition is None)
        filtered = [(text, condition, rank) for text, condition, rank in rules if condition is not None]
        self.filtered = _FilteredIndex(filtered) if filtered else None


class _FilteredIndex:
    """Rules with further filters, in a group for each pattern."""

    __slots__ = ("_groups", "_patterns")

    def __init__(self, rules: Iterable[tuple[bytes, Condition, int]]) -> None:
        groups: dict[bytes, Candidates] = defaultdict(Candidates)
        for text, condition, rank in rules:
            groups[text].add(condition, rank)
        self._groups = tuple(groups.values())
        self._patterns = _Index((text, number) for number, text in enumerate(groups))

    def find(self, key: bytes, facts: EventFacts, matched: set[int]) -> None:
        numbers: set[int] = set()
        self._patterns.find(key, numbers)
        for number in numbers:
            self._groups[number].find(key, facts, matched)


class _Index:
    """Patterns by their literal beginning, and the ranks of their values."""

    __slots__ = ("_beginnings", "_lengths")

    def __init__(self, patterns: Iterable[tuple[bytes, int]]) -> None:
        ranks_by_pattern: dict[bytes, dict[int, None]] = defaultdict(dict)
        for text, rank in patterns:
            ranks_by_pattern[text][rank] = None
        self._beginnings: dict[bytes, _Beginning] = defaultdict(_Beginning)
        for text, ranks in ranks_by_pattern.items():
            self._beginnings[re.split(rb"[*?]", text, maxsplit=1)[0]].add(text, tuple(ranks))
        self._lengths = tuple(sorted({len(head) for head in self._beginnings}))

    def find(self, key: bytes, matched: set[int]) -> None:
        get, size = self._beginnings.get, len(key)
        for length in self._lengths:
            if length > size:
                return
            beginning = get(key[:length])
            if beginning is not None:
                beginning.find(key, length, matched)


class _Beginning:
    """Patterns with the same literal beginning; most have one star after it and then a literal ending."""

    __slots__ = ("_endings", "_lengths", "_wild")

    def __init__(self) -> None:
        self._endings: dict[bytes, Ranks] = {}
        self._lengths: tuple[int, ...] = ()
        self._wild: _Wildcards | None = None

    def add(self, text: bytes, ranks: Ranks) -> None:
        if b"?" in text or text.count(b"*") > 1:
            if self._wild is None:
                self._wild = _Wildcards()
            self._wild.add(text, ranks)
        else:
            ending = text.partition(b"*")[2]
            self._endings[ending] = ranks
            self._lengths = tuple(sorted({*self._lengths, len(ending)}))

    def find(self, key: bytes, beginning: int, matched: set[int]) -> None:
        get, size = self._endings.get, len(key)
        for length in self._lengths:
            if beginning + length > size:  # beginning and ending may not overlap
                break
            ranks = get(key[size - length :])
            if ranks is not None:
                matched.update(ranks)
        if self._wild is not None:
            self._wild.find(key, beginning, matched)


class _Wild(Protocol):
    def match(self, key: bytes) -> bool: ...


class _Wildcards:
    """Patterns with wildcards inside, most of them indexed by a few bytes that a key must contain."""

    __slots__ = ("_by_bytes", "_lengths", "_others")

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, list[tuple[bytes, _Wild, Ranks]]] = {}
        self._lengths: tuple[int, ...] = ()
        self._others: list[tuple[_Wild, Ranks]] = []

    def add(self, text: bytes, ranks: Ranks) -> None:
        wild = Automaton(text) if b"?" in text else Stars(text)
        # The bytes after the first `?` are not required: the key may end before it.
        required = max(text.partition(b"?")[0].split(b"*")[1:], key=len, default=b"")
        if not required:
            self._others.append((wild, ranks))
            return
        size = min(len(required), _INDEXED)
        pieces = [required[start : start + size] for start in range(len(required) - size + 1)]
        rarest = min(pieces, key=lambda piece: len(self._by_bytes.get(piece, ())))
        self._by_bytes.setdefault(rarest, []).append((required, wild, ranks))
        self._lengths = tuple(sorted({*self._lengths, size}))

    def find(self, key: bytes, beginning: int, matched: set[int]) -> None:
        for wild, ranks in self._others:
            if wild.match(key):
                matched.update(ranks)
        get, tried = self._by_bytes.get, set[bytes]()
        for size in self._lengths:
            for start in range(beginning, len(key) - size + 1):
                piece = key[start : start + size]
                patterns = get(piece)
                if patterns is not None and piece not in tried:
                    tried.add(piece)
                    matched.update(
                        *[ranks for required, wild, ranks in patterns if required in key and wild.match(key)]
                    )


class Stars:
    """A pattern whose wildcards are all stars: its literal parts must occur one after the other."""

    __slots__ = ("_first", "_last", "_middle")

    def __init__(self, text: bytes) -> None:
        self._first, *self._middle, self._last = text.split(b"*")

    def match(self, key: bytes) -> bool:
        """Return whether the whole key matches."""
        position, end = len(self._first), len(key) - len(self._last)
        if position > end or not key.startswith(self._first) or not key.endswith(self._last):
            return False
        for part in self._middle:
            start = key.find(part, position, end)
            if start < 0:
                return False
            position = start + len(part)
        return True


class Automaton:
    """A pattern with any wildcards, matched in one pass over the key.

    The states are the bits of one number: bit `i` means that the pattern's first `i` positions match the bytes read so
    far. Backtracking, which MinIO uses, takes unbounded time for some patterns.
    """

    __slots__ = ("_any", "_bits", "_ends", "_stars", "_start")

    def __init__(self, text: bytes) -> None:
        text = re.sub(rb"\*+", b"*", text)  # matches the same keys, and a star then never follows a star
        bits: dict[int, int] = defaultdict(int)
        for position, byte in enumerate(text):
            bits[byte] |= 1 << position
        self._stars = bits.pop(_STAR, 0)
        self._any = bits.pop(_ONE, 0)
        self._bits = {byte: positions | self._any for byte, positions in bits.items()}
        self._ends = self._any | 1 << len(text)  # a `?` at the key's end matches, whatever follows it
        self._start = 1 | (1 & self._stars) << 1

    def match(self, key: bytes) -> bool:
        """Return whether the whole key matches."""
        stars, any_byte, bits = self._stars, self._any, self._bits
        states = self._start
        for byte in key:
            states = states & stars | (states & bits.get(byte, any_byte)) << 1
            if not states:
                return False
            states |= (states & stars) << 1
        return bool(states & self._ends)


def _encode(text: str) -> bytes:
    # A key may contain half a surrogate pair from a sender's JSON; matching it must never raise.
    return text.encode("utf-8", "surrogatepass")


_WILDCARD = re.compile(rb"[*?]")


def check_expressions(rules: Iterable[Rule]) -> None:
    """Check that a key can be matched fast enough with all expressions of the rules. Raises `BadRules`.

    Give the rules of all buckets: those of every bucket are tried for each bucket's events. Expressions of rules that
    begin differently are never tried for the same key.
    """
    buckets: dict[str, dict[tuple[bytes, str], int]] = defaultdict(dict)
    for rule in rules:
        if rule.filters.regex:
            # Rules of equal patterns share the automata in which an expression is.
            key = (rule_pattern(rule), rule.filters.regex)
            buckets[rule.bucket][key] = regex_size(rule.filters.regex)
    of_every = buckets.pop(EVERY_BUCKET, {})
    for bucket, sizes in buckets.items() or [(EVERY_BUCKET, {})]:
        most = _most_for_one_key(sizes) + _most_for_one_key(of_every)
        if most > MAX_PROGRAMS:
            reason = f"makes {most} instructions of regular expressions for a key of bucket {bucket}, of {MAX_PROGRAMS}"
            hint = "use fewer or simpler ones, or prefixes that differ"
            raise BadRules([Problem("regex", "", reason, hint)])


def _most_for_one_key(sizes: Mapping[tuple[bytes, str], int]) -> int:
    """Return the most instructions that a key is compared with, by how the patterns begin."""
    by_beginning: dict[bytes, int] = defaultdict(int)
    for (pattern, _), size in sizes.items():
        by_beginning[_WILDCARD.split(pattern, maxsplit=1)[0]] += size
    most, begun = 0, [(b"", 0)]
    for beginning in sorted(by_beginning):  # each follows those that it begins with
        while not beginning.startswith(begun[-1][0]):
            begun.pop()
        begun.append((beginning, begun[-1][1] + by_beginning[beginning]))
        most = max(most, begun[-1][1])
    return most
