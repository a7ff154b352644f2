"""Estimate the size of an event in the outbox database."""

from app.events.model import Event

UNLIMITED = 500_000_000  # bytes; PostgreSQL and SQLite refuse larger rows, as a text has at most 1 GB
_OTHERS = 1024  # bytes for numbers and column names


def stored_size(event: Event) -> int:
    """Return an upper bound of the event's bytes in an SQL statement, whatever the escaping.

    JSON control characters are escaped already, so only quotes and backslashes of the record grow.
    """
    record = event.record
    size = len(record.encode()) + record.count('"') + record.count("'") + record.count("\\")
    others = (event.id, event.name, event.bucket, event.key, event.version, event.sequencer, event.trace, event.origin)
    return size + 2 * sum(len(text.encode()) for text in others) + _OTHERS


def is_larger(event: Event, most: int) -> bool:
    """Return whether `stored_size` exceeds `most`; nearly free for an event far below it."""
    # A character takes at most 4 bytes, an escaped single-byte one at most 2. The other members have at most 20 KB.
    return len(event.record) * 4 + 32_768 > most and stored_size(event) > most
