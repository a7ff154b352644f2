"""Know what the processes of a worker's pool do, so that a busy one may wait, and one target cannot hold them all."""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager

_MAX_PROCESSES = 1023  # those beyond are not counted
# After the states: until when a process that would be the last idle one opens no target; the two targets that had work
# last, each with the time, the later first; which target each process serves, and whether a wake-up was postponed.
_TURN, _LAST, _SERVED = struct.Struct("d"), struct.Struct("qdqd"), struct.Struct("q?")
_LAST_AT = _MAX_PROCESSES + 1 + _TURN.size
_SERVED_AT = _LAST_AT + _LAST.size
_NOBODY = 0  # instead of a target's row id
_LOCK_SECONDS = 0.1  # to wait for the lock, which is held for microseconds
_LATELY_SECONDS = 30.0  # for which a process is kept for other targets, after one of them had work
# A turn ends after so many seconds even if its process has died. After a turn, openings pause for deliveries by this
# factor of its time, so that a pool without idle processes opens targets in a quarter of its time, up to a limit.
_MAX_TURN_SECONDS, _PAUSE_FACTOR, _MAX_PAUSE_SECONDS = 60.0, 3, 30.0
_ABSENT, _IDLE, _BUSY = b"\0", b"\1", b"\2"


class ProcessStates:
    """The states of the processes of one worker's pool, in memory that they share.

    A process that dies keeps its state until the successor of the same index begins.
    """

    def __init__(self) -> None:
        self._states: mmap.mmap | None = None
        self._own: int | None = None  # the index of this process
        self._lock = -1  # a file whose lock the kernel releases if its process dies

    def share(self) -> None:
        """Allocate the memory; call this before the pool forks its processes."""
        self._states = mmap.mmap(-1, _SERVED_AT + _MAX_PROCESSES * _SERVED.size)
        self._lock = os.memfd_create("bucketwire-processes")

    def begin(self, index: int) -> None:
        """Count this process as idle, under its index in the pool."""
        self._own = index
        self._set_served(_NOBODY)
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
            self._states[_MAX_PROCESSES] = 1

    def any_idle(self) -> bool:
        """Return whether a process of the pool is idle; False outside of a pool, and while the worker shuts down."""
        states = self._states
        return (
            self._own is not None
            and states is not None
            and not states[_MAX_PROCESSES]
            and states.find(_IDLE, 0, _MAX_PROCESSES) >= 0
        )

    def take_turn(self) -> bool:
        """Return whether this process may open a target now, which may take long; then call `end_turn`.

        It may while another process is idle, and outside of a pool. Otherwise deliveries may have to wait for the
        opening, so it must not begin while another process opens a target, and for some time after that.
        """
        states = self._states
        if self._own is None or states is None:
            return True
        if not self.any_idle() and time.monotonic() < _TURN.unpack_from(states, _MAX_PROCESSES + 1)[0]:
            return False
        _TURN.pack_into(states, _MAX_PROCESSES + 1, time.monotonic() + _MAX_TURN_SECONDS)
        return True

    def end_turn(self, seconds: float) -> None:
        """Have the pool deliver for a while, the longer the more seconds the opening took."""
        if self._states is not None:
            pause = min(_MAX_PAUSE_SECONDS, _PAUSE_FACTOR * seconds)
            _TURN.pack_into(self._states, _MAX_PROCESSES + 1, time.monotonic() + pause)

    @contextmanager
    def serving(self, target_id: int) -> Iterator[bool]:
        """Yield whether this process may serve a target (by row id) now; it counts as serving it until the block ends.

        It may not if it is the last one that serves no target, another one serves this target, and another target had
        work lately: a target that takes long for each request would hold all processes of the pool.
        """
        may = self._serve(target_id)
        try:
            yield may
        finally:
            if may:
                self._set_served(_NOBODY)

    def has_postponed(self) -> bool:
        """Return whether another process may not serve the target of this one, since this one has begun with it."""
        if self._states is None or self._own is None or self._own >= _MAX_PROCESSES:
            return False
        postponed: bool = _SERVED.unpack_from(self._states, _place(self._own))[1]
        return postponed

    def _serve(self, target_id: int) -> bool:
        if self._states is None or self._own is None or self._own >= _MAX_PROCESSES:
            return True
        with self._locked():  # several get the wake-ups of one drain at the same time
            others_had_work = self._note_work(self._states, target_id)
            served = self._served_by_others(self._states)
            if others_had_work and _NOBODY not in served.values() and target_id in served.values():
                for index, other_id in served.items():
                    if other_id == target_id:
                        _SERVED.pack_into(self._states, _place(index), target_id, True)
                return False
            self._set_served(target_id)
        return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock of the pool, or none if its holder was stopped just there: that must not stop the others."""
        ends = time.monotonic() + _LOCK_SECONDS
        has_lock = False
        while not has_lock and time.monotonic() < ends:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                has_lock = True
            except BlockingIOError:
                time.sleep(0.001)
        try:
            yield
        finally:
            if has_lock:
                fcntl.lockf(self._lock, fcntl.LOCK_UN)

    def _note_work(self, states: mmap.mmap, target_id: int) -> bool:
        """Note that a target has work; return whether another one had some lately."""
        now = time.monotonic()
        latest, at, other, other_at = _LAST.unpack_from(states, _LAST_AT)
        if latest != target_id:
            other, other_at = latest, at
        _LAST.pack_into(states, _LAST_AT, target_id, now, other, other_at)
        return bool(other != _NOBODY and now - other_at < _LATELY_SECONDS)

    def _served_by_others(self, states: mmap.mmap) -> dict[int, int]:
        """Return the target that each other process serves, by the process's index."""
        return {
            index: _SERVED.unpack_from(states, _place(index))[0]
            for index, state in enumerate(states[:_MAX_PROCESSES])
            if state != _ABSENT[0] and index != self._own
        }

    def _set_served(self, target_id: int) -> None:
        if self._states is not None and self._own is not None and self._own < _MAX_PROCESSES:
            _SERVED.pack_into(self._states, _place(self._own), target_id, False)

    def _set(self, state: bytes) -> None:
        if self._states is not None and self._own is not None and self._own < _MAX_PROCESSES:
            self._states[self._own : self._own + 1] = state


def _place(index: int) -> int:
    return _SERVED_AT + index * _SERVED.size


processes = ProcessStates()  # of the pool that this process belongs to
