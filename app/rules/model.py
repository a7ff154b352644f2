"""Rules, and the checks that they must pass (reference §2.1 and §2.3)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from app.config.arn import TargetId
from app.config.errors import BadSettings, Problem
from app.events.names import UnknownEventName, expand, nearest
from app.events.normalize import MAX_KEY_BYTES
from app.events.own_events import SERVICE_BUCKET
from app.rules.filters import NO_FILTERS, Filters, filter_problems

EVERY_BUCKET = "*"
PREFIX_AND_SUFFIX = ("prefix", "suffix")
_SERVICE = "bucketwire:"
_MAX_BUCKET_CHARACTERS = 255
_MAX_ID_CHARACTERS = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class BadRules(BadSettings):
    """Rules that are refused, with every problem."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Events of a bucket that are sent to a target. Event names are kept as they were given, aggregates included.

    The constructor checks nothing; call `check` before storing a rule. `filter_names` are the names of the filters of
    the key as the client ordered them, those of empty values too; it makes no rule another one.
    """

    bucket: str
    events: tuple[str, ...]
    target: TargetId
    prefix: str = ""
    suffix: str = ""
    rule_id: str = ""
    filters: Filters = NO_FILTERS
    filter_names: tuple[str, ...] = field(default=(), compare=False)

    @property
    def key_filters(self) -> dict[str, str]:
        """The filters of the key by name, in the client's order; if that is not known, those that are not empty."""
        values = {"prefix": self.prefix, "suffix": self.suffix, "regex": self.filters.regex}
        not_empty = [name for name, value in values.items() if value]
        return {name: values[name] for name in (*self.filter_names, *not_empty)}


def event_names(name: str) -> frozenset[str]:
    """Return the event names that a rule's name includes, `*` for `*`; none for an unknown name."""
    try:
        return expand(name)
    except UnknownEventName:
        return frozenset()


def check(rules: Sequence[Rule]) -> None:
    """Check each rule, and that no two rules are equal in all members. Raises `BadRules`.

    Rules that differ only in their ids, or whose filters overlap, are allowed, as in MinIO (§2.3) and Ceph; AWS refuses
    overlapping ones. A target gets an event once, however many of its rules match.
    """
    problems: list[Problem] = []
    seen = set()
    for number, rule in enumerate(rules, 1):
        prefix = f"rule {number}: " if len(rules) > 1 else ""
        problems += [replace(problem, key=prefix + problem.key) for problem in problems_of(rule)]
        if rule in seen:
            problems.append(Problem(f"rule {number}", "", "repeats an earlier rule", "leave one of them out"))
        seen.add(rule)
    if problems:
        raise BadRules(problems)


def problems_of(rule: Rule) -> Iterator[Problem]:
    """Yield the problems of one rule."""
    yield from _check_bucket(rule.bucket)
    yield from _check_events(rule.events)
    if rule.bucket != SERVICE_BUCKET and rule.events and all(name.startswith(_SERVICE) for name in rule.events):
        yield Problem("bucket", rule.bucket, "has no such events", f"events about the service are in {SERVICE_BUCKET}")
    # A prefix may end, and a suffix begin, within a segment: logs/. matches logs/.hidden.
    yield from _check_filter("prefix", rule.prefix, rule.prefix.split("/")[:-1])
    yield from _check_filter("suffix", rule.suffix, rule.suffix.split("/")[1:])
    yield from filter_problems(rule.filters)
    if len(rule.rule_id) > _MAX_ID_CHARACTERS or _CONTROL.search(rule.rule_id):
        yield Problem(
            "id", rule.rule_id, "is not a valid rule id", f"use up to {_MAX_ID_CHARACTERS} printable characters"
        )


def _check_bucket(bucket: str) -> Iterator[Problem]:
    if bucket != EVERY_BUCKET and (
        not bucket
        or len(bucket) > _MAX_BUCKET_CHARACTERS
        or re.search(r"[\s\x00-\x1f\x7f/\\*?]", bucket)
        or not bucket.strip(".")
    ):
        yield Problem(
            "bucket",
            bucket,
            "is not a bucket name" if bucket else "is missing",
            "write the name of one bucket, or * alone for every bucket",
        )


def _check_events(events: Iterable[str]) -> Iterator[Problem]:
    counts = Counter(events)
    if not counts:
        yield Problem("events", "", "are missing", "name at least one, such as s3:ObjectCreated:*, or * for all")
    for name, count in counts.items():
        if not event_names(name):
            close = nearest(name)
            hint = f"did you mean {close}?" if close else "write * for every event"
            yield Problem("events", name, "is not an event name", hint)
        if count > 1:
            yield Problem("events", name, "is given twice", "give it once")


def _check_filter(name: str, value: str, segments: Iterable[str]) -> Iterator[Problem]:
    """Refuse a filter that can match no key; `segments` are its complete path segments.

    MinIO intends to check this, and more, but does not in its XML (§2.3, §10).
    """
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        yield Problem(name, "", "is not text", "write it as UTF-8")
        return
    if size > MAX_KEY_BYTES:
        yield Problem(name, value, "is too long", f"use at most {MAX_KEY_BYTES} bytes, as a key has")
    if "\x00" in value:
        yield Problem(name, value, "contains a NUL", "no key can match it; leave it out")
    if any(segment in (".", "..") for segment in segments):
        yield Problem(name, value, "contains . or .. as a path segment", "keys are not paths; write the key literally")
