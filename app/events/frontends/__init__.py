"""Split the messages of frontends into records: modules for the senders with rules of their own, and for all of them
`envelopes` and `registry`, which has the other kinds.

A `Frontend` says how its records are normalised and what orders them; its module says what is peculiar to it.
Detection uses the shape (§14.1), unless the caller names the frontend: the encoding of a key and the order of events
follow from the sender, never from the characters of a key. The result is always a record with MinIO's members (§1.4).
"""

from app.events.frontends.envelopes import Item, Location, format_location, items
from app.events.frontends.frontend import EventGridValidation, Frontend, Normalized, SnsConfirmation, Traced
from app.events.frontends.registry import FRONTENDS, S3_FRONTENDS, order_of

__all__ = [
    "FRONTENDS",
    "S3_FRONTENDS",
    "EventGridValidation",
    "Frontend",
    "Item",
    "Location",
    "Normalized",
    "SnsConfirmation",
    "Traced",
    "format_location",
    "items",
    "order_of",
]
