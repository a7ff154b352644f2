"""Every source type by its name: what the modules of this folder declare."""

from app.config import sources
from app.config.declared_types import DeclaredTypes
from app.config.sources.base import REGISTERED_SOURCES, SourceSettings

SOURCE_TYPES = DeclaredTypes[SourceSettings]("source", sources, REGISTERED_SOURCES)
source_type = SOURCE_TYPES.known
