"""What the SQL targets do alike with a batch of which some events cannot be stored."""

from collections.abc import Callable, Sequence

from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Outcome, Rejected


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


def in_halves(
    events: Sequence[Event], take: Callable[[Sequence[Event]], Rejected | None], has_time: Callable[[], bool]
) -> list[Outcome]:
    """Store in order what the server takes and name what it refuses, in about 2 log2(n) statements for each of those.

    `take` stores all of the events given to it or none, and then returns why. Once there is no time left and some
    events have an outcome, the rest is not attempted.
    """
    outcomes: list[Outcome] = []
    waiting = [events]
    while waiting:
        some = waiting.pop()
        if outcomes and not has_time():
            return outcomes + [NOT_ATTEMPTED] * (len(events) - len(outcomes))
        refusal = take(some)
        if refusal is None:
            outcomes += [DELIVERED] * len(some)
        elif len(some) == 1:
            outcomes.append(refusal)
        else:
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]
    return outcomes
