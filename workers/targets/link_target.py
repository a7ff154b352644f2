"""What AMQP and MQTT targets share: one connection, a `Link`, on which events are sent and confirmed one by one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from app.events.model import Event
from workers.delivery.outcomes import Outcome, Unavailable
from workers.targets.base import NO_LEASE, LeaseCheck, TargetUnavailable
from workers.targets.batch import Batch


class Link(Protocol):
    """An open connection. Its methods raise the driver's errors when it is no longer usable."""

    def begin(self, batch: Batch) -> None:
        """Begin a new call; the remote's answers settle the events of its batch."""

    def send(self, index: int, window: int) -> None:
        """Send an event, if it may be sent, as soon as fewer than `window` are unconfirmed."""

    def gather(self, most: int) -> None:
        """Wait until at most that many events are unconfirmed."""

    def look(self) -> None:
        """Process the answers that have arrived, without waiting."""

    def is_stale(self) -> bool:
        """Return whether it was idle for so long that the remote may have closed it."""

    def close(self) -> None:
        """Sign off and close the connection."""

    def drop(self) -> None:
        """Close the socket."""


L = TypeVar("L", bound=Link)


class LinkTarget(ABC, Generic[L]):
    """One server and one connection, which is replaced when it was lost or idle for too long.

    `errors` are the driver's errors, after which a link is no longer usable.
    """

    def __init__(self, where: str, errors: tuple[type[Exception], ...]) -> None:
        self._where = where
        self._errors = errors
        self._link: L | None = None

    @abstractmethod
    def _open_link(self) -> L:
        """Connect and log in. Raises the driver's errors."""

    @abstractmethod
    def _groups(self, events: Sequence[Event], window: int) -> Iterable[Iterable[int]]:
        """Return the indexes of the events in the order of sending; a group is sent when the previous is confirmed."""

    @abstractmethod
    def _lost(self, link: L, error: Exception, reason: str) -> Unavailable:
        """Return the outcome of the events that were sent and are neither confirmed nor refused."""

    @abstractmethod
    def _describe_error(self, error: Exception) -> str:
        """Return one of the driver's errors as text."""

    def _check(self, link: L) -> None:
        """Raise `TargetUnavailable` if nothing can be sent over this link now."""

    def open(self) -> None:
        """Connect, log in, and create what the settings ask for."""
        self._connect()

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Keep up to `window` events unconfirmed; send none after one is `Unavailable` or the connection is lost."""
        link = self._usable_link()
        self._check(link)
        batch = Batch(events, lease)
        link.begin(batch)
        try:
            for group in self._groups(events, window):
                for index in group:
                    link.send(index, window)
                link.gather(0)
        except self._errors as error:
            batch.lose(self._lost(link, error, self._reason(error)))
        except BaseException:
            self._drop(link)
            raise
        return batch.outcomes()

    def close(self) -> None:
        """Close the connection."""
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _connect(self) -> L:
        self.close()
        try:
            link = self._link = self._open_link()
        except self._errors as error:
            raise TargetUnavailable(self._reason(error)) from error
        return link

    def _usable_link(self) -> L:
        """Return the link if it is still usable, else a new one: the server may have closed it or timed it out."""
        link = self._link
        if link is None or link.is_stale():
            return self._connect()
        try:
            link.look()
        except self._errors:
            self._drop(link)
            return self._connect()
        return link

    def _drop(self, link: L) -> None:
        self._link = None
        link.drop()

    def _reason(self, error: Exception) -> str:
        return f"{self._where}: {self._describe_error(error)}"
