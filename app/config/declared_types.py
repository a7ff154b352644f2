"""The types of targets, or of sources, by their names: a module of a folder declares each."""

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import TypeVar

from app.config.errors import BadSettings, Problem, did_you_mean
from app.config.fields.fields import Declared

D = TypeVar("D", bound=Declared)
_SHARED = frozenset({"base", "registry"})  # modules of no type, as those are whose names have a `_`


class DeclaredTypes(Mapping[str, type[D]]):
    """The settings classes of a package's types, sorted; each is imported when it is asked for.

    So a command that shows two targets does not pay for the declarations of all types. `noun` says of what they are.
    """

    def __init__(self, noun: str, package: ModuleType, registered: Mapping[str, type[D]]) -> None:
        self._noun = noun
        modules = (module.name for module in pkgutil.iter_modules(package.__path__))
        self._names = dict.fromkeys(sorted(name for name in modules if "_" not in name and name not in _SHARED))
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
