"""Know whether a worker's pool has an idle process, so that a busy one may wait: for more events, or for a server."""

import mmap
import struct
import time

_MOST = 1023  # processes; those beyond are not counted
_TURN = struct.Struct("d")  # after the states: until when a process that would be the last idle one opens no target
# Seconds until a turn that its process did not end, because it died, is over; the factor by which openings pause for
# deliveries after a turn, so that a pool without idle processes opens targets in a quarter of its time; and the longest
# such pause.
_LONGEST_TURN, _SHARE, _LONGEST_PAUSE = 60.0, 3, 30.0
_ABSENT, _IDLE, _BUSY = b"\0", b"\1", b"\2"


class ProcessStates:
    """The states of the processes of one worker's pool, in memory that they share.

    A process that dies keeps its state until the successor of the same index begins.
    """

    def __init__(self) -> None:
        self._states: mmap.mmap | None = None
        self._own: int | None = None  # the index of this process

    def share(self) -> None:
        """Allocate the memory; call this before the pool forks its processes."""
        self._states = mmap.mmap(-1, _MOST + 1 + _TURN.size)

    def begin(self, index: int) -> None:
        """Count this process as idle, under its index in the pool."""
        self._own = index
        self.set_busy(busy=False)

    def set_busy(self, *, busy: bool) -> None:
        """Count this process as busy or as idle."""
        self._set(_BUSY if busy else _IDLE)

    def end(self) -> None:
        """Do not count this process any more."""
        self._set(_ABSENT)

    def stop(self) -> None:
        """Have `any_idle` return False from now on, because the worker shuts down."""
        if self._states is not None:
            self._states[_MOST] = 1

    def any_idle(self) -> bool:
        """Return whether a process of the pool is idle; False outside of a pool, and while the worker shuts down."""
        states = self._states
        return self._own is not None and states is not None and not states[_MOST] and states.find(_IDLE, 0, _MOST) >= 0

    def take_turn(self) -> bool:
        """Return whether this process may open a target now, which may take long; then call `end_turn`.

        It may while another process is idle, and outside of a pool. Otherwise deliveries may have to wait for the
        opening, so it must not begin while another process opens a target, and for some time after that.
        """
        states = self._states
        if self._own is None or states is None:
            return True
        if not self.any_idle() and time.monotonic() < _TURN.unpack_from(states, _MOST + 1)[0]:
            return False
        _TURN.pack_into(states, _MOST + 1, time.monotonic() + _LONGEST_TURN)
        return True

    def end_turn(self, seconds: float) -> None:
        """Have the pool deliver for a while, the longer the more seconds the opening took."""
        if self._states is not None:
            pause = min(_LONGEST_PAUSE, _SHARE * seconds)
            _TURN.pack_into(self._states, _MOST + 1, time.monotonic() + pause)

    def _set(self, state: bytes) -> None:
        if self._states is not None and self._own is not None and self._own < _MOST:
            self._states[self._own : self._own + 1] = state


processes = ProcessStates()  # of the pool that this process belongs to
