"""Which targets an event goes to, by the matching rules of MinIO (reference §2.2).

A rule's prefix and suffix make one pattern over the bytes of the decoded key. `*` stands for any run of bytes, `?` for
one byte, and a `?` that is reached when the key is at its end makes the whole match true (a quirk that is kept).

Ten thousand rules cost about what ten cost: they are found by bucket, event name, and the literal beginning and end of
their pattern, all through dictionaries. Rules with wildcards inside their values are tried only where the key begins as
they do and holds some bytes that it has to hold.
"""

import re
from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar

from app.events.names import EVERY
from app.rules.model import EVERY_BUCKET, Rule, event_names

T = TypeVar("T", bound=Hashable)
Ranks = tuple[int, ...]
_STAR, _ONE = ord("*"), ord("?")
_LOOKED_FOR = 4  # bytes of a pattern by which it is found


class Matcher(Generic[T]):
    """Rules made ready for matching, each with what it leads to. It never changes, so threads may share it."""

    __slots__ = ("_buckets", "_values")

    def __init__(self, rules: Iterable[tuple[Rule, T]]) -> None:
        ranks: dict[T, int] = {}
        self._buckets: dict[str, _Bucket] = {}
        for rule, value in rules:
            bucket = self._buckets.setdefault(rule.bucket, _Bucket())
            bucket.add(rule, ranks.setdefault(value, len(ranks)))
        self._values = tuple(ranks)

    def targets(self, bucket: str, name: str, key: str) -> tuple[T, ...]:
        """What the rules lead to that match an event, each once, in the order in which the rules first name it.

        `key` is the decoded key. An event of an unknown name goes by the rules for event `*` alone.
        """
        raw = _bytes(key)
        found: set[int] = set()
        for rules in (self._buckets.get(bucket), self._buckets.get(EVERY_BUCKET)):
            if rules is not None:
                rules.index(name).find(raw, found)
        return tuple([self._values[rank] for rank in sorted(found)])


def compile_rules(rules: Iterable[tuple[Rule, T]]) -> Matcher[T]:
    """Make rules ready for matching; the second of each pair is what an event is to find by it.

    A name in a rule that is not known matches nothing; `app.rules.model.check` refuses such a rule.
    """
    return Matcher(rules)


def pattern(prefix: str, suffix: str) -> bytes:
    """The pattern of a rule's filter; `*` where there is none."""
    made = ""
    if prefix:
        made = prefix if prefix.endswith("*") else prefix + "*"
    if suffix:
        made += suffix if suffix.startswith("*") else "*" + suffix
    return _bytes(made.replace("**", "*") or "*")


class _Bucket:
    """The rules of one bucket: an index for each event name, made when the first such event comes."""

    __slots__ = ("_indexes", "_names", "_rules")

    def __init__(self) -> None:
        self._rules: list[tuple[frozenset[str], bytes, int]] = []
        self._names: set[str] = set()
        self._indexes: dict[str, _Index] = {}

    def add(self, rule: Rule, rank: int) -> None:
        names = frozenset(name for given in rule.events for name in event_names(given))
        self._names |= names
        self._rules.append((names, pattern(rule.prefix, rule.suffix), rank))

    def index(self, name: str) -> "_Index":
        if name not in self._names:
            name = EVERY  # so that names from outside never make this grow
        index = self._indexes.get(name)
        if index is None:
            # Threads that come here at once make equal ones, and any of them may stay.
            index = _Index((made, rank) for names, made, rank in self._rules if name in names or EVERY in names)
            self._indexes[name] = index
        return index


class _Index:
    """Patterns by their literal beginning, and the ranks of what they lead to."""

    __slots__ = ("_beginnings", "_lengths")

    def __init__(self, patterns: Iterable[tuple[bytes, int]]) -> None:
        together: dict[bytes, dict[int, None]] = defaultdict(dict)
        for made, rank in patterns:
            together[made][rank] = None
        self._beginnings: dict[bytes, _Beginning] = defaultdict(_Beginning)
        for made, ranks in together.items():
            self._beginnings[re.split(rb"[*?]", made, maxsplit=1)[0]].add(made, tuple(ranks))
        self._lengths = tuple(sorted({len(head) for head in self._beginnings}))

    def find(self, key: bytes, found: set[int]) -> None:
        look, size = self._beginnings.get, len(key)
        for length in self._lengths:
            if length > size:
                return
            beginning = look(key[:length])
            if beginning is not None:
                beginning.find(key, length, found)


