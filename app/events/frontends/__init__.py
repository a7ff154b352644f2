"""What a frontend sends, taken apart into records: one module for each family of senders, `recognise` over them all.

Recognition is by shape (§14.1): what a record is and how its key is spelt follows from its sender, never from how the
key looks. The result is always a record with MinIO's members (§1.4).
"""

from app.events.frontends.detect import Item, Location, Normalized, format_location, items
from app.events.frontends.envelopes import SnsConfirmation, Traced

__all__ = ["Item", "Location", "Normalized", "SnsConfirmation", "Traced", "format_location", "items"]
