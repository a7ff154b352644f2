"""Find out whether a refusal (`Unavailable`) concerns one event or the whole target.

A remote may answer 503 for one object and accept every other: a proxy without a backend for one path, a firewall, a
locked row. So the worker asks for a second opinion after a refusal: it sends an event of another object alone.

* If that event gets an answer of its own (delivered, failed, rejected), the target is up, and the refused event is a
  suspect.
* If that event and a few others are refused as well, or there are no others, the circuit breaker opens. Two objects
  are enough if a refusal took long: a target that answers nothing would hold the worker for a whole timeout each time.

A suspect's refusal counts as a failed attempt once the target has delivered something between two refusals of that
event. So an outage, short or long, costs no event an attempt, and one event cannot block a target.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random

from app.events.model import Event
from app.outbox.delivery.partition_reader import Refusals
from workers.delivery.outcomes import NOT_ATTEMPTED, Delivered, Failed, NotAttempted, Outcome, Rejected, Unavailable


@dataclass(frozen=True, slots=True)
class Suspect:
    """The target refused this event, and no other object's event in the same call.

    The event is parked until `due`; no attempt is counted. Both times are milliseconds since 1970.
    """

    refusal: Unavailable
    refused_at: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class RefusedAgain(Failed):
    """The target refused this event twice and delivered others in between: a failed attempt."""

    refused_at: int = 0


Answer = Outcome | Suspect

MOST_ASKED = 5  # second opinions per batch that may be refused
_PATIENCE = 1.0  # seconds; after that, one refused second opinion is enough


class SecondOpinion:
    """Sends the events of one lease, and tracks whether the target seems to be up.

    `call` sends events to the target. It gets one event at a time while the target is in doubt: after a refusal, and
    from the start if `probing` is true, because the breaker is open.
    """

    def __init__(self, call: Callable[[Sequence[Event]], Sequence[Outcome]], rng: Random, *, probing: bool) -> None:
        self._call = call
        self._rng = rng
        self._refused: set[str] = set()  # objects refused since the target last answered for a single event
        self.in_doubt = probing
        self.answered = False  # the target gave an answer about an event itself
        self.refusal: Unavailable | None = None  # why the target is in doubt
        self.is_certain = False  # the target cannot be reached, or does not answer: every event would fail

    def send(self, events: Sequence[Event], stop: Callable[[], bool]) -> list[Answer]:
        """Send events until all have an answer, second opinions are refused, or `stop()`; the rest is `NotAttempted`.

        If several objects share a refusal, smaller and smaller calls find out which of them caused it.
        """
        answers: list[Answer] = [NOT_ATTEMPTED] * len(events)
        left = list(range(len(events)))
        size = len(left)
        calls = opinions = 0
        began = time.monotonic()
        while left and not self.is_certain and (not calls or not stop()):
            calls += 1
            alone = self.in_doubt
            some = [self._pick(events, left)] if alone else left[:size]
            asked = time.monotonic()
            for index, outcome in zip(some, self._call([events[index] for index in some]), strict=True):
                answers[index] = outcome
            refused = [index for index in some if isinstance(answers[index], Unavailable)]
            self._note(events, answers, some, refused, hangs=time.monotonic() - asked > _PATIENCE)
            closed = {events[index].path for index in some if isinstance(answers[index], Failed)}
            objects = {events[index].path for index in refused}
            if len(objects) == 1 and not self.is_certain:
                closed |= objects
                answers[refused[0]] = Suspect(self._refusal(answers, refused))
                size = len(events)
            elif refused:
                size = max(1, len(refused) // 2)
            done = {index for index in some if not refused or isinstance(answers[index], Delivered | Failed | Rejected)}
            left = [index for index in left if index not in done and events[index].path not in closed]
            if refused and alone:
                opinions += 1
                if opinions == MOST_ASKED or self._asks_for_rest() or time.monotonic() - began > _PATIENCE:
                    break
        return answers

    def clear(self) -> None:
        """Blame the refusals since the last answer on their events; only if all of them are of one object."""
        if len(self._refused) == 1 and not self.is_certain:
            self._trust()

    def verdict(self, refusals: Refusals | None) -> Unavailable | None:
        """Return why the breaker must open, None if the target is up.

        As long as only one object has been refused, ignore the parts of its answer that affect the whole target: a long
        wait or a pause.
        """
        why = self.refusal
        if why is None or self.is_certain or len(self._refused) > 1 or (refusals and refusals.of_others):
            return why
        return replace(why, retry_after=None, pause=False)

    def _note(
        self, events: Sequence[Event], answers: Sequence[Answer], some: list[int], refused: list[int], *, hangs: bool
    ) -> None:
        answered = any(isinstance(answers[index], Delivered | Failed | Rejected) for index in some)
        self.answered |= answered
        if refused:
            # Other events of the same call may have been answered before the target became unavailable.
            self.refusal = self._refusal(answers, refused)
            self.in_doubt = True
            self._refused.update(events[index].path for index in refused)
            self.is_certain = self.refusal.unreachable or (hangs and not answered and len(self._refused) > 1)
        elif answered:
            self._trust()

    def _asks_for_rest(self) -> bool:
        """Return whether the remote named a time before which it wants no more requests."""
        return self.refusal is not None and self.refusal.retry_after is not None

    def _trust(self) -> None:
        self.answered = True
        self.in_doubt = False
        self.refusal = None
        self._refused.clear()

    def _pick(self, events: Sequence[Event], left: Sequence[int]) -> int:
        """Return the first event or, with equal chance, one of a random object: not the same one each time."""
        if self._rng.random() < 0.5:
            return left[0]
        firsts: dict[str, int] = {}
        for index in left:
            firsts.setdefault(events[index].path, index)
        return self._rng.choice(list(firsts.values()))

    @staticmethod
    def _refusal(answers: Sequence[Answer], refused: Iterable[int]) -> Unavailable:
        found = [answer for index in refused if isinstance(answer := answers[index], Unavailable)]
        return next((refusal for refusal in found if refusal.unreachable), found[0])


def judged(
    answers: Sequence[Answer],
    partitions: Sequence[int],
    refused_before: Sequence[int],
    refusals: Refusals,
    *,
    parked: bool,
    is_up: bool,
    refused_at: int,
    due: Callable[[Unavailable], int],
) -> list[Answer]:
    """Decide what happens to each suspect among the answers: a failed attempt, parked for another try, or unavailable.

    `refused_before` is the time of each event's previous refusal, 0 if there was none. While the target is in doubt, an
    event of the log is parked only if it is the first of its partition and the partition has no such event yet: an
    outage parks one event in each partition, not all of them.
    """
    decided: list[Answer] = []
    taken = set(refusals.partitions)  # partitions with such an event, and those in which an earlier event stays
    for answer, partition, before in zip(answers, partitions, refused_before, strict=True):
        if not isinstance(answer, Suspect):
            decided.append(answer)
            if isinstance(answer, Unavailable | NotAttempted):
                taken.add(partition)
            continue
        refusal = answer.refusal
        if 0 < before < refusals.delivered_at:
            decided.append(RefusedAgain(refusal.reason, refusal.retry_after, refused_at))
        elif parked or is_up or partition not in taken:
            taken.add(partition)
            decided.append(Suspect(refusal, refused_at, due(refusal)))
        else:
            decided.append(refusal)
    return decided
