"""Every source type by its name: what the modules of this folder declare."""

from collections.abc import Mapping

from app.config import sources
from app.config.declared_types import DeclaredTypes
from app.config.errors import BadSettings, Problem, did_you_mean
from app.config.sources.base import REGISTERED_SOURCES, SourceSettings

SOURCE_TYPES: Mapping[str, type[SourceSettings]] = DeclaredTypes(sources, REGISTERED_SOURCES)


def source_type(type_name: str) -> type[SourceSettings]:
    """Return the settings class of a source type. Raises `BadSettings`, which names the known types."""
    if type_name not in SOURCE_TYPES:
        hint = did_you_mean(type_name, list(SOURCE_TYPES))
        raise BadSettings([Problem("type", type_name, "is not a known source type", hint)])
    return SOURCE_TYPES[type_name]
