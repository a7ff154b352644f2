"""Every way of using a target by its name, which begins with the type: what the modules of this folder name."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.contract import probes
from tests.contract.probes.base import Probe

_MODULES = [module.name for module in pkgutil.iter_modules(probes.__path__) if module.name != "registry"]
PROBES: dict[str, type[Probe]] = {
    name: probe
    for module in _MODULES
    for name, probe in getattr(import_module(f"{probes.__name__}.{module}"), "WAYS", {}).items()
}
