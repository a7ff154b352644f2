"""What the processes of a pool know of each other."""

import copy
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.forking import in_a_child
from workers.idle_processes import ProcessStates, Share


def test_outside_of_a_pool_no_process_is_idle() -> None:
    states = ProcessStates()
    states.set_busy(busy=True)
    assert not states.any_idle()
    states.share()
    assert not states.any_idle()
    states.begin(5000)
    assert not states.any_idle(), "more processes than are counted"


def test_processes_see_each_other_s_state_also_after_one_was_replaced(tmp_path: Path) -> None:
    states = ProcessStates()
    states.share()
    states.begin(0)
    assert states.any_idle()
    states.set_busy(busy=True)
    assert not states.any_idle()

    def other() -> None:
        states.begin(1)
        (tmp_path / "said").write_text("begun")
        states.set_busy(busy=True)
        os._exit(0)  # killed while it is at work

    in_a_child(other, tmp_path / "said")
    assert not states.any_idle(), "it counts as busy until its successor begins"
    in_a_child(lambda: states.begin(1), tmp_path / "said")
    assert states.any_idle()
    in_a_child(lambda: (states.begin(1), states.end()), tmp_path / "said")
    assert not states.any_idle()


def test_one_process_at_a_time_opens_a_target_while_none_is_idle() -> None:
    states = ProcessStates()
    assert [states.take_turn(), states.take_turn()] == [True, True], "outside of a pool nobody waits"
    states.share()
    states.begin(1)  # another process, which is idle
    states.begin(0)
    states.set_busy(busy=True)
    assert [states.take_turn(), states.take_turn()] == [True, True]
    states.begin(1)
    states.set_busy(busy=True)
    assert not states.take_turn(), "the last one is for deliveries while others open targets"
    states.end_turn(60.0)
    assert not states.take_turn(), "and for some time after an opening that took long"
    states.end_turn(0.0)
    assert [states.take_turn(), states.take_turn()] == [True, False]


def test_while_the_worker_shuts_down_nobody_waits(tmp_path: Path) -> None:
    states = ProcessStates()
    states.share()
    states.begin(0)
    states.stop()
    states.set_busy(busy=False)
    assert not states.any_idle()


A, B, C = 1, 2, 3  # targets
Pool = Callable[[int], ProcessStates]


@pytest.fixture
def pool() -> Pool:
    """A pool of three processes, each by its index: what the process of that index sees."""
    states = ProcessStates()
    states.share()

    def process(index: int) -> ProcessStates:
        seen = copy.copy(states)
        seen._own = index
        return seen

    for index in range(3):
        copy.copy(states).begin(index)
    return process


def test_one_target_is_served_by_all_processes_while_no_other_has_work(pool: Pool) -> None:
    with pool(0).serving(A) as first, pool(1).serving(A) as second, pool(2).serving(A) as third:
        assert (first, second, third) == (True, True, True)


def test_a_target_does_not_get_the_last_process_while_another_has_work(pool: Pool) -> None:
    with pool(0).serving(B):
        pass
    with pool(0).serving(A) as first, pool(1).serving(A) as second:
        with pool(2).serving(A) as third:
            assert (first, second, third) == (True, True, False)
        with pool(2).serving(B) as other:
            assert other, "it was kept for this"
        with pool(2).serving(C) as new:
            assert new
    with pool(2).serving(A) as later:
        assert later


def test_a_target_that_no_process_serves_gets_the_last_one(pool: Pool) -> None:
    with pool(0).serving(A), pool(1).serving(A), pool(2).serving(B) as may_serve:
        assert may_serve


def test_a_process_that_has_ended_is_neither_free_nor_taken(pool: Pool) -> None:
    with pool(0).serving(B):
        pass
    pool(2).end()
    with pool(0).serving(A), pool(1).serving(A) as may_serve:
        assert not may_serve
    with pool(0).serving(A):
        pool(0).begin(0)  # its successor
        with pool(1).serving(A) as may_serve:
            assert may_serve


def test_another_target_s_work_of_long_ago_does_not_count(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    with pool(0).serving(B):
        pass
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 31)
    with pool(0).serving(A), pool(1).serving(A), pool(2).serving(A) as may_serve:
        assert may_serve


def test_a_process_knows_that_others_postponed_a_wake_up_of_its_target(pool: Pool) -> None:
    with pool(0).serving(B):
        pass
    with pool(0).serving(A), pool(1).serving(A):
        assert not pool(0).has_postponed()
        with pool(2).serving(A):
            assert [pool(index).has_postponed() for index in range(3)] == [True, True, False]
    with pool(0).serving(A):
        assert not pool(0).has_postponed(), "that was before"


def test_targets_of_one_group_hold_half_of_the_pool_together(pool: Pool) -> None:
    """A limited token's, also while no other target has work."""
    with pool(0).serving(A, Share(-1, bounded=True)) as first, pool(1).serving(B, Share(-1, bounded=True)) as second:
        assert (first, second) == (True, False)
        with pool(1).serving(C) as other:
            assert other


