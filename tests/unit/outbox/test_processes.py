"""Which workers fell silent, by the heartbeats alone."""

from __future__ import annotations

from typing import Any

import pytest

from app.outbox.policies import HEARTBEATS
from app.outbox.processes import Process, forgettable, listed_processes, live_workers, silent_workers

NOW = 1_800_000_000_000
SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000
KILLED = NOW - MINUTE


def process(name: str, at: int = NOW - SECOND, *serves: str, started: int = NOW - DAY, **values: Any) -> Process:
    """A process `WHAT@HOST`; by default a worker for all targets that runs."""
    return Process(
        f"{name.rpartition('@')[2]}:{len(name)}:x{name}{started}", name, "1", "prefork", serves or ("targets",),
        started_at=started, at=at, **{"served_at": at} | values,
    )  # fmt: skip


def silent(*processes: Process) -> list[str]:
    return [one.name for one in silent_workers(processes, NOW)]


def test_a_worker_is_silent_from_half_a_minute_to_a_day_after_it_was_killed() -> None:
    for age, is_silent in ((0, False), (30, False), (31, True), (86_399, True), (86_401, False)):
        assert silent(process("w@a", NOW - age * SECOND)) == (["w@a"] if is_silent else []), age


def test_one_that_ended_in_order_is_not_silent_nor_are_the_api_and_beat() -> None:
    assert silent(process("w@a", KILLED, ended_at=KILLED + 1)) == []
    assert silent(process("api@a", KILLED, "api"), process("beat@a", KILLED, "beat")) == []


@pytest.mark.parametrize(
    ("gone", "new", "replaces"),
    [
        (["targets"], ["targets"], True),
        (["webhook"], ["targets"], True),
        (["webhook:x"], ["webhook", "redis"], True),
        (["drain", "targets"], ["drain", "targets"], True),
        (["targets"], ["webhook"], False),
        (["webhook"], ["webhook:x"], False),
        (["drain"], ["targets"], False),
        (["spark"], ["targets", "drain"], False),
        (["drain", "targets"], ["targets"], False),
    ],
)
def test_a_worker_that_began_later_and_serves_the_same_replaces_it(
    gone: list[str], new: list[str], replaces: bool
) -> None:
    dead = process("old@a", KILLED, *gone)
    assert silent(dead, process("new@b", NOW, *new, started=KILLED + 1)) == ([] if replaces else ["old@a"])
    assert silent(dead, process("new@b", NOW, *new, started=KILLED - 1)) == ["old@a"], "it was there before"


def test_each_new_worker_replaces_one_and_of_its_own_host_first() -> None:
    gone = [process("one@a", KILLED - 2), process("two@a", KILLED - 1), process("three@b", KILLED)]
    new = process("new@b", started=KILLED + 1)
    assert silent(*gone, new) == ["one@a", "two@a"]
    more = process("more@c", started=KILLED + 2)
    assert silent(*gone, new, more) == ["two@a"]
    assert silent(*gone, new, more, process("last@c", started=KILLED + 3)) == []


def test_of_one_that_replaced_another_and_was_killed_too_only_it_is_silent() -> None:
    assert silent(process("one@a", KILLED - MINUTE), process("two@a", KILLED, started=KILLED - 1)) == ["two@a"]


def test_what_is_there_and_what_is_silent_is_listed() -> None:
    gone, ended = process("gone@a", KILLED), process("ended@b", KILLED, ended_at=KILLED)
    there, away = process("there@c"), process("away@d", served_at=0, problem="no broker")
    old = process("old@c", KILLED - 1, "drain")
    new = process("new@c", NOW, "drain", started=KILLED)
    api, beat, second = (
        process("api@a", KILLED, "api"),
        process("beat@a", KILLED, "beat"),
        process("beat@b", NOW, "beat"),
    )
    found = listed_processes([gone, ended, there, away, old, new, api, beat, second], NOW)
    assert [one.name for one in found] == ["api@a", "away@d", "beat@b", "gone@a", "new@c", "there@c"]
    first = process("api@b", KILLED - DAY, "api", ended_at=KILLED - DAY)
    found = listed_processes([first, process("api@c", KILLED, "api", ended_at=KILLED)], NOW)
    assert [one.name for one in found] == ["api@c"], "of those that have ended, the last one"


def test_live_workers_are_counted_by_what_they_serve() -> None:
    found = live_workers(
        [
            process("a@a", NOW, "drain", "targets"),
            process("b@a", NOW, "targets"),
            process("c@a", KILLED, "sources"),
            process("d@a", NOW, "spark", served_at=KILLED, problem="no broker"),
            process("e@a", NOW, "api"),
            process("f@a", NOW, "beat"),
        ],
        NOW,
    )
    assert found == {"drain": 1, "targets": 2, "sources": 0, "spark": 0}


def test_many_that_crash_are_not_all_remembered() -> None:
    crashed = [process(f"w@{number}", KILLED - number) for number in range(2 * HEARTBEATS.max_ended)]
    last = process("drain@a", KILLED - 9 * DAY, "drain")
    forgotten = forgettable([*crashed, last], NOW)
    assert len(forgotten) == HEARTBEATS.max_ended
    assert crashed[0].id not in forgotten, "the last ones are"
    assert last.id not in forgotten, "nobody else says since when nothing drains"
