"""The types of targets and of sources by their names: a module of `app.config.targets` or `app.config.sources` each."""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from app.config import sources, targets
from app.config.errors import BadSettings, Problem, did_you_mean
from app.config.fields.fields import Declared
from app.config.sources.base import REGISTERED_SOURCES, SourceSettings
from app.config.targets.base import REGISTERED_TYPES, NamespaceSettings, TargetSettings

D = TypeVar("D", bound=Declared)
_SHARED = "base"  # the module of no type


class DeclaredTypes(Mapping[str, type[D]]):
    """The settings classes of a package's types, sorted; each is imported when it is asked for.

    So a command that shows two targets does not pay for the declarations of all types. `noun` says of what they are.
    """

    def __init__(self, noun: str, package: ModuleType, registered: Mapping[str, type[D]]) -> None:
        self._noun = noun
        modules = (module.name for module in pkgutil.iter_modules(package.__path__))
        self._names = dict.fromkeys(sorted(name for name in modules if name != _SHARED))
        self._package = package.__name__
        self._registered = registered

    def known(self, name: str) -> type[D]:
        """Return the settings class of a type. Raises `BadSettings`, which names the known types."""
        if name not in self._names:
            problem = Problem("type", name, f"is not a known {self._noun} type", did_you_mean(name, list(self)))
            raise BadSettings([problem])
        return self[name]

    def __getitem__(self, name: str) -> type[D]:
        """Return the settings class of a type."""
        if name not in self._names:
            raise KeyError(name)
        import_module(f"{self._package}.{name}")
        return self._registered[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is a type of this name, without importing it."""
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the types."""
        return iter(self._names)

    def __len__(self) -> int:
        """Return the number of types."""
        return len(self._names)


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


SOURCE_TYPES = DeclaredTypes[SourceSettings]("source", sources, REGISTERED_SOURCES)
source_type = SOURCE_TYPES.known
