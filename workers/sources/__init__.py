"""Create the source of a type; its driver is imported only then.

The source of a type is in `source.py` of its system in `workers.systems`, in a class named as that of its settings in
`app.config.sources`: `KafkaSource` for `KafkaSourceSettings`.
"""

from importlib import import_module
from typing import Any

from app.config.declared_types import source_type
from workers.sources.base import Source


def create(type_name: str, settings: Any) -> Source:
    """Create a source of this type, not yet opened. Raises `BadSettings` with the known types."""
    known = source_type(type_name)
    module = import_module(f"workers.systems.{known.system}.source")
    source: Source = getattr(module, known.__name__.removesuffix("Settings"))(settings)
    return source
