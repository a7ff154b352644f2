"""Which tests `make test` runs, tier 2, and which only `make nightly` and `make test-all` besides, tier 3.

At a test of the night stands the marker `nightly` with what stays on every change: `nightly(stays)` for one that can
fail alone, but costs too much, and `nightly(stays, when=...)` for those parameters for which the function returns true,
since they run the same code of ours over the same statements, or over the same connection, as those that stay. Of the
outbox, tests/support/databases.py has markers for those databases that stay.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest

USUAL, ALL = 2, 3
LEFT_OUT = pytest.StashKey[list[pytest.Item]]()  # of what was collected, what the chosen tier does not run
_OF_RELEASES = ("heavy", "sender")


def tier(item: pytest.Item) -> int:
    """The lowest tier that runs a test."""
    if any(map(item.get_closest_marker, _OF_RELEASES)):
        return ALL
    given = parameters(item)
    if any(moves(marker, given) for marker in item.iter_markers("nightly")):
        return ALL
    databases = item.get_closest_marker("databases")
    database = given.get("outbox_url", given.get("empty_url"))
    return ALL if databases and database and database not in databases.args else USUAL


def parameters(item: pytest.Item) -> Mapping[str, Any]:
    """The values of a test's parameters, and of those of its fixtures, by their names."""
    return item.callspec.params if hasattr(item, "callspec") else {}


def moves(marker: pytest.Mark, given: Mapping[str, Any]) -> bool:
    """Whether a marker leaves a test with these parameters to the night; one of other parameters does not."""
    _, when = read(marker)
    if when is None:
        return True
    names = inspect.signature(when).parameters
    return names.keys() <= given.keys() and bool(when(*(given[name] for name in names)))


def read(marker: pytest.Mark) -> tuple[str, Callable[..., object] | None]:
    """Return what stays, and for which parameters a marker holds."""

    def given(stays: str, *, when: Callable[..., object] | None = None) -> tuple[str, Callable[..., object] | None]:
        return stays, when

    return given(*marker.args, **marker.kwargs)
