"""Know what the processes of a worker's pool do, and share them: no tenant and no slow target holds them all."""

import ctypes
import fcntl
import mmap
import os
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from app.config.arn import TargetId
from app.config.errors import BadSettings
from app.config.targets.base import MAX_LIMITED_SECONDS
from app.outbox.declared import StoredTarget
from app.outbox.engine.database import Database
from app.outbox.registry import Registry
from app.outbox.tokens import read_target_owners

_MAX_PROCESSES = 1023  # those beyond are not counted
_MAX_KNOWN = 256  # groups whose last calls are remembered
_NOBODY = 0  # instead of a group
_LOCK_SECONDS = 0.1  # to wait for the lock, which is held for microseconds
_LATELY_SECONDS = 30.0  # for which a process is kept for other targets, after one of them had work
_LONG_CALL_SECONDS = 10.0  # a call that takes longer makes its group slow
_SLOW_SECONDS = 60.0  # for which a group stays slow at least, so that one that hangs now and then is slow
# A turn ends after so many seconds even if its process has died. After a turn, openings pause for deliveries by this
# factor of its time, so that a pool without idle processes opens targets in a quarter of its time, up to a limit. In
# the same way an unknown group does not get the last process soon after another one has held it for long.
_MAX_TURN_SECONDS, _PAUSE_FACTOR, _MAX_PAUSE_SECONDS = 60.0, 3, 30.0
_ABSENT, _IDLE, _BUSY = 0, 1, 2


class Share(NamedTuple):
    """Whose share of a pool a target uses: that of a group of targets, or its own.

    `group` is the target's row id, or a negative number for several targets that one token may set. A `bounded` group
    holds at most half of the processes, also while no other target has work. `limited` says that it is a token's.
    """

    group: int
    bounded: bool = False
    limited: bool = False


class _Process(ctypes.Structure):
    """What a process does: which group it serves, since when it waits for its target (0: it does not)."""

    _fields_ = (
        ("pid", ctypes.c_int32),
        ("group", ctypes.c_int64),
        ("calling_since", ctypes.c_double),
        ("has_postponed", ctypes.c_bool),
    )


class _Pool(ctypes.Structure):
    """What the processes share. The two groups that had work last are here, the later first, each with the time."""

    _fields_ = (
        ("states", ctypes.c_ubyte * _MAX_PROCESSES),  # first, so that one is found quickly
        ("is_stopping", ctypes.c_bool),
        ("count", ctypes.c_int),  # of processes, with those that have ended
        ("opening_until", ctypes.c_double),  # until then a process that would be the last idle one opens no target
        ("unknown_from", ctypes.c_double),  # from then on an unknown group gets the last process
        ("latest", ctypes.c_int64),
        ("latest_at", ctypes.c_double),
        ("other", ctypes.c_int64),
        ("other_at", ctypes.c_double),
        ("known", ctypes.c_int64 * _MAX_KNOWN),  # groups that were called
        ("slow_until", ctypes.c_double * _MAX_KNOWN),  # of each; 0: its last call was not long
        ("next_known", ctypes.c_int),
        ("processes", _Process * _MAX_PROCESSES),
    )


