"""Match a key with many regular expressions at once, and with costly ones by themselves, in one thread at a time.

An automaton takes microseconds for most keys, whatever the number of its expressions. Expressions and keys can be
written for which each byte leads to another state of it; then each expression is matched by itself, without states that
are kept, which takes a few nanoseconds for each byte and instruction: a fifth of what an automaton takes. How many
instructions a key can meet is bounded (`check_expressions`). Of the threads of a process only one goes on with such a
key at a time, so that others are not slowed down.
"""

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import re2

from app.config.errors import BadValue
from app.rules.filters import MAX_MATCHED_BYTES, compile_regex, regex_options, regex_size

_log = logging.getLogger("bucketwire.rules")

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
    _log.error("a rule matches nothing: its regex %r %s", text[:80], reason)
