"""SQLAlchemy's statements, compiled once for all engines of a test process.

An engine keeps what it has compiled for itself, and nearly every test has engines of its own: it would spend more time
on compiling its statements than on executing them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.util import LRUCache

_MAX_STATEMENTS = 20_000


def share() -> None:
    """Let every engine take part."""
    compiled = _Compiled(_MAX_STATEMENTS)
    # Not in `__init__`, by whose arguments SQLAlchemy knows an engine's options.
    Engine._compiled_cache = property(lambda _: compiled, lambda *_: None)  # type: ignore[assignment, method-assign]


class _Compiled(LRUCache[Any, Any]):
    """By statement and kind of dialect, where an engine's own cache has its one dialect."""

    __slots__ = ()

    def get(self, key: Any, default: Any = None) -> Any:
        return super().get((_kind(key[0]), *key[1:]), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__((_kind(key[0]), *key[1:]), value)


def _kind(dialect: Dialect) -> tuple[Any, ...]:
    """What a dialect's compiler goes by: the driver, and what it found out about its server."""
    found = ("server_version_info", "is_mariadb", "_backslash_escapes", "paramstyle")
    return (type(dialect), *(getattr(dialect, name, None) for name in found))
