"""A rule and what makes it one (reference §2.1 and §2.3)."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from app.config.arn import TargetId
from app.config.errors import BadSettings, Problem
from app.events.names import UnknownEventName, expand, nearest

EVERY_BUCKET = "*"
_LONGEST_FILTER = 1024
_LONGEST_NAME = 255
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class BadRules(BadSettings):
    """Rules that cannot be taken, with every problem they have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Events of a bucket that go to a target. Event names stand as they were given, aggregates included.

    Making one checks nothing: `check` does, before a rule is taken.
    """

    bucket: str
    events: tuple[str, ...]
    target: TargetId
    prefix: str = ""
    suffix: str = ""
    rule_id: str = ""


def event_names(given: str) -> frozenset[str]:
    """The names that a rule's event stands for, `*` for itself; none for a name that is not known."""
    try:
        return expand(given)
    except UnknownEventName:
        return frozenset()


def check(rules: Sequence[Rule]) -> None:
    """Refuse rules that cannot be taken: each by itself, and of two that are equal in all members the second.

    Rules that differ only in their ids, or whose filters overlap, are fine (as MinIO: §2.3). Raises `BadRules`.
    """
    problems: list[Problem] = []
    seen = set()
    for number, rule in enumerate(rules, 1):
        place = f"rule {number}: " if len(rules) > 1 else ""
        problems += [replace(problem, key=place + problem.key) for problem in problems_of(rule)]
        if rule in seen:
            problems.append(Problem(f"rule {number}", "", "is the same as one before it", "leave one of them out"))
        seen.add(rule)
    if problems:
        raise BadRules(problems)


def problems_of(rule: Rule) -> Iterator[Problem]:
    """What is wrong with one rule."""
    yield from _bucket(rule.bucket)
    yield from _events(rule.events)
    yield from _filter("prefix", rule.prefix)
    yield from _filter("suffix", rule.suffix)
    if len(rule.rule_id) > _LONGEST_NAME or _CONTROL.search(rule.rule_id):
        yield Problem("id", rule.rule_id, "is no rule's id", f"up to {_LONGEST_NAME} printable characters")


def _bucket(bucket: str) -> Iterator[Problem]:
    if bucket != EVERY_BUCKET and (
        not bucket
        or len(bucket) > _LONGEST_NAME
        or re.search(r"[\s\x00-\x1f\x7f/\\*?]", bucket)
        or not bucket.strip(".")
    ):
        yield Problem(
            "bucket",
            bucket,
            "is no bucket's name" if bucket else "is missing",
            "write the name of one bucket, or * alone for every bucket",
        )


def _events(events: Iterable[str]) -> Iterator[Problem]:
    counted = Counter(events)
    if not counted:
        yield Problem("events", "", "are missing", "name at least one, such as s3:ObjectCreated:*, or * for all")
    for name, count in counted.items():
        if not event_names(name):
            close = nearest(name)
            hint = f"did you mean {close}?" if close else "* asks for every event"
            yield Problem("events", name, "is no event", hint)
        if count > 1:
            yield Problem("events", name, "is there twice", "name it once")


def _filter(field: str, value: str) -> Iterator[Problem]:
    """What MinIO means to check and does not through its XML (§2.3, §10)."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        yield Problem(field, "", "is not text", "write it as UTF-8")
        return
    if size > _LONGEST_FILTER:
        yield Problem(field, value, "is too long", f"{_LONGEST_FILTER} bytes can be had")
    if "\\" in value or "\x00" in value:
        yield Problem(field, value, "holds a backslash or a NUL", "no filter can match them; leave them out")
    if any(segment in (".", "..") for segment in value.split("/")):
        yield Problem(field, value, "has . or .. between slashes", "keys are not paths; write them as they are")
