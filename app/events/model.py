"""What an event is: one record of a bucket notification, normalised, with one id for its whole life."""

import enum
from dataclasses import dataclass


class Effect(enum.Enum):
    """What a namespace row becomes through an event; set for each target by workers, `NONE` until then."""

    NONE = "none"
    UPSERT = "upsert"
    REMOVE = "remove"
    REMOVE_VERSION = "remove version"  # only if the row holds that version


@dataclass(frozen=True, slots=True)
class Event:
    """One record. `record` is its JSON text as MinIO would encode it (§1.5); `time` is milliseconds since 1970."""

    id: str
    name: str
    bucket: str
    key: str
    version: str
    sequencer: str
    time: int
    record: str
    effect: Effect = Effect.NONE

    @property
    def path(self) -> str:
        """Bucket, `/` and decoded key: the envelope's `Key`, a namespace's key (§1.6)."""
        return f"{self.bucket}/{self.key}"
