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

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from app.events.model import Event
from app.outbox.delivery.due_work import Refusals
from app.outbox.delivery.logged_events import LogPosition
from workers.delivery import retry
from workers.delivery.outcomes import Delivered, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.delivery.retry import back_off
from workers.delivery.settlement import Delivery, Suspicion


class SecondOpinion:
    """Chooses the calls for the events of one lease, and tracks whether the target seems to be up. Makes no call.

    A call has one event while the target is in doubt: after a refusal, and from the start if `probing` is true, because
    the breaker is open.
    """

    def __init__(self, rng: Random, *, probing: bool) -> None:
        self._rng = rng
        self._refused: set[str] = set()  # objects refused since the target last answered for a single event
        self._refusals: Refusals | None = None  # the outbox's record of them when the target was last in doubt
        self.in_doubt = probing
        self.answered = False  # the target gave an answer about an event itself
        self.refusal: Unavailable | None = None  # why the target is in doubt
        self.is_certain = False  # the target cannot be reached, or does not answer: every event would fail
        self.begin(())

    def begin(self, batch: Sequence[Delivery]) -> None:
        """Begin with the next events that are to be sent."""
        self._batch = batch
        self._left = list(batch)  # without an answer, and to be sent in this batch
        self._size = len(batch)
        self._suspects: list[Delivery] = []
        self._opinions, self._seconds, self._ended = 0, 0.0, False

    def next_call(self) -> Sequence[Delivery]:
        """Return what to send next; nothing if all have an answer, or enough second opinions were refused.

        If several objects share a refusal, smaller and smaller calls find out which of them caused it.
        """
        if not self._left or self._ended or self.is_certain:
            return ()
        return [self._pick()] if self.in_doubt else self._left[: self._size]

    def record(self, sent: Sequence[Delivery], outcomes: Sequence[Outcome], seconds: float) -> None:
        """Note the outcomes of a call, which took so many seconds."""
        alone = self.in_doubt
        self._seconds += seconds
        for delivery, outcome in zip(sent, outcomes, strict=True):
            delivery.outcome = outcome
        refused = [delivery for delivery in sent if isinstance(delivery.outcome, Unavailable)]
        self._note(sent, refused, hangs=seconds > retry.OPINION_PATIENCE_SECONDS)
        if not refused and len(sent) == len(self._left):  # nearly always; a path costs as much as the rest
            self._left = []
            return
        closed = {_path(delivery) for delivery in sent if isinstance(delivery.outcome, Failed)}
        objects = {_path(delivery) for delivery in refused}
        if len(objects) == 1 and not self.is_certain:
            closed |= objects
            self._suspects.append(refused[0])
            self._size = len(self._batch)
        elif refused:
            self._size = max(1, len(refused) // 2)
        done = {id(delivery) for delivery in sent if not refused or _is_answer(delivery.outcome)}
        self._left = [one for one in self._left if id(one) not in done and _path(one) not in closed]
        if refused and alone:
            self._opinions += 1
            self._ended = (
                self._opinions == retry.MAX_OPINIONS
                or self._asks_for_rest()
                or self._seconds > retry.OPINION_PATIENCE_SECONDS
            )

    def suspects(self) -> set[LogPosition]:
        """Return the events of the batch that the target refused, and no other object's event in the same call."""
        return {(delivery.logged.partition, delivery.logged.seq) for delivery in self._suspects}

    def judge(self, refusals: Refusals, now: int) -> None:
        """Decide what each suspect's refusal is: a failed attempt, a reason to park the event, or neither.

        While the target is in doubt, an event of the log is parked only if it is the first of its partition and the
        partition has no such event yet: an outage parks one event in each partition, not all of them.
        """
        is_up = not self.in_doubt
        refused_at = now - is_up  # a target that is up delivered after the refusal, one in doubt before it
        taken = set(refusals.partitions)  # partitions with such an event, and those in which an earlier event stays
        suspects = {id(delivery) for delivery in self._suspects}
        for delivery in self._batch:
            partition, parked, refusal = delivery.logged.partition, delivery.parked, delivery.outcome
            if not isinstance(refusal, Unavailable) or id(delivery) not in suspects:
                if isinstance(refusal, Unavailable | NotAttempted):
                    taken.add(partition)
            elif parked is not None and 0 < parked.refused_at < refusals.delivered_at:
                delivery.suspicion = Suspicion(refused_at, None)
            elif parked is not None or is_up or partition not in taken:
                taken.add(partition)
                delivery.suspicion = Suspicion(refused_at, now + back_off(1, self._rng, refusal.retry_after))
        self._refusals = refusals
        if all(delivery.suspicion and delivery.suspicion.due is None for delivery in self._suspects):
            self._blame_events()

    def verdict(self) -> Unavailable | None:
        """Return why the breaker must open, None if the target is up.

        As long as only one object has been refused, ignore the parts of its answer that affect the whole target: a long
        wait or a pause.
        """
        why = self.refusal
        of_others = self._refusals is not None and self._refusals.of_others
        if why is None or self.is_certain or len(self._refused) > 1 or of_others:
            return why
        return replace(why, retry_after=None, pause=False)

    def _blame_events(self) -> None:
        """Blame the refusals since the last answer on their events; only if all of them are of one object."""
        if len(self._refused) == 1 and not self.is_certain:
            self._believe_refusals()

    def _note(self, sent: Sequence[Delivery], refused: Sequence[Delivery], *, hangs: bool) -> None:
        answered = any(_is_answer(delivery.outcome) for delivery in sent)
        self.answered |= answered
        if refused:
            # Other events of the same call may have been answered before the target became unavailable.
            self.refusal = _refusal(refused)
            self.in_doubt = True
            self._refused.update(map(_path, refused))
            self.is_certain = self.refusal.unreachable or (hangs and not answered and len(self._refused) > 1)
        elif answered:
            self._believe_refusals()

    def _asks_for_rest(self) -> bool:
        """Return whether the remote named a time before which it wants no more requests."""
        return self.refusal is not None and self.refusal.retry_after is not None

    def _believe_refusals(self) -> None:
        self.answered = True
        self.in_doubt = False
        self.refusal = None
        self._refused.clear()

    def _pick(self) -> Delivery:
        """Return the first event or, with equal chance, one of a random object: not the same one each time."""
        if self._rng.random() < 0.5:
            return self._left[0]
        firsts: dict[str, Delivery] = {}
        for delivery in self._left:
            firsts.setdefault(_path(delivery), delivery)
        return self._rng.choice(list(firsts.values()))


def _path(delivery: Delivery) -> str:
    event = delivery.decision
    return event.path if isinstance(event, Event) else ""


def _is_answer(outcome: Outcome) -> bool:
    return isinstance(outcome, Delivered | Failed | Rejected)


def _refusal(refused: Sequence[Delivery]) -> Unavailable:
    refusals = [delivery.outcome for delivery in refused if isinstance(delivery.outcome, Unavailable)]
    return next((refusal for refusal in refusals if refusal.unreachable), refusals[0])
