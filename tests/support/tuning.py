"""Change a policy for one test."""

from types import ModuleType
from typing import Any

import pytest


def tune(monkeypatch: pytest.MonkeyPatch, module: ModuleType, policy: str, **values: Any) -> None:
    """Have a module use a policy with other values."""
    monkeypatch.setattr(module, policy, getattr(module, policy)._replace(**values))
