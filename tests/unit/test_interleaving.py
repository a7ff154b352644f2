"""Which interruptions of one operation by another are run: one of those that cannot differ in their result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.support.interleaving import ALL, Done, Explorer, Operations, Share, Step, parsed

WRITE_CURSOR = parsed("UPDATE cursors SET position = 1")
READ_CURSOR = parsed("SELECT position FROM cursors")
READ_PARKED = parsed("SELECT seq FROM parked")
WRITE_PARKED = parsed("DELETE FROM parked")
COMMIT = Step("COMMIT", writes=frozenset({"cursors", "parked"}), commit=True)


def run(sides: Sequence[Sequence[Step]], choose: Callable[[dict[int, Step]], int]) -> Done:
    """What would happen on a database whose only lock is that of the table `cursors`, until COMMIT."""
    done: Done = []
    places, owner = [0, 0], None
    waiting: set[int] = set()
    while True:
        ready = {
            side: steps[places[side]]
            for side, steps in enumerate(sides)
            if places[side] < len(steps) and side not in waiting
        }
        if not ready:
            return done
        side = choose(ready)
        step = ready[side]
        done.append((side, step))
        places[side] += 1
        if "cursors" in step.writes and not step.commit:
            if owner is None:
                owner = side
            elif owner != side:
                waiting.add(side)
        if step.commit and owner == side:
            owner = next(iter(waiting), None)
            waiting.clear()


def orders(
    monkeypatch: pytest.MonkeyPatch, first: Sequence[Step], second: Sequence[Step], share: Share = ALL
) -> list[str]:
    def simulated(_: Explorer, operations: Any, choose: Callable[[dict[int, Step]], int]) -> Done:
        return run(operations, choose)

    monkeypatch.setattr(Explorer, "_run", simulated)
    operations: Operations = lambda: [first, second]  # type: ignore[list-item, return-value]  # noqa: E731
    found = list(Explorer([], None).interrupted_once(operations, share))  # type: ignore[arg-type]
    return ["".join("AB"[side] for side, _ in done) for done in found]


def test_two_that_touch_nothing_of_each_other_are_run_in_one_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert orders(monkeypatch, [READ_PARKED, READ_PARKED], [READ_CURSOR, READ_CURSOR]) == ["AABB"]


def test_a_reader_is_interrupted_before_each_look_that_another_commit_can_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader = [READ_CURSOR, READ_PARKED, READ_CURSOR]
    assert orders(monkeypatch, reader, [WRITE_CURSOR, COMMIT]) == ["AAABB", "ABBAA", "AABBA", "BBAAA"]


def test_the_parts_of_the_interruptions_are_together_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [READ_CURSOR, READ_PARKED, READ_CURSOR], [WRITE_CURSOR, COMMIT]
    parts = [orders(monkeypatch, *two, Share(2, part)) for part in range(4)]
    assert {order for part in parts for order in part} == set(orders(monkeypatch, *two))
    assert max(map(len, parts)) == 2


def test_one_that_waits_for_a_lock_is_made_to_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one holds it from its first statement to its COMMIT: three interruptions, of which two are the same."""
    holder = [WRITE_CURSOR, WRITE_PARKED, READ_PARKED, COMMIT]
    found = orders(monkeypatch, holder, [WRITE_CURSOR, READ_PARKED, COMMIT])
    assert found[:2] == ["AAAABBB", "ABAAABB"]
    assert "AABAABB" not in found
    assert "AAABABB" not in found


def test_one_that_has_a_statement_in_the_way_is_interrupted_after_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the waiting one has locked `parked` before it waits: it may meet the other's DELETE, or come after it."""
    holder = [WRITE_CURSOR, WRITE_PARKED, READ_PARKED, COMMIT]
    found = orders(monkeypatch, holder, [WRITE_PARKED, WRITE_CURSOR, COMMIT])
    assert "ABBAAAB" in found
    assert "AABBAAB" in found
    assert "AAABBAB" not in found
