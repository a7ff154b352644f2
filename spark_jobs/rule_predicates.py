"""Translate a target's rules to conditions on a frame's keys."""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.sql.types import BooleanType

from app.events.names import EVERY
from app.rules.matching import Automaton, pattern
from app.rules.model import EVERY_BUCKET, Rule, event_names

# A listing does not show which of these events created an object.
_CREATIONS = tuple(f"s3:ObjectCreated:{kind}" for kind in ("Put", "Post", "Copy", "CompleteMultipartUpload"))
_REMOVAL, _MARKER = "s3:ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated"
_EVERYTHING = b"*"


@dataclass(frozen=True, slots=True)
class RulePredicates:
    """Which events of a key a target's rules match."""

    expected: Column  # every event that creates an object
    possible: Column  # at least one of the events that create an object
    removable: Column  # every event that removes an object


def rule_predicates(rules: Iterable[Rule], bucket: str, key: Column, *, versioned: bool) -> RulePredicates:
    """Return the predicates of `rules`, all of one target, for the keys of a bucket."""
    rules = _rules_of(rules, bucket)
    patterns = {name: _patterns(rules, name) for name in (*_CREATIONS, _REMOVAL, _MARKER)}
    creations = [patterns[name] for name in _CREATIONS]
    removals = [patterns[_REMOVAL], patterns[_MARKER]] if versioned else [patterns[_REMOVAL]]
    return RulePredicates(
        expected=_all(creations, key),
        possible=_matches(frozenset().union(*creations), key),
        removable=_all(removals, key),
    )


def matched_events(rules: Iterable[Rule], bucket: str, name: str, key: Column) -> Column:
    """Return whether `rules` match events of that name for a key of the bucket."""
    return _matches(_patterns(_rules_of(rules, bucket), name), key)


def is_matched(rules: Iterable[Rule], bucket: str, name: str) -> bool:
    """Return whether `rules` match events of that name for any key of the bucket."""
    return bool(_patterns(_rules_of(rules, bucket), name))


def _rules_of(rules: Iterable[Rule], bucket: str) -> list[Rule]:
    return [rule for rule in rules if rule.bucket in (bucket, EVERY_BUCKET)]


def _patterns(rules: Iterable[Rule], name: str) -> frozenset[bytes]:
    return frozenset(
        pattern(rule.prefix, rule.suffix)
        for rule in rules
        for pattern_name in rule.events
        if event_names(pattern_name) & {name, EVERY}
    )


def _all(sets: Sequence[frozenset[bytes]], key: Column) -> Column:
    return reduce(operator.and_, [_matches(patterns, key) for patterns in dict.fromkeys(sets)])


def _matches(patterns: frozenset[bytes], key: Column) -> Column:
    """Return whether a pattern matches; Spark compares a plain prefix and suffix without Python."""
    if _EVERYTHING in patterns:
        return F.lit(True)
    plain = [pattern for pattern in patterns if pattern.count(b"*") == 1 and b"?" not in pattern]
    matches = [_plain(pattern.decode(), key) for pattern in sorted(plain)]
    if wild := sorted(patterns.difference(plain)):
        matches.append(_wildcard(wild)(key))
    return reduce(operator.or_, matches, F.lit(False))


def _plain(pattern: str, key: Column) -> Column:
    prefix, _, suffix = pattern.partition("*")
    # Prefix and suffix must not overlap.
    return key.startswith(prefix) & key.endswith(suffix) & (F.char_length(key) >= len(prefix) + len(suffix))


def _wildcard(patterns: Sequence[bytes]) -> Callable[[Column], Column]:
    automata = [Automaton(pattern) for pattern in patterns]

    def matches(key: str | None) -> bool:
        return key is not None and any(automaton.match(key.encode()) for automaton in automata)

    return F.udf(matches, BooleanType(), useArrow=False)
