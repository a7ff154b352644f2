"""Split the messages of frontends into records: a module for each kind of sender with rules of its own, and for all
`detect` and `registry`, which has the other kinds.

A `Frontend` says how its records are normalised and what orders them; the module's docstring what is peculiar to it.
Detection uses the shape (§14.1), unless the caller names the frontend: the encoding of a key and the order of events
follow from the sender, never from the characters of a key. The result is always a record with MinIO's members (§1.4).
"""

from app.events.frontends.detect import Item, Location, format_location, items
from app.events.frontends.envelopes import EventGridValidation, SnsConfirmation, Traced
from app.events.frontends.frontend import Frontend, Normalized
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
