"""Handle batches with events that cannot be stored; shared by the SQL targets."""

from collections.abc import Callable, Sequence

from app.events.model import Effect, Event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Outcome, Rejected
from workers.targets.doubts import Doubt, resolve


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
    events: Sequence[Event],
    take: Callable[[Sequence[Event]], Rejected | Doubt | None],
    has_time: Callable[[], bool],
    *,
    is_mirror: bool,
) -> list[Outcome]:
    """Store in order what the server accepts; refuse the rest, in about 2 log2(n) statements per refused event.

    `take` stores either all events given to it or none; in the latter case it returns the reason. Once the time is up
    and some events have an outcome, the remaining ones are not attempted.
    """
    outcomes: list[Outcome | Doubt] = []
    waiting = [events]
    while waiting:
        some = waiting.pop()
        if outcomes and not has_time():
            outcomes += [NOT_ATTEMPTED] * (len(events) - len(outcomes))
            break
        refusal = take(some)
        if refusal is None:
            outcomes += [DELIVERED] * len(some)
        elif len(some) == 1:
            outcomes.append(refusal)
        else:
            middle = len(some) // 2
            waiting += [some[middle:], some[:middle]]
    if not is_mirror:
        return resolve(outcomes, [None] * len(events))
    # A mirror writes only the last change of an object, and a removal succeeds whatever the table's rules are.
    last = {event.path: index for index, event in enumerate(events) if event.effect is not Effect.NONE}
    writes = [last.get(event.path) == index for index, event in enumerate(events)]
    return resolve(outcomes, [event.effect for event in events], writes)
