"""What the SQL targets share: one table, one connection, one transaction for each call, and batches taken apart.

A batch with events that cannot be stored is divided until each of them is found.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from app.events.model import Effect, Event
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Outcome, Rejected, Unavailable
from workers.targets.base import NO_LEASE, LeaseCheck, LeaseExpired, TargetUnavailable
from workers.targets.batch import Doubt, resolve
from workers.targets.payloads import mark_not_attempted


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


# After which the server ends a transaction whose client says nothing, since the network may have forgotten it: until
# then its rows are locked, and newer writes wait.
IDLE_SECONDS = 10

S = TypeVar("S")  # a session: an open connection, and the table that it reaches
E = TypeVar("E", bound=Exception)


class SqlTarget(ABC, Generic[S, E]):
    """One table, one connection. `driver_error` is the base of the driver's errors."""

    def __init__(self, driver_error: type[E]) -> None:
        self._driver_error = driver_error
        self._session: S | None = None

    @abstractmethod
    def _open_session(self) -> S:
        """Connect, and create or check the table. Raises `TargetUnavailable` or the driver's errors."""

    @abstractmethod
    def _close_session(self, session: S) -> None:
        """Close the connection; never raises."""

    @abstractmethod
    def _is_stale(self, session: S) -> bool:
        """Return whether the connection is lost, or its certificate files have changed."""

    @abstractmethod
    def _unfit(self, session: S, event: Event) -> Rejected | None:
        """Reject an event that the server or the driver could not take, and that would fail the whole batch."""

    @abstractmethod
    def _write(self, session: S, lease: LeaseCheck, events: Sequence[Event]) -> Sequence[Outcome]:
        """Write one transaction. Raises the driver's errors if it is not committed."""

    @abstractmethod
    def _reason(self, error: E) -> str:
        """Return one of the driver's errors as text, with the table."""

    def open(self) -> None:
        """Connect; create the table if it is missing, else check its columns and keys."""
        self._connect()

    def deliver(
        self,
        events: Sequence[Event],
        window: int,  # noqa: ARG002 (one transaction)
        lease: LeaseCheck = NO_LEASE,
    ) -> Sequence[Outcome]:
        """Write one transaction; either all of it is committed or none."""
        session = self._session
        if session is None or self._is_stale(session):
            session = self._connect()
        try:
            outcomes = set_apart(events, partial(self._unfit, session), partial(self._write, session, lease))
            return mark_not_attempted(events, outcomes)
        except self._driver_error as error:
            self.close()
            return mark_not_attempted(events, [Unavailable(self._reason(error))] * len(events))
        except LeaseExpired:
            self.close()  # this rolls back
            raise

    def close(self) -> None:
        """Close the connection; the server rolls back uncommitted changes."""
        session, self._session = self._session, None
        if session is not None:
            self._close_session(session)

    def _connect(self) -> S:
        self.close()
        try:
            session = self._session = self._open_session()
        except self._driver_error as error:
            raise TargetUnavailable(self._reason(error)) from error
        return session
