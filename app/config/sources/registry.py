"""Every source type by its name: what the modules of this folder declare."""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from app.config import sources
from app.config.errors import BadSettings, Problem, did_you_mean
from app.config.sources.base import REGISTERED_SOURCES, SourceSettings

for _module in pkgutil.iter_modules(sources.__path__, f"{sources.__name__}."):
    import_module(_module.name)

SOURCE_TYPES: Mapping[str, type[SourceSettings]] = MappingProxyType(
    {name: REGISTERED_SOURCES[name] for name in sorted(REGISTERED_SOURCES)}
)


def source_type(type_name: str) -> type[SourceSettings]:
    """Return the settings class of a source type. Raises `BadSettings`, which names the known types."""
    if type_name not in SOURCE_TYPES:
        hint = did_you_mean(type_name, list(SOURCE_TYPES))
        raise BadSettings([Problem("type", type_name, "is not a known source type", hint)])
    return SOURCE_TYPES[type_name]