def test_a_pool_of_one_process_serves_every_target() -> None:
    alone = ProcessStates()
    alone.share()
    alone.begin(0)
    for share in (Share(A, bounded=True), Share(B)):
        with alone.serving(A, share) as may_serve:
            assert may_serve


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Have so many seconds pass."""
    passed = [0.0]
    real = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed[0])

    def wait(seconds: float) -> None:
        passed[0] += seconds

    return wait


def _call(process: ProcessStates, target: int, later: Callable[[float], None], seconds: float) -> None:
    with process.serving(target), process.calling():
        later(seconds)


def test_a_target_that_took_long_does_not_get_the_last_process(pool: Pool, later: Callable[[float], None]) -> None:
    def gets_the_last() -> bool:
        with pool(0).serving(A), pool(1).serving(A), pool(2).serving(B) as may_serve:
            return may_serve

    _call(pool(0), B, later, 11)
    assert not gets_the_last()
    _call(pool(0), B, later, 1)
    assert not gets_the_last(), "one that hangs now and then stays slow for a minute"
    later(60)
    _call(pool(0), B, later, 1)
    assert gets_the_last()


def test_an_unknown_target_waits_for_the_last_process_after_another_took_long(
    pool: Pool, later: Callable[[float], None]
) -> None:
    _call(pool(0), B, later, 11)
    _call(pool(0), A, later, 1)
    with pool(0).serving(B), pool(1).serving(B):
        with pool(2).serving(C) as unknown:
            assert not unknown
        with pool(2).serving(A) as known:
            assert known, "it was quick"
        later(30)
        with pool(2).serving(C) as unknown:
            assert unknown


def test_one_that_is_known_to_be_slow_does_not_keep_an_unknown_one_waiting(
    pool: Pool, later: Callable[[float], None]
) -> None:
    """A target whose requests take 20 s each, again and again."""
    _call(pool(0), A, later, 20)
    _call(pool(0), A, later, 20)
    later(11)
    with pool(0).serving(A), pool(1).serving(A), pool(2).serving(C) as unknown:
        assert unknown


@pytest.mark.parametrize("targets", [(A, B, C), (A, A, B), (A, A, A)])
def test_of_a_pool_that_waits_for_long_one_process_has_to_end(
    pool: Pool, later: Callable[[float], None], targets: tuple[int, ...]
) -> None:
    states = [pool(index) for index in range(3)]
    with ExitStack() as stack:
        for process, target in zip(states, targets, strict=True):
            assert stack.enter_context(process.serving(target))
            stack.enter_context(process.calling())
        later(9)
        assert not any(process.hinders_others() for process in states)
        later(2)
        hindering = [process.hinders_others() for process in states]
        assert sum(hindering) == (0 if len(set(targets)) == 1 else 1), "its process is free at once"


def test_a_process_that_delivers_hinders_nobody(pool: Pool, later: Callable[[float], None]) -> None:
    with pool(0).serving(A), pool(0).calling(), pool(1).serving(B), pool(1).calling(), pool(2).serving(C):
        later(11)
        with pool(2).calling():
            assert not pool(0).hinders_others()
        pool(2).end()
        assert pool(0).hinders_others()


def test_outside_of_a_pool_each_target_is_served() -> None:
    states = ProcessStates()
    with states.serving(A) as may_serve:
        assert may_serve
        assert not states.has_postponed()


def test_a_process_that_is_stopped_while_it_has_the_lock_stops_no_other() -> None:
    states = ProcessStates()
    states.share()
    states.begin(0)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with states._locked():
            os.write(writing, b"locked")
            signal.pause()
    try:
        assert os.read(reading, 6) == b"locked"
        with states.serving(1) as may_serve:
            assert may_serve
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_target_whose_process_was_stopped_gets_the_last_one() -> None:
    """Its lease has run out, and the others of the pool would leave its target alone until it goes on or is killed."""
    states = ProcessStates()
    states.share()
    states.begin(0)
    child = os.fork()
    if not child:
        states.begin(1)
        with states.serving(1):
            os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    try:
        os.waitpid(child, os.WUNTRACED)
        with states.serving(2), states.calling():  # another target has work, and this one is known and quick
            pass
        with states.serving(1) as may, states.calling():
            assert may
        os.kill(child, signal.SIGCONT)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


ENDS = """
from types import SimpleNamespace
from workers import celery

done = []

def disown():
    done.append("revokes its leases")
    raise OSError("the outbox is away")

celery.processes.hinders_others = lambda: True
celery.runtime.current = lambda: SimpleNamespace(leases=SimpleNamespace(disown=disown))
celery.os.kill = lambda *_: done.append("ends")
celery._end_if_it_hinders_others()
print(*done, sep=", ")
"""


def test_a_process_that_ends_for_the_sake_of_others_revokes_its_leases_before(tmp_path: Path) -> None:
    """In a process of its own, because the module reads the settings."""
    environ = os.environ | {"BUCKETWIRE_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", ENDS], env=environ, stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "revokes its leases, ends"