class _Beginning:
    """The patterns that have the same literal beginning: most have one star after it and then a literal ending."""

    __slots__ = ("_endings", "_lengths", "_wild")

    def __init__(self) -> None:
        self._endings: dict[bytes, Ranks] = {}
        self._lengths: tuple[int, ...] = ()
        self._wild: _Wildcards | None = None

    def add(self, made: bytes, ranks: Ranks) -> None:
        if b"?" in made or made.count(b"*") > 1:
            if self._wild is None:
                self._wild = _Wildcards()
            self._wild.add(made, ranks)
        else:
            ending = made.partition(b"*")[2]
            self._endings[ending] = ranks
            self._lengths = tuple(sorted({*self._lengths, len(ending)}))

    def find(self, key: bytes, beginning: int, found: set[int]) -> None:
        look, size = self._endings.get, len(key)
        for length in self._lengths:
            if beginning + length > size:  # beginning and ending may not overlap
                break
            ranks = look(key[size - length :])
            if ranks is not None:
                found.update(ranks)
        if self._wild is not None:
            self._wild.find(key, beginning, found)


class _Wild(Protocol):
    def match(self, key: bytes) -> bool: ...


class _Wildcards:
    """Patterns with wildcards inside, most of them by a few bytes that a key must hold behind the beginning."""

    __slots__ = ("_by_bytes", "_lengths", "_others")

    def __init__(self) -> None:
        self._by_bytes: dict[bytes, list[tuple[bytes, _Wild, Ranks]]] = {}
        self._lengths: tuple[int, ...] = ()
        self._others: list[tuple[_Wild, Ranks]] = []

    def add(self, made: bytes, ranks: Ranks) -> None:
        wild = Automaton(made) if b"?" in made else Stars(made)
        # What stands behind the first `?` need not be there: the key may end before it.
        needed = max(made.partition(b"?")[0].split(b"*")[1:], key=len, default=b"")
        if not needed:
            self._others.append((wild, ranks))
            return
        size = min(len(needed), _LOOKED_FOR)
        pieces = [needed[place : place + size] for place in range(len(needed) - size + 1)]
        rarest = min(pieces, key=lambda piece: len(self._by_bytes.get(piece, ())))
        self._by_bytes.setdefault(rarest, []).append((needed, wild, ranks))
        self._lengths = tuple(sorted({*self._lengths, size}))

    def find(self, key: bytes, beginning: int, found: set[int]) -> None:
        for wild, ranks in self._others:
            if wild.match(key):
                found.update(ranks)
        look, tried = self._by_bytes.get, set[bytes]()
        for size in self._lengths:
            for place in range(beginning, len(key) - size + 1):
                piece = key[place : place + size]
                patterns = look(piece)
                if patterns is not None and piece not in tried:
                    tried.add(piece)
                    found.update(*[ranks for needed, wild, ranks in patterns if needed in key and wild.match(key)])


class Stars:
    """A pattern whose wildcards are all stars: its literal parts have to come one after the other."""

    __slots__ = ("_first", "_last", "_middle")

    def __init__(self, made: bytes) -> None:
        self._first, *self._middle, self._last = made.split(b"*")

    def match(self, key: bytes) -> bool:
        """Whether the whole key matches."""
        position, end = len(self._first), len(key) - len(self._last)
        if position > end or not key.startswith(self._first) or not key.endswith(self._last):
            return False
        for part in self._middle:
            found = key.find(part, position, end)
            if found < 0:
                return False
            position = found + len(part)
        return True


class Automaton:
    """A pattern with any wildcards, matched in one pass over the key.

    The states stand in the bits of one number: bit `i` says that the pattern's first `i` positions have matched what
    was read. Backtracking, as MinIO does it, takes time beyond all bounds for some patterns.
    """

    __slots__ = ("_any", "_bits", "_ends", "_stars", "_start")

    def __init__(self, made: bytes) -> None:
        made = re.sub(rb"\*+", b"*", made)  # the same to match, and a star then never follows a star
        bits: dict[int, int] = defaultdict(int)
        for position, byte in enumerate(made):
            bits[byte] |= 1 << position
        self._stars = bits.pop(_STAR, 0)
        self._any = bits.pop(_ONE, 0)
        self._bits = {byte: positions | self._any for byte, positions in bits.items()}
        self._ends = self._any | 1 << len(made)  # a `?` at the key's end matches, whatever follows it
        self._start = 1 | (1 & self._stars) << 1

    def match(self, key: bytes) -> bool:
        """Whether the whole key matches."""
        stars, any_byte, bits = self._stars, self._any, self._bits
        states = self._start
        for byte in key:
            states = states & stars | (states & bits.get(byte, any_byte)) << 1
            if not states:
                return False
            states |= (states & stars) << 1
        return bool(states & self._ends)


def _bytes(text: str) -> bytes:
    # A key may hold half a surrogate pair from a sender's JSON; it must match or not, never raise.
    return text.encode("utf-8", "surrogatepass")
