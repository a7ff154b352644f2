"""Filters of a rule beside prefix and suffix: those of Ceph RGW (regular expression, metadata, tags), and the size.

Metadata, tags and size are compared with what the event carries. A filter on something that it does not carry does not
match.

A key is matched with many regular expressions at once. An automaton takes microseconds for most keys, whatever the
number of its expressions. Expressions and keys can be written for which each byte leads to another state of it; then
each expression is matched by itself, without states that are kept, which takes a few nanoseconds for each byte and
instruction: a fifth of what an automaton takes. How many instructions a key can meet is bounded
(`app.rules.matching.check_expressions`). Of the threads of a process only one goes on with such a key at a time, so
that others are not slowed down.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import re2

from app.config.errors import BadSettings, BadValue, Problem
from app.config.fields.field_types import Size, written_size

MAX_REGEX_BYTES = 1024
MAX_MATCHED_BYTES = 1024  # of a key that an expression matches: S3 has no longer ones
MAX_PROGRAMS = 40_000  # instructions of all expressions that a key is compared with
MAX_PAIRS = 50
MAX_NAME = 256  # characters of the name of a tag, or of a metadata entry
MAX_VALUE = 2048  # characters
MAX_SIZE = 2**53  # bytes; JSON has no greater whole number that every program reads exactly
_MAX_PROGRAM = 4000  # instructions of one expression; bounds the time that a key takes
_TOO_LARGE = "pattern too large"  # RE2's words for a program that `_MAX_MEMORY` has no room for
_MAX_MEMORY = 1 << 20  # bytes that the automata of one expression may use
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNWRITABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_META = re.compile(r"[\\.^$*+?{}\[\]|()]")
_SIZE = Size(0, MAX_SIZE)


class Pairs(dict[str, str]):
    """Names with their values, in the client's order, which makes no difference to equality. Never change one."""

    __slots__ = ()

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none, because it can be changed
        return hash(frozenset(self.items()))


NO_PAIRS = Pairs()


@dataclass(frozen=True, kw_only=True, slots=True)
class Filters:
    """What an event must have beside the prefix and suffix of its key. Empty filters are true of every event.

    `regex` must match the whole decoded key, in RE2's syntax; a key of more than 1,024 bytes matches none. The event
    must carry each entry of `metadata` and each of `tags` with an equal value, and a size in bytes between `min_size`
    and `max_size`, both included.
    """

    regex: str = ""
    metadata: Pairs = NO_PAIRS
    tags: Pairs = NO_PAIRS
    min_size: int | None = None
    max_size: int | None = None

    def __bool__(self) -> bool:
        return bool(self.members)

    @property
    def members(self) -> dict[str, Any]:
        """The filters that are set, by name, as JSON has them: `parse_filters` reads them."""
        values = {name: getattr(self, name) for name in MEMBERS}
        return {name: value for name, value in values.items() if value not in ("", NO_PAIRS, None)}

    @property
    def needs_record(self) -> bool:
        """Whether the key alone does not decide: metadata, tags or the size do too."""
        return bool(self.members.keys() - {"regex"})

    @property
    def words(self) -> list[str]:
        """The filters that are set, as a person reads them: `size>=1MiB`, `tag team=blue`."""
        words = [f"regex {self.regex}"] if self.regex else []
        words += [f"metadata {name}={value}" for name, value in self.metadata.items()]
        words += [f"tag {name}={value}" for name, value in self.tags.items()]
        words += [f"size>={written_size(self.min_size)}"] if self.min_size is not None else []
        return words + ([f"size<={written_size(self.max_size)}"] if self.max_size is not None else [])


NO_FILTERS = Filters()


def parse_filters(members: Mapping[str, Any]) -> Filters:
    """Parse the filters among the members of a rule in JSON; null is none. Raises `BadSettings`.

    A size is a number of bytes, or a text such as `1MiB`. What the values mean is checked by `filter_problems`.
    """
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for name, parse in _PARSERS.items():
        value = members.get(name)
        if value is None:
            continue
        try:
            values[name] = parse(value)
        except BadValue as error:
            problems.append(Problem(name, "", error.problem, error.hint))
    if problems:
        raise BadSettings(problems)
    return Filters(**values)


def filter_problems(filters: Filters) -> Iterator[Problem]:
    """Yield the problems of filters, each with the name of its member."""
    if filters.regex:
        try:
            compile_regex(filters.regex)
        except BadValue as error:
            yield Problem("regex", _shown(filters.regex), error.problem, error.hint)
        else:
            if control := _UNWRITABLE.search(filters.regex):
                hint = f"write it as \\x{ord(control[0]):02x}"
                yield Problem("regex", filters.regex, "contains a control character that XML cannot hold", hint)
    yield from _pair_problems("metadata", filters.metadata)
    yield from _pair_problems("tags", filters.tags)
    if len({name.lower() for name in filters.metadata}) < len(filters.metadata):
        yield Problem("metadata", "", "has a name twice", "upper and lower case make no difference in these names")
    sizes = {"min_size": filters.min_size, "max_size": filters.max_size}
    for name, size in sizes.items():
        if size is not None and not 0 <= size <= MAX_SIZE:
            yield Problem(name, str(size), "is out of range", f"give bytes from 0 to {MAX_SIZE}")
    if filters.min_size is not None and filters.max_size is not None and filters.min_size > filters.max_size:
        yield Problem("min_size", str(filters.min_size), "is more than max_size", "no object has such a size")


