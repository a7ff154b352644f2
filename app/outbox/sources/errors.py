"""The errors of changes to sources and of what they have rejected."""

from app.config.sources.source_id import SourceId


class UnknownSource(LookupError):
    """No source of that type and name is configured."""

    def __init__(self, source: SourceId) -> None:
        super().__init__(f"there is no source {source}; `bucketwire source ls` shows those there are")


class ReadOnlySource(Exception):
    """The source is configured in the environment and can only be changed there."""

    def __init__(self, source: SourceId) -> None:
        super().__init__(f"{source} is set by BUCKETWIRE_SOURCE_… variables; change the variables")


class SourceInUse(Exception):
    """Removing the source would lose rejected messages; the message says how many."""


class StillRejected(Exception):
    """The message still has no valid events; the message of this exception is the reason."""


class UnknownMessage(LookupError):
    """The source has no rejected message of this number."""
