"""What became of one event at one target: five values, nothing else.

| outcome        | meaning                                         | the event then                          | attempt |
|----------------|-------------------------------------------------|-----------------------------------------|---------|
| `Delivered`    | the remote confirmed it                         | the cursor passes it                    |         |
| `Failed`       | this event did not get through this time        | is parked by the retry schedule         | yes     |
| `Rejected`     | the remote will never take this event           | becomes a dead letter                   | yes     |
| `Unavailable`  | the remote takes nothing now, or not this event | stays, or is parked for a moment        | no      |
| `NotAttempted` | not sent, for what became of an earlier event   | stays, or waits behind that event       | no      |
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Delivered:
    """The remote confirmed the event."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The event did not get through; another try may succeed.

    `retry_after` (seconds) is the remote's own wish; the retry schedule honours it within bounds.
    """

    reason: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """The remote refuses this very event for good; `reason` carries the remote's own words."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The remote refused the request that carried this event, in words that speak of the remote.

    They may still be about this event only (`workers.delivery.second_opinion`), unless the remote is `unreachable`:
    not found,
    not connected, not logged in, so that no event would fare better. `retry_after` (seconds) is the remote's own wish.
    `pause` asks that the target be paused until an operator resumes it (a webhook's 410 Gone).
    """

    reason: str
    retry_after: float | None = None
    pause: bool = False
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class NotAttempted:
    """The event was not sent: an earlier one of its object was not delivered, or any was refused as `Unavailable`."""


Outcome = Delivered | Failed | Rejected | Unavailable | NotAttempted

DELIVERED = Delivered()
NOT_ATTEMPTED = NotAttempted()