def compile_regex(text: str, memory: int = _MAX_MEMORY) -> Any:
    """Compile a regular expression; `fullmatch` of the result matches the bytes of a key. Raises `BadValue`.

    It uses up to `memory` bytes, most of them to match some keys faster.

    RE2 does not backtrack: a match takes time in proportion to the key's length and the expression's instructions, both
    of which are bounded, whatever they are.
    """
    try:
        length = len(text.encode())
    except UnicodeEncodeError:
        raise BadValue("is not text", "write it as UTF-8") from None
    if length > MAX_REGEX_BYTES:
        raise BadValue("is too long", f"use at most {MAX_REGEX_BYTES} bytes")
    if "\x00" in text:
        raise BadValue("contains a NUL", "no key can match it; leave it out")
    try:
        compiled = re2.compile(text, regex_options(memory))
    except re2.error as error:
        reason = _reason(error)
        if not reason.startswith(_TOO_LARGE):
            hint = "RE2 has neither look-around nor back-references"
            raise BadValue(f"is not a regular expression: {_shown(reason)}", hint) from None
    else:
        if compiled.programsize <= _MAX_PROGRAM:
            return compiled
    raise BadValue("is too complex", "use fewer or smaller repetitions and character classes")


def regex_options(memory: int) -> Any:
    """Return RE2's options for expressions that may use so many bytes."""
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory
    return options


@lru_cache(maxsize=10_000)
def regex_size(text: str) -> int:
    """Return the instructions of a regular expression, in proportion to which a key takes time; 0 if it is invalid."""
    try:
        return int(compile_regex(text).programsize)
    except BadValue:
        return 0


def literal_beginning(regex: str) -> str:
    """Return a text with which every key that the expression matches begins; "" if there is none at first sight."""
    if "|" in regex:
        return ""
    text = regex.removeprefix("^")
    literal = _META.split(text, maxsplit=1)[0]
    # The last character may be absent if it is repeated: also beyond what RE2 does not count as a part, such as flags.
    may_be_absent = text.startswith(("*", "?", "+", "{", "(?", "\\Q\\E"), len(literal))
    return literal[:-1] if may_be_absent else literal


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else ""
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def _pair_problems(member: str, pairs: Pairs) -> Iterator[Problem]:
    if len(pairs) > MAX_PAIRS:
        yield Problem(member, "", f"has {len(pairs)} entries", f"use at most {MAX_PAIRS}")
    for name, value in pairs.items():
        if not name:
            yield Problem(member, "", "has an entry without a name", "write NAME=VALUE")
        for text, longest in ((name, MAX_NAME), (value, MAX_VALUE)):
            if len(text) > longest:
                yield Problem(member, _shown(text), f"has {len(text)} characters", f"use at most {longest}")
            if _CONTROL.search(text) or _shown(text) != text:
                yield Problem(member, _shown(text), "has a character that is not allowed", "write printable text")


def _shown(text: str) -> str:
    """Return the text without what UTF-8 cannot encode, so that an error with it can be sent and logged."""
    return text.encode("utf-8", "replace").decode()


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise BadValue("is not text", "put it in quotes")
    return value


def _parse_pairs(value: object) -> Pairs:
    if not isinstance(value, Mapping):
        raise BadValue("is not a mapping", "write names and values")
    if not all(isinstance(text, str) for pair in value.items() for text in pair):
        raise BadValue("has a value that is not text", "put names and values in quotes")
    return Pairs(value)


