"""One thread at a time parses Python, as Python before 3.11.8 and 3.12.2 needs it (CPython issue 106905).

pytest parses a failed test's file to show the statement, and a thread that logs a traceback parses its lines. Where a
garbage collection lets them change places, one of them gets a SystemError: "AST constructor recursion depth mismatch".
Within pytest that ends the process with all the tests that it had left.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from typing import Any

_parse = ast.parse
_lock = threading.RLock()


def _in_turn(*arguments: Any, **options: Any) -> Any:
    with _lock:
        return _parse(*arguments, **options)


def _forked() -> None:
    """Begin with a free lock, which a thread that is not in this child may have held."""
    global _lock  # noqa: PLW0603 - as the standard library does it
    _lock = threading.RLock()


def take_turns() -> None:
    """Have every caller of `ast.parse` take turns, where Python needs it."""
    if sys.version_info < (3, 11, 8) or (3, 12) <= sys.version_info < (3, 12, 2):
        os.register_at_fork(after_in_child=_forked)
        ast.parse = _in_turn
