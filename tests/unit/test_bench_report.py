"""The page that says which aims of the benchmarks are met."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from bench import report
from bench.report import Aim
from bench.scale import describe_bound


@pytest.mark.parametrize(
    ("aim", "cells"),
    [
        (Aim(0.61, 0.6, "posts", "a view"), ("61%", "at least 60%", "yes")),
        (Aim(0.59, 0.6, "posts", "a view"), ("59%", "at least 60%", "NO")),
        (Aim(12.2, None, "posts", "a commit each"), ("12.2 times", "–", "–")),
        (Aim(1.69, 1.7, "backlog", "a commit", "x"), ("1.69 times", "at least 1.7 times", "NO")),
        (Aim(3, 0, "lost", unit="events", most=True), ("3 events", "at most 0 events", "NO")),
        (Aim(0, 0, "lost", unit="events", most=True), ("0 events", "at most 0 events", "yes")),
        (Aim(14.94, 15, "p50", unit="ms", most=True), ("14.9 ms", "at most 15 ms", "yes")),
    ],
)
def test_a_row_has_its_value_its_aim_and_whether_it_is_met(aim: Aim, cells: tuple[str, str, str]) -> None:
    row = aim.row()
    assert (row["ratio"], row["aim"], row["met"]) == cells


def test_the_last_page_counts_the_aims_that_are_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    report.show("one", "One", [{"rate": 1.0}], aims=[Aim(0.7, 0.6, "first", "x"), Aim(0.5, 0.6, "second", "x")])
    report.show("two", "Two", [{"rate": 1.0}], aims=[Aim(2, None, "third", "x")])
    capsys.readouterr()
    report.show_aims(["one", "two"])
    page = capsys.readouterr().out
    assert "1 of 2 aims met" in page
    assert [name for name in ("first", "second", "third") if name in page] == ["first", "second", "third"]


def test_what_bounds_a_rate_is_the_processors_if_none_is_left_else_what_most_sessions_wait_for() -> None:
    waits = {"": 100, "Lock:transactionid": 250, "IO:WALSync": 60}
    assert describe_bound(1.9, 2, Counter(waits)) == "processors (1.9)"
    assert describe_bound(1.2, 2, Counter(waits)) == "Lock:transactionid (2.5)"
    assert describe_bound(0.1, 2, Counter()) == "nothing (0.0)"