class ProcessStates:
    """The states of the processes of one worker's pool, in memory that they share.

    A process that dies keeps its state until the successor of the same index begins.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None
        self._pool: _Pool | None = None
        self._own: int | None = None  # the index of this process
        self._lock = -1  # a file whose lock the kernel releases if its process dies

    def share(self) -> None:
        """Allocate the memory; call this before the pool forks its processes."""
        self._memory = mmap.mmap(-1, ctypes.sizeof(_Pool))
        self._pool = _Pool.from_buffer(self._memory)
        self._lock = os.memfd_create("bucketwire-processes")

    def begin(self, index: int) -> None:
        """Count this process as idle, under its index in the pool."""
        self._own = index
        if (own := self._process()) is not None and self._pool is not None:
            own.pid, own.group, own.calling_since, own.has_postponed = os.getpid(), _NOBODY, 0.0, False
            self._pool.count = max(self._pool.count, index + 1)
        self.set_busy(busy=False)

    def set_busy(self, *, busy: bool) -> None:
        """Count this process as busy or as idle."""
        self._set(_BUSY if busy else _IDLE)

    def end(self) -> None:
        """Do not count this process any more."""
        self._set(_ABSENT)

    def stop(self) -> None:
        """Have `any_idle` return False from now on, because the worker shuts down."""
        if self._pool is not None:
            self._pool.is_stopping = True

    def any_idle(self) -> bool:
        """Return whether a process of the pool is idle; False outside of a pool, and while the worker shuts down."""
        pool, memory = self._pool, self._memory
        if self._own is None or pool is None or memory is None or pool.is_stopping:
            return False
        return memory.find(bytes([_IDLE]), 0, _MAX_PROCESSES) >= 0

    def take_turn(self) -> bool:
        """Return whether this process may open a target now, which may take long; then call `end_turn`.

        It may while another process is idle, and outside of a pool. Otherwise deliveries may have to wait for the
        opening, so it must not begin while another process opens a target, and for some time after that.
        """
        if self._own is None or self._pool is None:
            return True
        if not self.any_idle() and time.monotonic() < self._pool.opening_until:
            return False
        self._pool.opening_until = time.monotonic() + _MAX_TURN_SECONDS
        return True

    def end_turn(self, seconds: float) -> None:
        """Have the pool deliver for a while, the longer the more seconds the opening took."""
        if self._pool is not None:
            self._pool.opening_until = _after_pause(seconds)

    @contextmanager
    def serving(self, target_id: int, share: Share | None = None) -> Iterator[bool]:
        """Yield whether this process may serve a target (by row id) now; it counts as serving it until the block ends.

        It may not if it is the last one that serves nothing, another group has work, and this group is served already,
        is slow, or is unknown soon after another one was found slow. A bounded group has half of the pool at most.

        A process that hangs, but was not stopped, still counts as serving its group, after its lease has expired, too:
        in a pool of two that group waits until no other had work for `_LATELY_SECONDS`, or the time limit of its task
        is over and it is killed.
        """
        may = self._serve(share or Share(target_id))
        try:
            yield may
        finally:
            if may and (own := self._process()) is not None:
                own.group, own.has_postponed = _NOBODY, False

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Count this process as waiting for its target until the block ends, and remember whether that took long."""
        own = self._process()
        if own is None:
            yield
            return
        own.calling_since = began = time.monotonic()
        try:
            yield
        finally:
            own.calling_since = 0.0
            with self._locked():
                self._remember(own.group, time.monotonic() - began)

    def has_postponed(self) -> bool:
        """Return whether another process may not serve the group of this one, since this one has begun with it."""
        own = self._process()
        return own is not None and bool(own.has_postponed)

    def hinders_others(self) -> bool:
        """Return whether this process has to end, because all of the pool wait for their targets for long.

        Then it counts as free and its group as slow. None has to if they are all for one group and no other has work.
        """
        own, pool = self._process(), self._pool
        if own is None or pool is None or pool.is_stopping or not own.calling_since:
            return False
        now = time.monotonic()
        with self._locked():
            others = self._others(pool)
            if not others or not all(0 < one.calling_since < now - _LONG_CALL_SECONDS for one in (own, *others)):
                return False
            if not self._others_have_work(pool, others, own.group):
                return False
            self._remember(own.group, now - own.calling_since)
            own.group, own.calling_since = _NOBODY, 0.0
        return True

    def _serve(self, share: Share) -> bool:
        own, pool = self._process(), self._pool
        if own is None or pool is None:
            return True
        with self._locked():  # several get the wake-ups of one drain at the same time
            self._note_work(pool, share.group)
            others = self._others(pool)
            # One that was stopped has lost its lease, or will: others serve its target meanwhile.
            alike = [one for one in others if one.group == share.group and not _is_stopped(one.pid)]
            if not self._has_room(pool, share, others, alike):
                for one in alike:
                    one.has_postponed = True
                return False
            own.group, own.has_postponed = share.group, False
        return True

    def _has_room(self, pool: _Pool, share: Share, others: Sequence[_Process], alike: Sequence[_Process]) -> bool:
        if share.bounded and len(alike) >= max(1, (len(others) + 1) // 2):
            return False
        if not others or any(one.group == _NOBODY for one in others):
            return True
        if not self._others_have_work(pool, others, share.group):
            return True
        if share.group not in pool.known[:]:
            return not alike and time.monotonic() >= pool.unknown_from
        return not alike and not pool.slow_until[pool.known[:].index(share.group)]

    def _others_have_work(self, pool: _Pool, processes: Sequence[_Process], group: int) -> bool:
        """Return whether one of the processes serves another group, or another one had work lately."""
        if any(one.group not in (_NOBODY, group) for one in processes):
            return True
        work = ((pool.latest, pool.latest_at), (pool.other, pool.other_at))
        now = time.monotonic()
        return any(one not in (_NOBODY, group) and now - at < _LATELY_SECONDS for one, at in work)

    def _note_work(self, pool: _Pool, group: int) -> None:
        if pool.latest != group:
            pool.other, pool.other_at = pool.latest, pool.latest_at
        pool.latest, pool.latest_at = group, time.monotonic()

    def _remember(self, group: int, seconds: float) -> None:
        """Remember how long a call for a group took. The caller has the lock."""
        pool, now = self._pool, time.monotonic()
        if pool is None or group == _NOBODY:
            return
        known = pool.known[:]
        place = known.index(group) if group in known else -1
        if place < 0:
            place = pool.next_known
            pool.next_known = (place + 1) % _MAX_KNOWN
            pool.known[place], pool.slow_until[place] = group, 0.0
        if seconds > _LONG_CALL_SECONDS:
            if not pool.slow_until[place]:  # else it held no last process, and says nothing of unknown groups
                pool.unknown_from = _after_pause(seconds)
            pool.slow_until[place] = now + _SLOW_SECONDS
        elif pool.slow_until[place] <= now:
            pool.slow_until[place] = 0.0

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

    def _others(self, pool: _Pool) -> list[_Process]:
        """Return the other processes that have begun and not ended."""
        states = pool.states[: pool.count]
        present = (index for index, state in enumerate(states) if state != _ABSENT and index != self._own)
        return [pool.processes[index] for index in present]

    def _process(self) -> _Process | None:
        """Return what is shared of this process; None outside of a pool."""
        if self._pool is None or self._own is None or self._own >= _MAX_PROCESSES:
            return None
        process: _Process = self._pool.processes[self._own]
        return process

    def _set(self, state: int) -> None:
        if self._pool is not None and self._own is not None and self._own < _MAX_PROCESSES:
            self._pool.states[self._own] = state


def _is_stopped(pid: int) -> bool:
    """Return whether a process was stopped by a signal or a debugger."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # it has ended
        return False
    return state in ("T", "t")


def _after_pause(seconds: float) -> float:
    return time.monotonic() + min(_MAX_PAUSE_SECONDS, _PAUSE_FACTOR * seconds)


processes = ProcessStates()  # of the pool that this process belongs to


_OWNERS_KNOWN_SECONDS = 10.0  # for which the tokens are cached
_MAX_PATIENT = 10_000  # targets whose time limits are cached


class PoolShares:
    """The shares of the targets that a process serves. Its methods raise `DatabaseUnavailable`."""

    def __init__(self, database: Database, registry: Registry) -> None:
        self._database = database
        self._registry = registry
        self._owners: dict[TargetId, str] = {}
        self._read_again = 0.0  # by time.monotonic()
        self._patient: dict[tuple[int, int], bool] = {}  # by row id and revision

    def of(self, stored: StoredTarget) -> Share:
        """Return the share that a target uses: that of the token which may set it, if it is limited, or its own."""
        if time.monotonic() >= self._read_again:
            self._owners = read_target_owners(self._database)
            self._read_again = time.monotonic() + _OWNERS_KNOWN_SECONDS
        owner = self._owners.get(stored.target)
        if owner is not None:
            return Share(-1 - zlib.crc32(owner.encode()), bounded=True, limited=True)
        return Share(stored.row_id, bounded=self._is_patient(stored))

    def _is_patient(self, stored: StoredTarget) -> bool:
        key = (stored.row_id, stored.revision)
        if key not in self._patient:
            if len(self._patient) >= _MAX_PATIENT:
                self._patient.clear()
            try:
                limits = dict(self._registry.settings(stored).time_limits())
            except BadSettings:  # it makes no call
                limits = {}
            self._patient[key] = max(limits.values(), default=0.0) > MAX_LIMITED_SECONDS
        return self._patient[key]
