"""Find out whether a refusal ("unavailable") concerns one event or the whole target.

A remote may answer 503 to one object and take every other: a proxy without a backend for one path, a firewall, a
locked row. So a refusal is followed by a second opinion, an event of another object sent alone:

* it gets an answer of its own (delivered, failed, rejected): the target is up, and what was refused is a suspect;
* it is refused as well, and so are a few others, or there are none: the circuit breaker opens.

A suspect's refusal counts as a failed attempt once the target has delivered something between two refusals of that
event. So an outage, long or short, costs no event an attempt, and one event cannot hold up a target.
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
    """The target refused this event, of all objects in the call this one alone.

    It waits, parked, until `due`; no attempt is counted. Both times are milliseconds since 1970.
    """

    refusal: Unavailable
    refused_at: int = 0
    due: int = 0


@dataclass(frozen=True, slots=True)
class RefusedAgain(Failed):
    """The target refused this event twice and delivered others in between: that is a failed attempt."""

    refused_at: int = 0


Answer = Outcome | Suspect

MOST_ASKED = 5  # second opinions that may be bad, of one batch
_PATIENCE = 1.0  # seconds after which one is enough


class SecondOpinion:
    """Sends the events of one lease, and knows whether the target seems to be up.

    `call` sends events to the target. It gets one event at a time while the target is in doubt: after a refusal, and
    from the beginning where `probing` says that the breaker is open.
    """

    def __init__(self, call: Callable[[Sequence[Event]], Sequence[Outcome]], rng: Random, *, probing: bool) -> None:
        self._call = call
        self._rng = rng
        self._refused: set[str] = set()  # objects refused since the target last answered one for itself
        self.in_doubt = probing
        self.answered = False  # the target gave some event an answer of its own
        self.refusal: Unavailable | None = None  # why the target is in doubt
        self.is_certain = False  # the target cannot be reached at all: no event would fare better

    def send(self, events: Sequence[Event], stop: Callable[[], bool]) -> list[Answer]:
        """Send events until all have an answer, a second opinion is bad, or `stop()`; the rest is `NotAttempted`.

        Where several objects share a refusal, smaller and smaller calls find out which of them caused it.
        """
        answers: list[Answer] = [NOT_ATTEMPTED] * len(events)
        left = list(range(len(events)))
        size = len(left)
        calls = asked = 0
        began = time.monotonic()
        while left and not self.is_certain and (not calls or not stop()):
            calls += 1
            alone = self.in_doubt
            some = [self._pick(events, left)] if alone else left[:size]
            for index, outcome in zip(some, self._call([events[index] for index in some]), strict=True):
                answers[index] = outcome
            refused = [index for index in some if isinstance(answers[index], Unavailable)]
            self._note(events, answers, some, refused)
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
                asked += 1
                if asked == MOST_ASKED or self._asks_for_rest() or time.monotonic() - began > _PATIENCE:
                    break
        return answers

    def acquit(self) -> None:
        """Take the refusals since the last answer for the events' own; only where they all are of one object."""
        if len(self._refused) == 1 and not self.is_certain:
            self._trust()

    def verdict(self, refusals: Refusals | None) -> Unavailable | None:
        """Why the breaker shall open, None where the target is up.

        As long as only one object has been refused, what its answer asks of everybody, a long wait or a pause, is not
        heeded.
        """
        why = self.refusal
        if why is None or self.is_certain or len(self._refused) > 1 or (refusals and refusals.of_others):
            return why
        return replace(why, retry_after=None, pause=False)

    def _note(self, events: Sequence[Event], answers: Sequence[Answer], some: list[int], refused: list[int]) -> None:
        answered = any(isinstance(answers[index], Delivered | Failed | Rejected) for index in some)
        self.answered |= answered
        if refused:
            # What else is in the same call may have been answered before the target went away.
            self.refusal = self._refusal(answers, refused)
            self.in_doubt = True
            self.is_certain = self.refusal.unreachable
            self._refused.update(events[index].path for index in refused)
        elif answered:
            self._trust()

    def _asks_for_rest(self) -> bool:
        """Whether the remote named a time before which it wants no more requests."""
        return self.refusal is not None and self.refusal.retry_after is not None

    def _trust(self) -> None:
        self.answered = True
        self.in_doubt = False
        self.refusal = None
        self._refused.clear()

    def _pick(self, events: Sequence[Event], left: Sequence[int]) -> int:
        """The first event of all or, as often, of any object: it must not be the same that is asked each time."""
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
    """Decide what becomes of each suspect among the answers: a failed attempt, parked to be tried again, or neither.

    `refused_before` is when each event was refused before, 0 if it was not. While the target is in doubt an event of
    the log is parked only as the first of its partition, and where that has no such event yet: an outage parks one
    event in each partition, not all of them.
    """
    decided: list[Answer] = []
    taken = set(refusals.partitions)  # and those in which an earlier event stays
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
