"""Outcomes of one event at one target: exactly five values.

| outcome        | meaning                                           | the event then                        | attempt |
|----------------|---------------------------------------------------|---------------------------------------|---------|
| `Delivered`    | the remote confirmed the event                    | is passed by the cursor               |         |
| `Failed`       | this attempt to deliver the event failed          | is parked by the retry schedule       | yes     |
| `Rejected`     | the remote will never accept this event           | becomes a dead letter                 | yes     |
| `Unavailable`  | the remote accepts nothing now, or not this event | stays, or is parked for a moment      | no      |
| `NotAttempted` | not sent, because of an earlier event's outcome   | stays, or waits behind that event     | no      |
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A request or an answer: its first line, its headers, the text of its body and the bytes that this has."""

    line: str
    headers: Mapping[str, str]
    body: str
    size: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """The request that carried an event, and the answer to it if there was one.

    An adapter gives it with its secrets; `workers.telemetry.redaction` hides them and shortens it.
    """

    request: HttpMessage
    response: HttpMessage | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """The remote confirmed the event."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The event was not delivered; another attempt may succeed.

    `retry_after` (seconds) is what the remote asks for; the retry schedule respects it within bounds.
    """

    reason: str
    retry_after: float | None = None
    exchange: Exchange | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Rejected:
    """The remote refuses this event permanently; `reason` carries the remote's own message."""

    reason: str
    exchange: Exchange | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Unavailable:
    """The remote refused the request that carried this event, with an error about the remote itself.

    The error may still concern only this event (`workers.delivery.second_opinion`), unless the remote is `unreachable`:
    name not resolved, not connected, or not logged in, so that every other event would fail as well. `retry_after`
    (seconds) is what the remote asks for. `pause` requests that the target be paused until an operator resumes it (a
    webhook's 410 Gone). `may_arrive` means that the request was sent and not answered, so that a target that can be
    overwritten may still be, by this event, after newer ones.
    """

    reason: str
    retry_after: float | None = None
    pause: bool = False
    unreachable: bool = False
    may_arrive: bool = field(default=False, compare=False)
    exchange: Exchange | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NotAttempted:
    """The event was not sent: an earlier one of its object was not delivered, or any event was `Unavailable`."""


Outcome = Delivered | Failed | Rejected | Unavailable | NotAttempted

DELIVERED = Delivered()
NOT_ATTEMPTED = NotAttempted()
