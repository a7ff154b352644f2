"""Refuse regular expressions that take too long together for a key that is written for them."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping

from app.config.errors import Problem
from app.rules.filters import MAX_PROGRAMS, regex_size
from app.rules.matching import rule_pattern
from app.rules.model import EVERY_BUCKET, BadRules, Rule

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
