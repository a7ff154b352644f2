"""Decide when to retry a failed event and when to give up, and how long the breaker of an unavailable target is open.

Here are also the other numbers by which a worker's deliveries are tuned.

An event is retried with exponential back-off and full jitter. The circuit breaker opens for longer and longer, before
one partition probes the target:

closed ──unavailable──> open ──resume_at passed──> one partition probes ──delivered──> closed
                         ^                                   └──unavailable──> open, longer

An attempt counts once its batch is settled. A process that is killed before that counts none, however often it happens:
its events stay as they are, and are due again when its lease expires. Neither `max_attempts` nor `max_age` ends that.
"""

from dataclasses import dataclass
from random import Random

from app.outbox.policies import FUTURE_TIMES

# How many events go into a batch: as many as the target has proved to take in about a second.
INITIAL_BATCH_EVENTS = 16
FAST_CALL_SECONDS, SLOW_CALL_SECONDS = 1.0, 3.0  # after a faster one batches get larger, after a slower one smaller
BATCH_GROWTH = 4  # by which factor

# When a worker keeps its lease although nothing is due. Events gather during a pause and are delivered together; after
# the patience without any, the lease is released. The longest time bounds how late a dead letter is replayed meanwhile.
# It does not bound how late a replay begins: that revokes the lease, and waits until it has expired.
WAIT_PAUSE_SECONDS, WAIT_PATIENCE_SECONDS, MAX_WAIT_SECONDS = 0.008, 0.05, 1.0
# Where many events come in all the time, they gather for longer: a batch costs milliseconds, however small.
LONG_PAUSE_SECONDS = 0.02
FEW_EVENTS = 16  # of a batch; after more than these a worker goes on, whether others are idle or not
QUICK_BATCH_SECONDS = 0.05  # a target whose last batch took less is worth waiting for
MAX_BEHIND_SECONDS = 0.05  # for which a worker does not reach the end of the log before it lets others share the work
CHECK_SECONDS = 0.5  # how often a worker with a backlog checks that the target is unchanged

# After workers that were lost.
MAX_CAREFUL_EVENTS = 100  # of the log that are parked together, so that each is sent alone

# When a refusal is believed to be one of the whole target.
MAX_OPINIONS = 5  # second opinions per batch that may be refused
OPINION_PATIENCE_SECONDS = 1.0  # after that, one refused second opinion is enough
MAX_SAMPLED_OBJECTS = 1_000  # due objects to sample from while the target is in doubt

# When something is tried again.
FIRST_PROBE_MS, MAX_PROBE_MS = 200, 3_000  # so that delivery resumes within five seconds after the target is back
MAX_RETRY_AFTER_MS = FUTURE_TIMES.max_retry_after_ms  # a longer Retry-After of a remote is reduced to this
MAX_LATE_RETRY_MS = 60_000  # after its back-off a retry may be this late while its target is available
FIRST_REPLAY_WAIT_MS, MAX_REPLAY_WAIT_MS = 5_000, 300_000  # for a replay whose turn failed unexpectedly
MAX_DOUBLINGS = 10  # of a wait

LEASE_MARGIN = 0.1  # share of the lease time, at its end, in which nothing is sent: a request takes time to arrive
MAX_HISTORY_ATTEMPTS = 10  # that are kept of a parked event

# The record of attempts, which a thread writes beside the deliveries, and the log.
RECORD_INTERVAL_SECONDS = 2.0  # between two writes
SEPARATE_RUNS = 10  # rows of delivered events at one target after which contiguous batches are merged
MAX_RECORDED_ROWS = 250  # of delivered events at one target in a write, and as many others
MAX_EXCHANGE_LINE_BYTES = 300  # that are kept of the first line of a request or an answer
MAX_EXCHANGE_HEADER_BYTES = 1_024  # of its headers
MAX_EXCHANGE_BODY_BYTES = 1_024  # of its body: the log has the event whole, and an answer begins with what is wrong
LAST_RECORD_SECONDS = 5.0  # for the last write
TRIM_ROWS = 1_000  # of a target that a process writes between two times that it removes the oldest ones
LOG_LINE_SECONDS = 1.0  # whose batches share a line


@dataclass(frozen=True, slots=True)
class RetrySchedule:
    """A target's retry schedule; durations in milliseconds. `max_age` 0 = without end."""

    base: int = 1_000
    cap: int = 300_000
    max_attempts: int = 20
    max_age: int = 72 * 3_600_000

    def next_try(
        self,
        attempts: int,
        first_tried: int,
        last_tried: int,
        now: int,
        rng: Random,
        retry_after: float | None = None,
    ) -> int | None:
        """Return the time of the next try after the `attempts`-th failure, in milliseconds since 1970; None = give up.

        The wait is uniformly random in 0 … min(cap, base · 2^(attempts-1)), and never shorter than what the remote
        asked for (`retry_after`, seconds, up to 15 minutes). It is given up if `max_age` has passed since its first
        try, however long it had waited before that, but not at the first failure after an outage: `last_tried` is the
        time of the failure before, 0 for the first one. An outage, however long, must not cost an event an attempt.
        """
        if attempts >= self.max_attempts:
            return None
        wait = max(rng.randint(0, self._longest_wait(attempts)), bounded_retry_after(retry_after))
        due = now + wait
        if (
            self.max_age
            and due - first_tried > self.max_age
            and not self._was_away(attempts, last_tried, now, retry_after)
        ):
            return None
        return due

    def _longest_wait(self, attempts: int) -> int:
        return min(self.cap, self.base << min(max(attempts - 1, 0), 40))

    def _was_away(self, attempts: int, last_tried: int, now: int, retry_after: float | None) -> bool:
        """Return whether the target was unavailable or paused since the last failure: it was tried later than due."""
        asked = 0 if retry_after is None else MAX_RETRY_AFTER_MS  # what it may have asked for then
        due = last_tried + max(self._longest_wait(attempts - 1), asked)
        return last_tried > 0 and due + MAX_LATE_RETRY_MS < now


def bounded_retry_after(retry_after: float | None) -> int:
    """Return a remote's Retry-After (seconds) as milliseconds, within bounds."""
    return 0 if retry_after is None else max(0, min(int(retry_after * 1000), MAX_RETRY_AFTER_MS))


def back_off(failures: int, rng: Random, retry_after: float | None = None) -> int:
    """Return the milliseconds until the next probe, after `failures` consecutive unavailable results (≥ 1)."""
    ceiling = min(MAX_PROBE_MS, FIRST_PROBE_MS << min(failures - 1, MAX_DOUBLINGS))
    return max(rng.randint(ceiling // 2, ceiling), bounded_retry_after(retry_after))
