"""Names of what tests make on servers that they share."""

from __future__ import annotations

import itertools

_numbers = itertools.count(1)


def unused(name: str) -> str:
    """A name that no earlier run of a test has used: a test that is repeated finds the same servers."""
    return f"{name}-{next(_numbers)}"
