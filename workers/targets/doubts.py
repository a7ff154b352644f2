"""Decide whose fault a refusal is that would meet every event as well as this one, such as that of a table's own rule.

A column, a check, a trigger or a mapping may refuse one event or all of them, and the remote cannot be asked which. So
the event is blamed only if the remote accepted one of the same kind after it. Otherwise the outcome is `Unavailable`,
and `workers.delivery.second_opinion` sends another event to find out.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.delivery.outcomes import Delivered, Outcome, Rejected, Unavailable


@dataclass(frozen=True, slots=True)
class Doubt:
    """The refusal of an event, which may be the fault of the event or of the target."""

    reason: str


def resolve(
    outcomes: Sequence[Outcome | Doubt], kinds: Sequence[object], writes: Sequence[bool] | None = None
) -> list[Outcome]:
    """Return the outcomes of events in the order in which they were sent, with a decision for each `Doubt`.

    An accepted event is compared with refused ones of its kind only, and only if it `writes` something itself.
    """
    resolved: list[Outcome] = []
    accepted: set[object] = set()
    for index in range(len(outcomes) - 1, -1, -1):
        outcome = outcomes[index]
        if isinstance(outcome, Doubt):
            outcome = Rejected(outcome.reason) if kinds[index] in accepted else Unavailable(outcome.reason)
        elif isinstance(outcome, Delivered) and (writes is None or writes[index]):
            accepted.add(kinds[index])
        resolved.append(outcome)
    return resolved[::-1]
