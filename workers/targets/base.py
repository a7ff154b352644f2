"""What every target owes: three methods, and the errors they may raise.

The rules of `deliver`, which the contract suite checks for each target:

* One outcome for each event, in the order of the events. `Delivered` only after the remote's confirmation.
* Events of one object (same `path`) reach the remote in the order given. After one that did not get through
  (`Failed` or `Unavailable`) no later event of that object is sent in this call; it gets the outcome `NotAttempted`.
  A `Rejected` event holds up nothing.
* After an `Unavailable` nothing more is sent. The events of requests that were refused or lost get that outcome, and
  those not sent `NotAttempted`: the worker then knows sooner whether one event is to blame.
* `window` is the most requests that may be unconfirmed at once. With `window == 1` a request may carry many
  events only where the remote confirms them as one.
* A target never retries, sleeps, logs outcomes or knows the outbox, and is safe to call twice with the same event.
* `lease.check()` is called right before each request is sent and each transaction is committed. When it raises
  `LeaseExpired`, nothing more is sent, what was not committed is rolled back, and the exception leaves `deliver`.
* `lease.has_time()` is asked before each request but a call's first. Once it says no, none is begun any more, and what
  was not sent is `NotAttempted`: a remote that takes long for each request must not keep a partition, nor have its
  worker killed before anything is settled. What is under way is waited for, but no longer than for one answer.
* `workers.targets.batch` keeps these rules for whoever has it do the bookkeeping.
* Whatever else it raises out of `deliver` is taken as `Unavailable` or `Failed` for every event of the call: the former
  for a `TargetUnavailable`, which says that the remote is `unreachable`, so that no event would fare better.
"""

from collections.abc import Sequence
from typing import Protocol

from app.events.model import Event
from workers.delivery.outcomes import Outcome


class TargetUnavailable(Exception):
    """The remote cannot be reached, does not let us in, or cannot take anything now."""

    def __init__(self, reason: str, retry_after: float | None = None, *, pause: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after
        self.pause = pause


class LeaseExpired(Exception):
    """The caller's right to deliver has ended: somebody else may be delivering newer events of the same objects."""


class LeaseCheck(Protocol):
    """Says whether the caller may still deliver. Any thread may ask; it takes well below a microsecond as a rule."""

    def check(self) -> None:
        """Return if something may be sent now. Raises `LeaseExpired`."""

    def has_time(self) -> bool:
        """Whether there is time to begin another request."""


class _NoLease:
    def check(self) -> None:
        """Always return."""

    def has_time(self) -> bool:
        """There is time."""
        return True


NO_LEASE = _NoLease()  # for whoever is alone with a target, as a test of it is


class Target(Protocol):
    """One remote, owned by one worker process."""

    def open(self) -> None:
        """Connect, log in, create what is missing. Raises `TargetUnavailable`; may be called again after `close`."""

    def deliver(self, events: Sequence[Event], window: int, lease: LeaseCheck = NO_LEASE) -> Sequence[Outcome]:
        """Deliver `events`; the rules stand at the top of this module."""

    def close(self) -> None:
        """Let go of every connection. Any number of times, never raises."""
