"""Every target type by its name: what the modules of this folder declare."""

from collections.abc import Mapping

from app.config import targets
from app.config.declared_types import DeclaredTypes
from app.config.errors import BadSettings, Problem, did_you_mean
from app.config.targets.base import REGISTERED_TYPES, NamespaceSettings, TargetSettings

TYPES = DeclaredTypes[TargetSettings]("target", targets, REGISTERED_TYPES)
settings_type = TYPES.known


def is_namespace(type_name: str, settings: Mapping[str, str]) -> bool:
    """Return whether a target with these settings, as texts, keeps one entry for each object."""
    return issubclass(TYPES[type_name], NamespaceSettings) and settings.get("format", "namespace") == "namespace"


def sections() -> dict[str, type[TargetSettings]]:
    """Return the settings class of each section of `notify_…` text."""
    return {cls.section: cls for cls in TYPES.values()}


def section_type(section: str) -> type[TargetSettings]:
    """Return the settings class of a section, also by its type's name (`notify_postgresql`).

    Raises `BadSettings`, which names the nearest section or all of them.
    """
    known = sections()
    by_type = {f"notify_{cls.type_name}": cls for cls in TYPES.values()}
    if section in by_type:
        return by_type[section]
    if section not in known:
        raise BadSettings([Problem(section, "", "is not a known section", did_you_mean(section, list(known)))])
    return known[section]
