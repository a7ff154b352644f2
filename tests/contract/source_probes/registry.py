"""Every probe by the name of its module in this folder."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.contract import source_probes
from tests.contract.source_probes.base import SourceProbe

_MODULES = [module.name for module in pkgutil.iter_modules(source_probes.__path__)]
SOURCE_PROBES: dict[str, type[SourceProbe]] = {
    name: import_module(f"{source_probes.__name__}.{name}").PROBE
    for name in _MODULES
    if name not in ("base", "registry")
}
