"""Postpone a replay whose turns fail unexpectedly, so that the events of the log continue."""

from app.outbox.delivery.leases import ReplayPartition
from workers.delivery import policy


class FailingReplays:
    """The replays of one target whose last turn in a partition failed. Times are milliseconds since 1970."""

    def __init__(self) -> None:
        self._failing: dict[tuple[int, int], tuple[int, int]] = {}  # consecutive failures, and when it is due again

    def is_due(self, replay: ReplayPartition, now: int) -> bool:
        """Return whether the replay may have a turn."""
        return self._failing.get(_place(replay), (0, 0))[1] <= now

    def postpone(self, replay: ReplayPartition, now: int) -> int:
        """Note a turn that failed; return how many milliseconds the next one is away, more after each failure."""
        failures, _ = self._failing.get(_place(replay), (0, 0))
        wait = min(policy.MAX_REPLAY_WAIT_MS, policy.FIRST_REPLAY_WAIT_MS << min(failures, policy.MAX_DOUBLINGS))
        self._failing[_place(replay)] = (failures + 1, now + wait)
        return wait

    def clear(self, replay: ReplayPartition) -> None:
        """Note a turn that succeeded."""
        self._failing.pop(_place(replay), None)


def _place(replay: ReplayPartition) -> tuple[int, int]:
    return replay.replay_id, replay.partition
