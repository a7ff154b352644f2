"""How large an event is where it is stored."""

from app.events.model import Event

UNLIMITED = 500_000_000  # bytes: above it PostgreSQL and SQLite refuse a row, as they hold a text of at most 1 GB
_OTHERS = 1024  # bytes for numbers and names of columns


def stored_size(event: Event) -> int:
    """The most bytes that the event has in an SQL statement, escaped in whichever way.

    JSON has its control characters escaped already, so that only quotes and backslashes of the record grow.
    """
    record = event.record
    size = len(record.encode()) + record.count('"') + record.count("'") + record.count("\\")
    others = (event.id, event.name, event.bucket, event.key, event.version, event.sequencer, event.trace)
    return size + 2 * sum(len(text.encode()) for text in others) + _OTHERS


def is_larger(event: Event, most: int) -> bool:
    """Whether `stored_size` is above `most`; nearly free for an event that is far below it."""
    # No character takes more than 4 bytes, and none of one byte more than 2. The other members have 20 KB at the most.
    return len(event.record) * 4 + 32_768 > most and stored_size(event) > most
