"""Handle batches with events that cannot be stored; shared by the SQL targets."""

from collections.abc import Callable, Sequence

from app.events.model import Event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Outcome, Rejected


def set_apart(
    events: Sequence[Event],
    unfit: Callable[[Event], Rejected | None],
    write: Callable[[Sequence[Event]], Sequence[Outcome]],
) -> list[Outcome]:
    """Return one outcome per event: reject those that `unfit` recognises in advance, and pass the others to `write`."""
    refusals = {index: refusal for index, event in enumerate(events) if (refusal := unfit(event))}
    fit = [event for index, event in enumerate(events) if index not in refusals] if refusals else events
    settled = iter(write(fit))
    return [refusals.get(index) or next(settled) for index in range(len(events))]


def in_halves(
    events: Sequence[Event], take: Callable[[Sequence[Event]], Rejected | None], has_time: Callable[[], bool]
) -> list[Outcome]:
    """Store in order what the server accepts; reject the rest, in about 2 log2(n) statements per refused event.

    `take` stores either all events given to it or none; in the latter case it returns the reason. Once the time is up
    and some events have an outcome, the remaining ones are not attempted.
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
