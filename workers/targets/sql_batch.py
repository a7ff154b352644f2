"""What the SQL targets do alike with a batch of which some events cannot be stored."""

from collections.abc import Callable, Sequence

from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, Outcome, Rejected


def set_apart(
    events: Sequence[Event],
    unfit: Callable[[Event], Rejected | None],
    write: Callable[[Sequence[Event]], Sequence[Outcome]],
) -> list[Outcome]:
    """One outcome for each event: `write` gets all of them but those of which `unfit` knows before that they fail."""
    refusals = {index: refusal for index, event in enumerate(events) if (refusal := unfit(event))}
    fit = [event for index, event in enumerate(events) if index not in refusals] if refusals else events
    settled = iter(write(fit))
    return [refusals.get(index) or next(settled) for index in range(len(events))]


def in_halves(events: Sequence[Event], take: Callable[[Sequence[Event]], Rejected | None]) -> list[Outcome]:
    """Store in order what the server takes and name what it refuses, in about 2 log2(n) statements for each of those.

    `take` stores all of the events given to it or none, and then returns why.
    """
    refusal = take(events)
    if refusal is None:
        return [DELIVERED] * len(events)
    if len(events) == 1:
        return [refusal]
    middle = len(events) // 2
    return in_halves(events[:middle], take) + in_halves(events[middle:], take)
