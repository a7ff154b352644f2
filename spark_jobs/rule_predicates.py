"""The rules that lead a bucket's events to one target, as conditions on a frame's keys."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.sql.types import BooleanType

from app.events.names import EVERY
from app.rules.matching import Automaton, pattern
from app.rules.model import EVERY_BUCKET, Rule, event_names

# A listing does not tell by which of these an object was made.
_CREATIONS = tuple(f"s3:ObjectCreated:{kind}" for kind in ("Put", "Post", "Copy", "CompleteMultipartUpload"))
_REMOVAL, _MARKER = "s3:ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated"
_EVERYTHING = b"*"


@dataclass(frozen=True, slots=True)
class RulePredicates:
    """What a target's rules promise about a key."""

    expected: Column  # however the object was made, the target was told
    possible: Column  # the object may have been made in a way that the target was told
    removable: Column  # if the object went, the target was told


def rule_predicates(rules: Iterable[Rule], bucket: str, key: Column, *, versioned: bool) -> RulePredicates:
    """What `rules`, all of one target, promise about the keys of a bucket."""
    ours = _ours(rules, bucket)
    patterns = {name: _patterns(ours, name) for name in (*_CREATIONS, _REMOVAL, _MARKER)}
    creations = [patterns[name] for name in _CREATIONS]
    removals = [patterns[_REMOVAL], patterns[_MARKER]] if versioned else [patterns[_REMOVAL]]
    return RulePredicates(
        expected=_all(creations, key),
        possible=_matches(frozenset().union(*creations), key),
        removable=_all(removals, key),
    )


def matched_events(rules: Iterable[Rule], bucket: str, name: str, key: Column) -> Column:
    """Whether `rules` lead events of that name about a key of the bucket to their target."""
    return _matches(_patterns(_ours(rules, bucket), name), key)


def is_matched(rules: Iterable[Rule], bucket: str, name: str) -> bool:
    """Whether they do so for any key."""
    return bool(_patterns(_ours(rules, bucket), name))


def _ours(rules: Iterable[Rule], bucket: str) -> list[Rule]:
    return [rule for rule in rules if rule.bucket in (bucket, EVERY_BUCKET)]


def _patterns(rules: Iterable[Rule], name: str) -> frozenset[bytes]:
    return frozenset(
        pattern(rule.prefix, rule.suffix)
        for rule in rules
        for given in rule.events
        if event_names(given) & {name, EVERY}
    )


def _all(sets: Sequence[frozenset[bytes]], key: Column) -> Column:
    return reduce(lambda one, other: one & other, [_matches(each, key) for each in dict.fromkeys(sets)])


def _matches(patterns: frozenset[bytes], key: Column) -> Column:
    """Whether one of them matches; what is no more than a beginning and an end, Spark compares without Python."""
    if _EVERYTHING in patterns:
        return F.lit(True)
    plain = [each for each in patterns if each.count(b"*") == 1 and b"?" not in each]
    found = [_plain(each.decode(), key) for each in sorted(plain)]
    if wild := sorted(patterns.difference(plain)):
        found.append(_wild(wild)(key))
    return reduce(lambda one, other: one | other, found, F.lit(False))


def _plain(made: str, key: Column) -> Column:
    beginning, _, end = made.partition("*")
    # Beginning and end may not overlap.
    return key.startswith(beginning) & key.endswith(end) & (F.char_length(key) >= len(beginning) + len(end))


def _wild(patterns: Sequence[bytes]) -> Callable[[Column], Column]:
    automata = [Automaton(each) for each in patterns]

    def matches(key: str | None) -> bool:
        return key is not None and any(automaton.match(key.encode()) for automaton in automata)

    return F.udf(matches, BooleanType(), useArrow=False)
