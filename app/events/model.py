"""What an event is: one record of a bucket notification, normalised, with one id for its whole life."""

import enum
from typing import NamedTuple


class Effect(enum.Enum):
    """What a namespace row becomes through an event; set for each target by workers, `NONE` until then."""

    NONE = "none"
    UPSERT = "upsert"
    REMOVE = "remove"
    REMOVE_VERSION = "remove version"  # only if the row holds that version


class Event(NamedTuple):
    """One record. `record` is its JSON text as MinIO would encode it (§1.5); `time` is milliseconds since 1970.

    `trace` is the trace context that it came with, as `app.events.trace` writes it; "" without one. It says how the
    event came, not what happened: it is no part of the `id`.

    A tuple, because one is made for each event on its way in and for each delivery on its way out: a frozen dataclass
    takes 1.5 µs longer, a tenth of what an event costs.
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

    @property
    def path(self) -> str:
        """Bucket, `/` and decoded key: the envelope's `Field`, a namespace's key (§1.6)."""
        return f"{self.bucket}/{self.key}"
