"""Let a target pass over the addresses of a name that accept a connection and then say nothing."""

from collections.abc import Sequence

from app.events.model import Event
from workers.delivery.outcomes import Failed, Outcome, Unavailable
from workers.targets import tcp
from workers.targets.base import NO_LEASE, Adapter, LeaseCheck, TargetUnavailable
from workers.targets.endpoint import Endpoint


class AnyAddressTarget:
    """Wraps an adapter, whose time limit for connecting is `seconds`.

    `open` is tried again at the next address; a delivery is not, as the remote may have carried it out, but the next
    connection is made to another address. The connections have to be made by `workers.targets.tcp`, or known to it.
    """

    def __init__(self, adapter: Adapter, seconds: float) -> None:
        self._adapter = adapter
        self._seconds = seconds

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the adapter's."""
        return self._adapter.endpoints()

    def open(self) -> None:
        """Open the adapter."""
        tcp.reaching(self._adapter.open, self._seconds)

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Deliver by the adapter."""
        with tcp.Attempt() as attempt:
            try:
                outcomes = self._adapter.deliver(events, window, lease)
            except TargetUnavailable:
                attempt.passes_over()
                raise
            if any(isinstance(outcome, Failed | Unavailable) for outcome in outcomes):
                attempt.passes_over()
            return outcomes

    def close(self) -> None:
        """Close the adapter."""
        self._adapter.close()
