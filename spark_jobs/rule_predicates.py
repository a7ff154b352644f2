"""Translate a target's rules to conditions on a frame's keys.

A listing has keys and sizes. It has neither metadata nor tags, so a rule that asks for these says nothing about it.
"""

import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (as everybody writes it)
from pyspark.sql.types import BooleanType

from app.events.names import EVERY
from app.rules.filters import compile_regex
from app.rules.matching import Automaton, pattern
from app.rules.model import EVERY_BUCKET, Rule, event_names

# A listing does not show which of these events created an object.
_CREATIONS = tuple(f"s3:ObjectCreated:{kind}" for kind in ("Put", "Post", "Copy", "CompleteMultipartUpload"))
_REMOVAL, _MARKER = "s3:ObjectRemoved:Delete", "s3:ObjectRemoved:DeleteMarkerCreated"
_EVERYTHING = b"*"
KeyFilter = tuple[bytes, str]  # a pattern, and a regular expression or ""


@dataclass(frozen=True, slots=True)
class RulePredicates:
    """Which events of a key a target's rules match."""

    expected: Column  # every event that creates an object
    possible: Column  # at least one of the events that create an object
    removable: Column  # every event that removes an object


def rule_predicates(rules: Iterable[Rule], bucket: str, key: Column, *, versioned: bool) -> RulePredicates:
    """Return the predicates of `rules`, all of one target, for the keys of a bucket.

    A rule with a filter on metadata, tags or size makes events possible and none of them certain: the row may be of an
    older content, and a removal has none of the three.
    """
    rules = _rules_of(rules, bucket)
    certain = [rule for rule in rules if not rule.filters.needs_record]
    filters = {name: _key_filters(certain, name) for name in (*_CREATIONS, _REMOVAL, _MARKER)}
    creations = [filters[name] for name in _CREATIONS]
    removals = [filters[_REMOVAL], filters[_MARKER]] if versioned else [filters[_REMOVAL]]
    possible: frozenset[KeyFilter] = frozenset().union(*(_key_filters(rules, name) for name in _CREATIONS))
    return RulePredicates(
        expected=_all(creations, key),
        possible=_matches(possible, key),
        removable=_all(removals, key),
    )


def matched_events(rules: Iterable[Rule], bucket: str, name: str, key: Column, size: Column) -> Column:
    """Return whether `rules` match events of that name, with nothing but a size, for a key of the bucket."""
    by_size: dict[tuple[int | None, int | None], list[Rule]] = defaultdict(list)
    for rule in _decidable(_rules_of(rules, bucket)):
        by_size[rule.filters.min_size, rule.filters.max_size].append(rule)
    matches = [
        _matches(_key_filters(alike, name), key) & _within(size, least, most)
        for (least, most), alike in by_size.items()
    ]
    return reduce(operator.or_, matches, F.lit(False))


def is_matched(rules: Iterable[Rule], bucket: str, name: str) -> bool:
    """Return whether `rules` match events of that name, with nothing but a size, for any key of the bucket."""
    return bool(_key_filters(_decidable(_rules_of(rules, bucket)), name))


def _decidable(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules that ask for neither metadata nor tags."""
    return [rule for rule in rules if not rule.filters.metadata and not rule.filters.tags]


def _within(size: Column, least: int | None, most: int | None) -> Column:
    bounds = [size >= least] if least is not None else []
    bounds += [size <= most] if most is not None else []
    return reduce(operator.and_, bounds, F.lit(True))


def _rules_of(rules: Iterable[Rule], bucket: str) -> list[Rule]:
    return [rule for rule in rules if rule.bucket in (bucket, EVERY_BUCKET)]


def _key_filters(rules: Iterable[Rule], name: str) -> frozenset[KeyFilter]:
    return frozenset(
        (pattern(rule.prefix, rule.suffix), rule.filters.regex)
        for rule in rules
        for pattern_name in rule.events
        if event_names(pattern_name) & {name, EVERY}
    )


def _all(sets: Sequence[frozenset[KeyFilter]], key: Column) -> Column:
    return reduce(operator.and_, [_matches(filters, key) for filters in dict.fromkeys(sets)])


def _matches(filters: frozenset[KeyFilter], key: Column) -> Column:
    """Return whether a filter matches; Spark compares a plain prefix and suffix without Python."""
    if (_EVERYTHING, "") in filters:
        return F.lit(True)
    plain = [one for one in filters if one[0].count(b"*") == 1 and b"?" not in one[0] and not one[1]]
    matches = [_plain(text.decode(), key) for text, _ in sorted(plain)]
    if others := sorted(filters.difference(plain)):
        matches.append(_by_python(others)(key))
    return reduce(operator.or_, matches, F.lit(False))


def _plain(pattern: str, key: Column) -> Column:
    prefix, _, suffix = pattern.partition("*")
    # Prefix and suffix must not overlap.
    return key.startswith(prefix) & key.endswith(suffix) & (F.char_length(key) >= len(prefix) + len(suffix))


def _by_python(filters: Sequence[KeyFilter]) -> Callable[[Column], Column]:
    automata = [(Automaton(text), regex) for text, regex in filters]
    compiled: dict[str, Any] = {}  # filled where the function runs, in a Python worker of Spark

    def is_matched_by(raw: bytes, regex: str) -> bool:
        if regex not in compiled:
            compiled[regex] = compile_regex(regex)
        return compiled[regex].fullmatch(raw) is not None

    def matches(key: str | None) -> bool:
        if key is None:
            return False
        raw = key.encode()
        return any(automaton.match(raw) and (not regex or is_matched_by(raw, regex)) for automaton, regex in automata)

    return F.udf(matches, BooleanType(), useArrow=False)
