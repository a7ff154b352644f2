"""Whether the tests have to be compiled before several processes read them: `make test` asks it.

pytest rewrites each test's assertions as it compiles it, which takes longer than to run many a test, and each of its
processes would do it at the same time as the others. But one that collects all tests, only to find that nothing has
changed, takes six seconds.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import version
from pathlib import Path

TOP = Path(__file__).parents[2]
FEW = 10  # files that each process may as well compile for itself


def stale(top: Path) -> list[Path]:
    """The tests and fixtures below `top` that have changed since pytest compiled them; all, if it does so otherwise."""
    tag = f"{sys.implementation.cache_tag}-pytest-{version('pytest')}"
    files = [file for name in ("test_*.py", "conftest.py") for file in top.rglob(name)]
    return [file for file in files if not _is_of(file.parent / "__pycache__" / f"{file.stem}.{tag}.pyc", file)]


def _is_of(compiled: Path, source: Path) -> bool:
    try:
        head = compiled.read_bytes()[:16]
    except OSError:
        return False
    # As the standard library has it: which Python it is for, that the source's hash counts, and that hash.
    return head == importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + importlib.util.source_hash(source.read_bytes())


if __name__ == "__main__":
    sys.exit(len(stale(TOP / "tests")) > FEW)
