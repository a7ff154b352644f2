"""Keep track of the events of one `deliver` call, as every adapter needs it (the rules are in `workers.targets.base`).

An adapter asks `begin` which events may go into its next request, sends them, and records each outcome with `settle`.
`lose` records the outcome of events that were sent and never settled. `outcomes` is then the result of `deliver`.
Where each event goes, if a template of the settings says it, is one of its `places`. `RequestThreads` makes requests of
a call at once, with the events of an object in order.

A column, a check, a trigger or a mapping may refuse one event or all of them, and the remote cannot be asked which
(`Doubt`). So the event is blamed only if the remote accepted one of the same kind after it. Otherwise the outcome is
`Unavailable`, and `workers.delivery.second_opinion` sends another event to find out.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from app.config.errors import BadValue
from app.config.fields.templates import Place
from app.events.model import Event
from workers.delivery.outcomes import NOT_ATTEMPTED, Delivered, Failed, Outcome, Rejected, Unavailable
from workers.targets.base import NO_LEASE, LeaseCheck
from workers.targets.payloads import mark_not_attempted


class Batch:
    """Which of a call's events were sent, what their outcomes are, and what may still be sent."""

    def __init__(self, events: Sequence[Event], lease: LeaseCheck = NO_LEASE) -> None:
        self.events = events
        self._lease = lease
        self._outcomes: list[Outcome | None] = [None] * len(events)
        self._sent: dict[int, None] = {}  # sent and not settled, in the order of sending
        self._stuck: set[str] = set()  # objects with an event that was not delivered
        self._is_over = False
        self._has_settled = False

    @property
    def is_over(self) -> bool:
        """Whether nothing more may be sent: something was refused, or the time is up."""
        return self._is_over

    def begin(self, indexes: Iterable[int]) -> list[int]:
        """Return those of `indexes` that may go into one request now, and count them as sent; none if it is over.

        Leave out settled events, and those that follow an undelivered event of the same object. Raises `LeaseExpired`.
        """
        chosen = [index for index in indexes if self._outcomes[index] is None]
        if self._stuck:  # rare, and a path costs as much as the rest
            chosen = [index for index in chosen if self.events[index].path not in self._stuck]
        if not chosen or self._is_over:
            return []
        self._lease.check()
        if not self._lease.has_time() and not self._is_needed(chosen):
            self._is_over = True
            return []
        self._sent.update(dict.fromkeys(chosen))
        return chosen

    def has_time(self) -> bool:
        """Return whether there is time to wait for the answers to pending requests one after the other."""
        return self._lease.has_time()

    def _is_needed(self, chosen: Iterable[int]) -> bool:
        """Return whether a request must be made although the time is up, as every call must settle something.

        That is the first request, or one that repeats a part of it because the whole was refused.
        """
        return not self._has_settled and (not self._sent or all(index in self._sent for index in chosen))

    def settle(self, index: int, outcome: Outcome) -> None:
        """Record the outcome of an event, and what it means for events that have not been sent yet."""
        self._has_settled = True
        self._outcomes[index] = outcome
        self._sent.pop(index, None)
        if isinstance(outcome, Failed | Unavailable):
            self._stuck.add(self.events[index].path)
            self._is_over |= isinstance(outcome, Unavailable)

    def settle_all(self, indexes: Iterable[int], outcome: Outcome) -> None:
        """Record the same outcome for several events."""
        for index in indexes:
            self.settle(index, outcome)

    def lose(self, outcome: Outcome) -> None:
        """Record this outcome for everything that was sent and has no answer; send nothing more."""
        self._is_over = True
        self.settle_all(list(self._sent), outcome)

    def stop(self) -> None:
        """Send nothing more."""
        self._is_over = True

    def oldest_sent(self) -> int | None:
        """Return the index of the event that has waited longest for its answer."""
        return next(iter(self._sent), None)

    def unsettled(self) -> list[int]:
        """Return the indexes of events that have no outcome yet, sent or not."""
        return [index for index, outcome in enumerate(self._outcomes) if outcome is None]

    def outcomes(self) -> list[Outcome]:
        """Return an outcome for each event; `NotAttempted` for those that were not sent, or not settled themselves."""
        return mark_not_attempted(
            self.events, [NOT_ATTEMPTED if outcome is None else outcome for outcome in self._outcomes]
        )


NOWHERE = ""  # no place is an empty text


def places(template: Place, batch: Batch) -> list[str]:
    """Return the place of each event of a batch; reject those that have none, which is `NOWHERE`."""
    if template.fixed is not None:
        return [template.fixed] * len(batch.events)
    chosen = []
    for index, event in enumerate(batch.events):
        try:
            chosen.append(template.of(event))
        except BadValue as error:
            batch.settle(index, Rejected(error.problem))
            chosen.append(NOWHERE)
    return chosen


def grouped(indexes: Iterable[int], places: Sequence[str]) -> dict[str, list[int]]:
    """Return the indexes by their places, in the order in which these come."""
    groups: dict[str, list[int]] = {}
    for index in indexes:
        groups.setdefault(places[index], []).append(index)
    return groups


MAX_THREADS = 64


class RequestThreads:
    """A pool of threads, which are idle between calls and end with `close`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pool: ThreadPoolExecutor | None = None

    def run(self, batch: Batch, window: int, at_once: int, send: Callable[[Sequence[int]], None]) -> None:
        """Have `send` called in up to `window` threads, with all events of about `at_once` objects each time.

        An object's events are in one call, in their order. No call is running when this returns, or is interrupted.
        """
        chains: dict[str, list[int]] = {}
        for index, event in enumerate(batch.events):
            chains.setdefault(event.path, []).append(index)
        waiting = deque(chains.values())

        def take_chains() -> None:
            while waiting:
                chosen: list[int] = []
                while len(chosen) < at_once:
                    try:
                        chosen += waiting.popleft()
                    except IndexError:  # another thread was faster
                        break
                send(sorted(chosen))

        if self._pool is None:
            self._pool = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix=self._name)
        threads = min(window, MAX_THREADS, len(chains), -(-len(batch.events) // at_once))
        running: list[Future[None]] = []
        try:
            for _ in range(threads):
                running.append(self._pool.submit(take_chains))  # noqa: PERF401 (an interruption must find them)
            for sending in running:
                sending.result()
        finally:
            # No request may outlive the call, even if this thread is interrupted.
            batch.stop()
            wait(running)

    def close(self) -> None:
        """End the threads."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)


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
