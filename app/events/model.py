"""The event: one normalized record of a bucket notification, with an id that never changes."""

import enum
import re
from typing import NamedTuple

EVENT_ID = re.compile(r"[0-9a-f]{32}")


class Effect(enum.Enum):
    """The effect of an event on a namespace row; workers set it for each target, it is `NONE` until then."""

    NONE = "none"
    UPSERT = "upsert"
    REMOVE = "remove"
    REMOVE_VERSION = "remove version"  # only if the row has that version


class Event(NamedTuple):
    """One record. `record` is its JSON as MinIO would encode it (§1.5); `time` is milliseconds since 1970.

    `sequencer` orders the object's events (`app.events.order`); it need not be the one in the record.

    `trace` is the trace context that came with it, as `app.events.trace` writes it; "" without one. It describes how
    the event was sent, not what happened, so it is not part of the `id`. Neither is `origin`: by which request or
    source it came, as `app.events.origin` writes it; "" if nobody knows.

    A tuple, because one is created for each received event and for each delivery: a frozen dataclass takes 1.5 µs
    longer, a tenth of the cost of an event.
    """

    id: str
    name: str
    bucket: str
    key: str
    version: str
    sequencer: str
    time: int
    record: str
    effect: Effect = Effect.NONE
    trace: str = ""
    origin: str = ""

    @property
    def path(self) -> str:
        """Bucket, `/` and decoded key: the `Key` of MinIO's envelope and the key of a namespace row (§1.6)."""
        return f"{self.bucket}/{self.key}"
