"""The interface of every source, and the errors that it may raise.

* A source never records, retries, sleeps or logs, and knows neither the outbox nor Celery.
* It is used by one thread at a time; `close` may be called at any time between two calls, any number of times.
* Messages of one share are pulled in the order of the queue, each once, until the source is opened again. Then it
  begins after the positions that it is given, or, where the queue remembers them, after what was committed.
* What was pulled counts as taken only when it is passed to `commit`.

A queue's library may give bytes that should be UTF-8 and are not: `AnyText` decodes them. What parses a stored
position is decorated with `parses_position`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Protocol, TypeVar

from app.events.parsing import Message


class SourceUnavailable(Exception):
    """The queue cannot be reached, refuses the login, or cannot be read now; the message is the reason."""


class SourceChanged(Exception):
    """The queue has other shares or messages than when it was opened or pulled from; it has to be opened again."""


@dataclass(frozen=True, slots=True)
class Opened:
    """Where a source begins elsewhere than it was asked to, by share, and what was lost before that, as sentences.

    `risks` are settings of the queue by which it loses messages without anybody's notice, as far as it says them.
    """

    moved: Mapping[str, str] = field(default_factory=dict)
    lost: Sequence[str] = ()
    risks: Sequence[str] = ()


class Source(Protocol):
    """One queue, owned by one thread of a worker process."""

    def open(self, positions: Mapping[str, str]) -> Opened:
        """Connect, log in, and begin after these positions. Raises `SourceUnavailable`."""

    def pull(self, most: int, seconds: float) -> Sequence[Message]:
        """Return up to `most` messages as soon as there are any; none after that many seconds.

        Raises `SourceUnavailable`, `SourceChanged`.
        """

    def commit(self, messages: Sequence[Message]) -> None:
        """Tell the queue that these messages, the oldest of those that were pulled, are recorded.

        There may be none, also before `open` has returned; it is called every few seconds while the source waits, so
        that a queue that wants to hear of its consumer does. Raises `SourceUnavailable`, `SourceChanged` if the queue
        may not know; then it may send them again.
        """

    def lag(self) -> int | None:
        """Return how many messages wait in the queue; None if it does not say. Raises `SourceUnavailable`."""

    def close(self) -> None:
        """Close every connection. Never raises."""


P = TypeVar("P")


def parses_position(parse: Callable[[str], P]) -> Callable[[str], P]:
    """Have a function that parses positions raise `SourceUnavailable` for a text that is none of its kind."""

    @wraps(parse)
    def parsed(text: str) -> P:
        try:
            return parse(text)
        except (ValueError, TypeError) as error:
            remedy = "remove the source, which deletes its positions, and set it again"
            raise SourceUnavailable(f"the stored position {text[:80]!r} is none of such a queue; {remedy}") from error

    return parsed


class AnyText(bytearray):
    """Bytes whose slices decode to a text in any case."""

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        return AnyText(found) if isinstance(place, slice) else found

    def decode(self, *_: Any) -> str:
        """Return the text, with U+FFFD for what is none."""
        return super().decode(errors="replace")
