"""What is wrong with refused settings."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from app.config.target_settings import BadSettings, load
from app.config.targets.base import TargetSettings


def problems(
    of: str | type[TargetSettings], values: Mapping[str, object], environ: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The problems of settings of a type, by key."""
    with pytest.raises(BadSettings) as caught:
        load(of, values, environ or {})
    return {problem.key: str(problem) for problem in caught.value.problems}
