"""Create the adapter of a target's type; its driver is imported only then.

The adapter of a type is in `target.py` of the system of its name, in `workers.systems`. Its class is named as that of
its settings in `app.config.targets`: `RedisTarget` for `RedisSettings`. Here is what targets of several types share.
"""

from importlib import import_module
from typing import Any

from app.config.targets.registry import TYPES
from workers.targets.any_address import AnyAddressTarget
from workers.targets.base import Adapter


def create(type: str, settings: Any) -> Adapter:  # noqa: A002 (a target's type, as in its ARN)
    """Create a target of this type, not yet opened; `settings` is the type's dataclass of `app.config.targets`.

    Raises `LookupError` with the known types.
    """
    if type not in TYPES:
        raise LookupError(f"no target type {type!r}; there are {', '.join(TYPES)}")
    name = TYPES[type].__name__.removesuffix("Settings") + "Target"
    adapter: Adapter = getattr(import_module(f"workers.systems.{type}.target"), name)(settings)
    return AnyAddressTarget(adapter, settings.timeout)
