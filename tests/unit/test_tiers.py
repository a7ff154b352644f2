"""What the tiers promise: together they are everything, and `make test` runs each test at least once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from tests.contract.probes.registry import PROBES
from tests.support import tiers
from tests.support.statement_cover import COVER, FOLDER

TOP = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


@cache
def collected(*options: str) -> list[str]:
    """The ids of the tests of all modules that have rules."""
    argv = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", *options, *tiers.RULES]
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # -v would show a tree
    done = subprocess.run(argv, cwd=TOP, env=plain, capture_output=True, text=True, timeout=120, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def functions(ids: Iterable[str]) -> set[str]:
    return {each.partition("[")[0] for each in ids}


def test_the_third_tier_is_everything_and_the_second_a_part_of_it() -> None:
    assert set(collected("--tier", "2")) < set(collected())


def test_no_test_is_left_out_of_the_second_tier_with_all_its_parameters() -> None:
    assert functions(collected("--tier", "2")) == functions(collected())


@pytest.mark.parametrize("module", sorted(tiers.RULES))
def test_each_rule_moves_something(module: str) -> None:
    usual = collected("--tier", "2")
    assert [each for each in collected() if each.startswith(module) and each not in usual]


def test_the_third_tier_tries_four_times_the_examples_of_a_property() -> None:
    [profile] = re.findall(r"--tier 3 --hypothesis-profile (\w+)", (TOP / "Makefile").read_text())
    assert settings.get_profile(profile).max_examples == 4 * settings.get_profile("usual").max_examples


def test_each_way_of_using_a_target_is_known_and_each_target_has_one_whole_way() -> None:
    beside = tiers.SECOND_WAYS | tiers.COMBINED_WAYS
    assert beside < PROBES.keys()
    assert {kind.type for kind in PROBES.values()} == {kind.type for way, kind in PROBES.items() if way not in beside}


def test_the_words_of_the_rules_are_beginnings_of_tests() -> None:
    names = {each.rpartition("::")[2] for each in functions(collected())}
    words = tiers.OF_THE_CONNECTION + tiers.OF_THE_CONFIRMATION + tiers.OF_THE_MESSAGE
    words += tiers.OF_THE_VALUES + tuple(tiers.OF_WHOLE_WORKERS)
    assert [word for word in words if not any(name.startswith(word) for name in names)] == []


def test_the_cover_of_the_statements_names_tests() -> None:
    names = functions(collected())
    assert [
        f"{module}.py::{test}"
        for module, tests in COVER.items()
        for test in tests
        if f"{FOLDER}/{module}.py::{test}" not in names
    ] == []
