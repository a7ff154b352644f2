"""What became of one event at one target: five values, nothing else.

| outcome        | meaning                                         | the event then                          | attempt |
|----------------|-------------------------------------------------|-----------------------------------------|---------|
| `Delivered`    | the remote confirmed it                         | the cursor passes it                    |         |
| `Failed`       | this event did not get through this time        | is parked by the retry schedule         | yes     |
| `Rejected`     | the remote will never take this event           | becomes a dead letter                   | yes     |
| `Unavailable`  | the remote takes nothing now                    | stays where it is, the target backs off | no      |
| `NotAttempted` | not sent: an earlier event of its object failed | waits behind that event                 | no      |
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
    """The remote takes nothing at the moment.

    `retry_after` (seconds) is the remote's own wish. `pause` asks that the target be paused until an operator
    resumes it (a webhook's 410 Gone).
    """

    reason: str
    retry_after: float | None = None
    pause: bool = False


@dataclass(frozen=True, slots=True)
class NotAttempted:
    """The event was not sent, because an earlier event of the same object was not delivered."""


Outcome = Delivered | Failed | Rejected | Unavailable | NotAttempted

DELIVERED = Delivered()
NOT_ATTEMPTED = NotAttempted()
