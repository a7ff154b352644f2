"""Slices of values, as many as one statement takes."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

_Value = TypeVar("_Value")
_MAX_VALUES = 1000  # of one IN (…): far below every database's limit


def chunks(values: Sequence[_Value], most: int = _MAX_VALUES) -> Iterator[Sequence[_Value]]:
    """Yield slices of at most so many values; without a number short enough for one IN (…)."""
    for start in range(0, len(values), most):
        yield values[start : start + most]
