"""Every regular expression of the product needs no more than linear time for tens of KiB of hostile text.

Python's `re` backtracks: a pattern that is quadratic takes a minute for a text of that size, during which a process
answers nobody. The patterns are read from the source; the texts are made from each pattern's own parts.
"""

import ast
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.properties import times

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from re import _constants as constants  # type: ignore[attr-defined]  # private; how `re` parses a pattern
    from re import _parser as parser  # type: ignore[attr-defined]  # likewise

_ROOT = Path(__file__).parents[2]
_PACKAGES = ("app", "workers", "spark_jobs", "bucketwire")
_SIZE = times(32_768, 65_536)
_LIMIT = 0.3  # processor seconds for one text; what is linear takes milliseconds, what is quadratic many seconds
_METHODS = ("match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer")
_CALL = re.compile(rf"\w\.(?:{'|'.join((*_METHODS, 'compile'))})\(")  # without it a file need not be parsed
_CHARACTERS = "x1 \t-.=/\xe9\x00"
_MAX_PARTS = 8  # of one pattern
_PAIRED = times(5, 8)  # of them, whose pairs are repeated as well


class _Pattern(NamedTuple):
    where: str
    pattern: re.Pattern[Any]
    method: str


class _TooSlow(Exception):
    pass


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for package in _PACKAGES:
        for file in sorted((_ROOT / package).rglob("*.py")):
            if _CALL.search(text := file.read_text()):
                yield ".".join(file.relative_to(_ROOT).with_suffix("").parts), ast.parse(text)


def _calls() -> Iterator[tuple[str, ast.Module, ast.Call, str, str]]:
    """Yield the source's calls of methods of names: module, its tree, the call, the name and the method."""
    for module, tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                receiver = node.func.value
                if isinstance(receiver, ast.Name) and node.func.attr in (*_METHODS, "compile"):
                    yield module, tree, node, receiver.id, node.func.attr


@cache
def _patterns() -> Sequence[_Pattern]:
    """Return every pattern of the source with each method by which it is used."""
    methods: dict[str, set[str]] = {}  # by the name of a compiled pattern, in any module that may import it
    used: list[tuple[str, str, re.Pattern[Any]]] = []
    for module, tree, call, name, method in _calls():
        if name != "re":
            methods.setdefault(name, set()).add(method)
            continue
        text = _value(module, call.args[0])
        flags = call.args[1] if method == "compile" and len(call.args) > 1 else None
        flags = next((each.value for each in call.keywords if each.arg == "flags"), flags)
        if text is not None:
            pattern = re.compile(text, _value(module, flags) if flags is not None else 0)
            used.append((f"{module}:{call.lineno}", _name_of(tree, call) if method == "compile" else method, pattern))
    found: dict[tuple[Any, int, str], _Pattern] = {}
    for where, name, pattern in used:
        for method in [name] if name in _METHODS else methods.get(name, _METHODS):
            found.setdefault((pattern.pattern, pattern.flags, method), _Pattern(where, pattern, method))
    return list(found.values())


