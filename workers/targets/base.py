"""The interface of every target and of its adapter, and the errors that they may raise.

The rules of `deliver`, which the contract suite checks for each target:

* One outcome for each event, in the order of the events. `Delivered` only after the remote's confirmation.
* Events of one object (same `path`) reach the remote in the given order. After one that was not delivered (`Failed` or
  `Unavailable`) no later event of that object is sent in this call; it gets the outcome `NotAttempted`. A `Rejected`
  event does not hold up any other.
* After an `Unavailable` nothing more is sent. The events of requests that were refused or lost get that outcome, and
  unsent events `NotAttempted`: so the worker finds out sooner whether one event is to blame.
* `window` is the most requests that may be unconfirmed at once. With `window == 1` a request may carry many
  events only if the remote confirms them as one.
* A target never retries, sleeps, logs outcomes or accesses the outbox, and is safe to call twice with the same event.
* It calls `lease.check()` right before it sends each request and commits each transaction. When that raises
  `LeaseExpired`, it sends nothing more, rolls back what is not committed, and lets the exception leave `deliver`.
* It calls `lease.has_time()` before each request except a call's first. Once that returns false, it starts no further
  request, and unsent events are `NotAttempted`: a remote that takes long for each request must not hold up a partition,
  nor have its worker killed before anything is settled. It still waits for pending requests, but no longer than for
  one answer.
* Writes to a namespace that got no answer and may still be carried out are `Unavailable` with `may_arrive`, unless they
  cannot overwrite newer ones: a transaction whose COMMIT is sent after the answers to its statements holds its rows'
  locks, so that newer writes come after it.
* `workers.targets.batch` implements these rules for adapters that use it for bookkeeping.
* Any other exception out of `deliver` counts as `Unavailable` or `Failed` for every event of the call: the former for
  `TargetUnavailable`, which means that the remote is `unreachable`, so that every other event would fail as well.
"""

from collections.abc import Sequence
from typing import Protocol

from app.events.model import Event
from workers.delivery.outcomes import Outcome
from workers.targets.tcp import Endpoint


class TargetUnavailable(Exception):
    """The remote cannot be reached, refuses the login, or cannot accept anything now."""

    def __init__(
        self, reason: str, retry_after: float | None = None, *, pause: bool = False, may_arrive: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.pause = pause
        self.may_arrive = may_arrive  # as in `Unavailable`


class LeaseExpired(Exception):
    """The caller's right to deliver has ended: another worker may be delivering newer events of the same objects."""


class LeaseCheck(Protocol):
    """Checks whether the caller may still deliver. Thread-safe; a call usually takes well below a microsecond."""

    def check(self) -> None:
        """Return if something may be sent now. Raises `LeaseExpired`."""

    def has_time(self) -> bool:
        """Return whether there is time to start another request."""


class _NoLease:
    def check(self) -> None:
        """Return always."""

    def has_time(self) -> bool:
        """Return true."""
        return True


NO_LEASE = _NoLease()  # for callers that are alone with a target, such as a target test


class Target(Protocol):
    """One remote, owned by one worker process."""

    def open(self) -> None:
        """Connect, log in, create what is missing. Raises `TargetUnavailable`; may be called again after `close`."""

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Deliver `events`; see the rules at the top of this module."""

    def close(self) -> None:
        """Close every connection. May be called any number of times; never raises."""


class Adapter(Target, Protocol):
    """A target made from its settings by `workers.targets.create`, which opens nothing."""

    def endpoints(self) -> Sequence[Endpoint]:
        """Return the addresses that the settings name, in order; the proxy's if HTTP requests go through one.

        `open` needs to reach one of them. Raises `TargetUnavailable` for an unusable proxy or connection string.
        """


# One for the whole process: it makes one call at a time, and an adapter may use several threads for it.
_call_trace = ""


def begin_call_trace(trace: str) -> None:
    """Set the trace context of the call that begins, "" when it has ended or traces are not exported."""
    global _call_trace  # noqa: PLW0603 - one for each process is the point
    _call_trace = trace


def call_trace() -> str:
    """Return the trace context of the call that is being made: for a request with events of several traces."""
    return _call_trace
