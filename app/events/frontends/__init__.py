"""Split the messages of frontends into records: one module for each family of senders, and `detect` for all of them.

Detection uses the shape (§14.1): the format of a record and the encoding of its key follow from its sender, never from
the characters of the key. The result is always a record with MinIO's members (§1.4).
"""

from app.events.frontends.detect import Item, Location, Normalized, format_location, items
from app.events.frontends.envelopes import SnsConfirmation, Traced

__all__ = ["Item", "Location", "Normalized", "SnsConfirmation", "Traced", "format_location", "items"]