def _parse_size(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise BadValue("is not a size", "give bytes, or text such as 1MiB")
    return _SIZE.parse(value)


_PARSERS: Mapping[str, Callable[[object], Any]] = MappingProxyType(
    {
        "regex": _parse_text,
        "metadata": _parse_pairs,
        "tags": _parse_pairs,
        "min_size": _parse_size,
        "max_size": _parse_size,
    }
)
MEMBERS = tuple(_PARSERS)


log = logging.getLogger("bucketwire.rules")

_TOGETHER = 250  # expressions of one automaton
_INSTRUCTIONS = 2_000  # of one automaton, unless it has one expression: bounds the time between two looks at the clock
_MEMORY = 1 << 24  # bytes that an automaton of so many expressions may use, whatever the keys are
_MIN_MEMORY = 1 << 20  # that one of few expressions may use
# That an expression by itself may use: enough for its program, and too few to keep states for long.
_ALONE_MEMORY, _ALONE_BYTES = 1 << 14, 128  # and so many for each instruction
_FREE_SECONDS = 0.02  # of the processor that an event may use without regard to others, and by automata
_BUSY_SECONDS = 0.1  # for which a thread that may not wait waits for another one's costly key
_EVERYTHING = r"(?s)\C*"  # matches every key, so that its absence shows that the automaton has no room

one_at_a_time = threading.Lock()  # held by the thread that goes on with a costly key
_own = threading.local()


class MatchingBusy(Exception):
    """A key is costly to match while another one is, and the caller does not want to wait."""


class _NotWaiting:
    def __enter__(self) -> None:
        _own.is_hurried = True

    def __exit__(self, *_error: object) -> None:
        _own.is_hurried = False


# Have `matches` raise `MatchingBusy` in this thread instead of waiting for others; until the block ends.
not_waiting = _NotWaiting()


@dataclass(slots=True)
class Effort:
    """How many seconds of the processor the expressions for one event have taken."""

    seconds: float = 0.0

    @property
    def is_great(self) -> bool:
        """Whether automata were slow for the event's key."""
        return self.seconds > _FREE_SECONDS

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Measure the block, and let it wait for other threads if much was spent already. Raises `MatchingBusy`."""
        waits = self.is_great
        if waits and not one_at_a_time.acquire(timeout=_BUSY_SECONDS if getattr(_own, "is_hurried", False) else -1):
            raise MatchingBusy("another event is being compared with costly regular expressions; try again")
        began = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - began
            if waits:
                one_at_a_time.release()


class Expressions:
    """Regular expressions that are tried for the same keys. Threads may share it when all are added.

    A thousand of them cost about as much as one, and their memory is bounded together. They are compiled for the first
    key: rules are read while all appends wait, and most of many expressions are never needed.
    """

    __slots__ = ("_compiled", "_texts")

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._compiled: list[_Together] | None = None

    def add(self, text: str) -> None:
        """Add an expression."""
        self._texts[text] = None

    def matches(self, key: bytes, effort: Effort | None = None) -> Collection[str]:
        """Return those that match the whole decoded key, none for one that is too long. Raises `MatchingBusy`."""
        if len(key) > MAX_MATCHED_BYTES:
            return ()
        compiled = self._compiled
        if compiled is None:
            # Threads that run this at the same time compile equal automata, and any of them may be kept.
            compiled = self._compiled = [_Together(part) for part in _parts(self._texts)]
        effort = effort or Effort()
        matching: list[str] = []
        for part in compiled:
            with effort.spending():
                matching += part.matches_alone(key) if effort.is_great else part.matches(key)
        return matching if len(compiled) == 1 else set(matching)


def _parts(texts: Iterable[str]) -> Iterator[Sequence[str]]:
    """Divide expressions for several automata."""
    part: list[str] = []
    size = 0
    for text in texts:
        if part and (len(part) == _TOGETHER or size + regex_size(text) > _INSTRUCTIONS):
            yield part
            part, size = [], 0
        part.append(text)
        size += regex_size(text)
    if part:
        yield part


class _Alone:
    """One expression. An invalid one matches nothing."""

    __slots__ = ("_compiled", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._compiled: Any = compile_regex(text, _ALONE_MEMORY + _ALONE_BYTES * regex_size(text))
        except BadValue as error:
            self._compiled = None
            _log_invalid(text, error.problem)

    def matches(self, key: bytes) -> Collection[str]:
        return (self._text,) if self._compiled is not None and self._compiled.fullmatch(key) is not None else ()


class _Together:
    """Expressions that one automaton matches."""

    __slots__ = ("_alone", "_everything", "_set", "_texts")

    def __init__(self, texts: Sequence[str]) -> None:
        memory = min(_MEMORY, max(_MIN_MEMORY, _MEMORY * len(texts) // _TOGETHER))
        self._set: Any = re2.Set.FullMatchSet(regex_options(memory))
        self._texts: dict[int, str] = {}
        for text in texts:
            try:
                self._texts[self._set.Add(text)] = text
            except (re2.error, UnicodeEncodeError) as error:
                _log_invalid(text, error)
        self._everything = self._set.Add(_EVERYTHING)
        try:
            self._set.Compile()
        except re2.error:  # there is no room for the program
            self._set = None
        self._alone: list[_Alone] | None = None

    def matches(self, key: bytes) -> Collection[str]:
        places = self._set.Match(key) if self._set is not None else ()
        if self._everything in places:
            return [self._texts[place] for place in places if place != self._everything]
        return self.matches_alone(key)

    def matches_alone(self, key: bytes) -> Collection[str]:
        """Return those that match the key, of which each is tried by itself."""
        if self._alone is None:
            self._alone = [_Alone(text) for text in self._texts.values()]
        return [text for one in self._alone for text in one.matches(key)]


def _log_invalid(text: str, reason: object) -> None:
    # It was valid when it was stored. One rule must not keep every event from being recorded.
    log.error("a rule matches nothing: its regex %r %s", text[:80], reason)