def _value(module: str, node: ast.expr) -> Any:
    """Evaluate a pattern by the names of its module; None if it depends on a function's variables."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        pass
    try:
        return eval(compile(ast.Expression(node), module, "eval"), vars(import_module(module)))  # the product's source
    except (NameError, ImportError):
        return None


def _name_of(tree: ast.Module, call: ast.Call) -> str:
    for node in tree.body:
        if isinstance(node, ast.Assign) and node.value is call and isinstance(node.targets[0], ast.Name):
            return node.targets[0].id
    return ""


def _hostile_texts(pattern: re.Pattern[Any]) -> Iterator[Any]:
    """Yield long texts that repeat the parts of a pattern, after what has to come before, and before a mismatch."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    flags = pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
    tree = parser.parse(text, flags & ~re.UNICODE)
    parts = list(dict.fromkeys(part for part in ["\n", " ", *_parts(tree), "x"] if part))[:_MAX_PARTS]
    before = list(dict.fromkeys(["", *_beginnings(tree)]))[:_MAX_PARTS]
    pairs = [one + other for one in parts[:_PAIRED] for other in parts[:_PAIRED] if one != other]
    encode: Callable[[str], Any] = str if isinstance(pattern.pattern, str) else (lambda some: some.encode("latin-1"))
    for pump in parts + pairs:
        repeated = pump * (_SIZE // len(pump))
        for beginning in before if pump in parts else before[:2]:
            for end in ("", "\x00"):
                yield encode(beginning + repeated + end)


def _parts(tree: Any) -> Iterator[str]:
    """Yield the shortest texts that the repetitions, branches and words of a pattern match."""
    yield _example(tree)
    for operation, argument in tree:
        for inner in _inner(operation, argument):
            yield _example(inner)
            yield from _parts(inner)
    yield from (_example([item]) for item in tree)


def _beginnings(tree: Any) -> Iterator[str]:
    """Yield what matches the beginning of a pattern up to each of its outer items."""
    for end in range(1, len(tree)):
        yield _example(tree[:end])


def _inner(operation: Any, argument: Any) -> list[Any]:
    if operation in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
        return [argument[2]]
    if operation is constants.SUBPATTERN:
        return [argument[3]]
    if operation is constants.BRANCH:
        return list(argument[1])
    if operation is constants.ATOMIC_GROUP:
        return [argument]
    if operation in (constants.ASSERT, constants.ASSERT_NOT):
        return [argument[1]]
    return []


def _example(tree: Any) -> str:
    made = ""
    for operation, argument in tree:
        if operation is constants.LITERAL:
            made += chr(argument)
        elif operation in (constants.NOT_LITERAL, constants.ANY):
            made += "x"
        elif operation is constants.IN:
            made += _member(argument)
        elif operation in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
            made += _example(argument[2]) * max(1, argument[0])
        elif operation is constants.BRANCH:
            made += _example(argument[1][0])
        elif operation in (constants.SUBPATTERN, constants.ATOMIC_GROUP):
            made += _example(argument[3] if operation is constants.SUBPATTERN else argument)
    return made


def _member(items: Any) -> str:
    if items[0][0] is constants.NEGATE:
        excluded = re.compile(f"[{''.join(map(_written, items[1:]))}]")
        return next((each for each in _CHARACTERS if not excluded.match(each)), "")
    operation, argument = items[0]
    if operation is constants.LITERAL:
        return chr(argument)
    if operation is constants.RANGE:
        return chr(argument[0])
    return next(each for each in _CHARACTERS if re.match(_written(items[0]), each))


def _written(item: Any) -> str:
    operation, argument = item
    if operation is constants.LITERAL:
        return re.escape(chr(argument))
    if operation is constants.RANGE:
        return f"{re.escape(chr(argument[0]))}-{re.escape(chr(argument[1]))}"
    return {
        constants.CATEGORY_SPACE: r"\s", constants.CATEGORY_NOT_SPACE: r"\S", constants.CATEGORY_WORD: r"\w",
        constants.CATEGORY_NOT_WORD: r"\W", constants.CATEGORY_DIGIT: r"\d", constants.CATEGORY_NOT_DIGIT: r"\D",
    }[argument]  # fmt: skip


def _run(pattern: re.Pattern[Any], method: str, text: Any) -> None:
    def stop(*_: Any) -> None:
        raise _TooSlow

    previous = signal.signal(signal.SIGVTALRM, stop)  # `re` looks for signals while it searches
    signal.setitimer(signal.ITIMER_VIRTUAL, _LIMIT)
    try:
        if method in ("sub", "subn"):
            getattr(pattern, method)("" if isinstance(text, str) else b"", text)
        elif method == "finditer":
            for _ in pattern.finditer(text):
                pass
        else:
            getattr(pattern, method)(text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


def _is_slow(pattern: re.Pattern[Any], method: str) -> str:
    """Return the beginning of a text for which the pattern takes too long, or nothing."""
    for text in _hostile_texts(pattern):
        try:
            _run(pattern, method, text)
        except _TooSlow:
            return f"{text[:40]!r}… {text[-10:]!r}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("package", _PACKAGES)
def test_no_regular_expression_takes_long_for_a_hostile_text(package: str) -> None:
    slow = {
        f"{where} {method}": f"{pattern.pattern!r}: {example}"
        for where, pattern, method in _patterns()
        if where.startswith(package) and (example := _is_slow(pattern, method))
    }
    assert slow == {}


@pytest.mark.slow
def test_the_test_finds_patterns_that_backtrack() -> None:
    assert len(_patterns()) > 100
    for bad in (r"(^|&)([^=&]*(?:pass|key)[^=&]*)=[^&]*", r"\s+$", r"(a|aa)+b", r"(a)=(b);(c):(t+)+$"):
        assert _is_slow(re.compile(bad), "sub"), bad
