"""Create the adapter of a target's type; its driver is imported only then.

The adapter of a type is in `target.py` of the system of its name, in `workers.systems`. Its class is named as that of
its settings in `app.config.targets`: `RedisTarget` for `RedisSettings`. Here is what targets of several types share.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from app.config.declared_types import TYPES
from app.events.model import Event
from workers.delivery.outcomes import Failed, Outcome, Unavailable
from workers.targets import tcp
from workers.targets.base import NO_LEASE, Adapter, LeaseCheck, TargetUnavailable
from workers.targets.tcp import Endpoint


def create(type: str, settings: Any) -> Adapter:  # noqa: A002 (a target's type, as in its ARN)
    """Create a target of this type, not yet opened; `settings` is the type's dataclass of `app.config.targets`.

    Raises `LookupError` with the known types.
    """
    if type not in TYPES:
        raise LookupError(f"no target type {type!r}; there are {', '.join(TYPES)}")
    name = TYPES[type].__name__.removesuffix("Settings") + "Target"
    adapter: Adapter = getattr(import_module(f"workers.systems.{type}.target"), name)(settings)
    return AnyAddressTarget(adapter, settings.timeout)


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
