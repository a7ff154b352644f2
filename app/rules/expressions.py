"""Match a key with many regular expressions at once."""

import logging
from collections.abc import Collection, Sequence
from typing import Any

import re2

from app.config.errors import BadValue
from app.rules.filters import compile_regex, regex_options

log = logging.getLogger("bucketwire.rules")

_TOGETHER = 250  # expressions of one automaton
_MEMORY = 1 << 24  # bytes that such an automaton may use, whatever the keys are
_EVERYTHING = r"(?s)\C*"  # matches every key, so that its absence shows that the automaton has no room


class Expressions:
    """Regular expressions that are tried for the same keys. Threads may share it when all are added.

    A thousand of them cost about as much as one, and their memory is bounded together. They are compiled for the first
    key: rules are read while all appends wait, and most of many expressions are never needed.
    """

    __slots__ = ("_compiled", "_texts")

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._compiled: list[_Together | _Alone] | None = None

    def add(self, text: str) -> None:
        """Add an expression."""
        self._texts[text] = None

    def matches(self, key: bytes) -> Collection[str]:
        """Return those that match the whole decoded key."""
        compiled = self._compiled
        if compiled is None:
            # Threads that run this at the same time compile equal automata, and any of them may be kept.
            texts = list(self._texts)
            parts = [texts[start : start + _TOGETHER] for start in range(0, len(texts), _TOGETHER)]
            compiled = self._compiled = [_Together(part) if len(part) > 1 else _Alone(*part) for part in parts]
        if len(compiled) == 1:
            return compiled[0].matches(key)
        return {text for part in compiled for text in part.matches(key)}


class _Alone:
    """One expression. An invalid one matches nothing."""

    __slots__ = ("_compiled", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        try:
            self._compiled: Any = compile_regex(text)
        except BadValue as error:
            self._compiled = None
            _log_invalid(text, error.problem)

    def matches(self, key: bytes) -> Collection[str]:
        return (self._text,) if self._compiled is not None and self._compiled.fullmatch(key) is not None else ()


class _Together:
    """Expressions that one automaton matches."""

    __slots__ = ("_alone", "_everything", "_set", "_texts")

    def __init__(self, texts: Sequence[str]) -> None:
        self._set: Any = re2.Set.FullMatchSet(regex_options(_MEMORY))
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
        if self._alone is None:
            self._alone = [_Alone(text) for text in self._texts.values()]
        return [text for one in self._alone for text in one.matches(key)]


def _log_invalid(text: str, reason: object) -> None:
    # It was valid when it was stored. One rule must not keep every event from being recorded.
    log.error("a rule matches nothing: its regex %r %s", text[:80], reason)
