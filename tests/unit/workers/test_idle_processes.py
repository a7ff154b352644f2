"""What the processes of a pool know of each other."""

import os
from pathlib import Path

from tests.support.forking import in_a_child
from workers.idle_processes import ProcessStates


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
