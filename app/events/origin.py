"""How an event came: by a request with some token, or by a source at some position of its queue.

It is stored as a text with each event, from which a read makes an `Origin` again.
"""

from collections.abc import Sequence
from typing import NamedTuple

from app.events.model import Event

_MAX_CHARACTERS = 600  # of the outbox's column
_SOURCE_PARTS = 5
LISTING = "listing"  # in place of the sender, and of the share, of what a source has found by listing a bucket


class Origin(NamedTuple):
    """By what an event came; `kind` is `request` or `source`, or "" if nobody knows.

    `name` is that of the request's token, "" without one, or the source as TYPE:NAME. `frontend` is the kind of sender,
    as it was recognised or named; "" until it is known. `position` is the one after the message in the `share` of the
    source's queue, both "" if the queue has no positions. What a listing has found has the time of that listing.
    """

    kind: str
    name: str = ""
    frontend: str = ""
    share: str = ""
    position: str = ""

    def text(self, frontend: str) -> str:
        """Return what is stored with an event of this frontend."""
        if not self.kind:
            return ""
        if not self.position:
            return f"{self.kind} {self.name} {frontend}"
        # The share is last, because it alone may contain spaces.
        return f"{self.kind} {self.name} {frontend} {self.position} {self.share}"[:_MAX_CHARACTERS]


class Texts(dict[str, str]):
    """The texts of an origin by frontend. Each is made once for a body: every event looks one up."""

    def __init__(self, origin: Origin) -> None:
        super().__init__()
        self._origin = origin

    def __missing__(self, frontend: str) -> str:
        """Make the text."""
        text = self[frontend] = self._origin.text(frontend)
        return text


UNKNOWN = Origin("")


def is_posted(events: Sequence[Event]) -> bool:
    """Return whether the events of one request or message came by a request: all of them by the same."""
    return bool(events) and events[0].origin.startswith("request ")


def by_request(token: str) -> Origin:
    """Return the origin of what is posted with a token of this name; "" without one."""
    return Origin("request", token)


def by_source(source: str, share: str, position: str) -> Origin:
    """Return the origin of a message that a source, as TYPE:NAME, has pulled."""
    return Origin("source", source, share=share, position=position)


def by_listing(source: str, began: str) -> str:
    """Return what is stored with an event that a source has found by a listing, which began at that time."""
    return Origin("source", source, share=LISTING, position=began).text(LISTING)


def origin_of(text: str) -> Origin:
    """Return the origin from what is stored with an event; `UNKNOWN` of a text that this version does not know."""
    parts = text.split(" ", _SOURCE_PARTS - 1)
    if parts[0] not in ("request", "source") or len(parts) not in (3, _SOURCE_PARTS):
        return UNKNOWN
    kind, name, frontend, position, share = (*parts, "", "")[:_SOURCE_PARTS]
    return Origin(kind, name, frontend, share, position)
