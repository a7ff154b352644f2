"""What the tiers promise: together they are everything, and `make test` runs each test at least once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import settings

from tests.contract.probes.registry import PROBES
from tests.support import tiers
from tests.support.statement_cover import COVER, FOLDER, NOT_ON_POSTGRESQL, ON_MARIADB, ON_POSTGRESQL

TOP = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


OTHERS = ("heavy", "sender")  # which neither tier runs

# What `--tier 2` leaves out, by a marker or by a rule, and what it chooses; nothing of what each tier leaves out.
COLLECT = """
import sys, pytest
class Told:
    def pytest_collection_finish(self, session):
        from tests.unit.test_tiers import lines
        print(*lines(session), sep="\\n")
options = ["-qq", "--collect-only", "-p", "no:cacheprovider", "--tier", "2"]
sys.exit(pytest.main([*options, *sys.argv[1:]], plugins=[Told()]))
"""


def marked_modules() -> list[str]:
    """The modules with a test that is marked `tier3`."""
    modules = [path for path in sorted((TOP / "tests").rglob("test_*.py")) if path != Path(__file__)]
    return [str(path.relative_to(TOP)) for path in modules if "mark.tier3" in path.read_text()]


def lines(session: pytest.Session) -> list[str]:
    """What is told of the tests that this process has collected."""
    left_out = [item for item in session.config.stash[tiers.LEFT_OUT] if not any(map(item.get_closest_marker, OTHERS))]
    told = [f"{'marked' if item.get_closest_marker('tier3') else 'left out'} {item.nodeid}" for item in left_out]
    return told + [f"chosen {item.nodeid}" for item in session.items]


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> list[str]:
    """What is told of the tests of all modules that have rules or marked tests."""
    modules = {*tiers.RULES, *marked_modules()}
    given = request.config.option
    if given.tier == tiers.USUAL and not given.keyword and not given.markexpr:  # as in `make test`: all is collected
        known = [line for line in lines(request.session) if module_of(line) in modules]
        if {module_of(line) for line in known} == modules:
            return known
    argv = [sys.executable, "-c", COLLECT, *sorted(modules)]
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(argv, cwd=TOP, env=plain, capture_output=True, text=True, timeout=120, check=True)
    return [line for line in done.stdout.splitlines() if "::" in line]


def module_of(line: str) -> str:
    return line.partition("tests/")[2].join(("tests/", "")).partition("::")[0]


@pytest.fixture(scope="module")
def usual(told: list[str]) -> list[str]:
    """The ids of those that tier 2 runs."""
    return [line.removeprefix("chosen ") for line in told if line.startswith("chosen ")]


@pytest.fixture(scope="module")
def collected(told: list[str], usual: list[str]) -> list[str]:
    """The ids of all of them."""
    return usual + [line.removeprefix("left out ") for line in told if line.startswith("left out ")]


def functions(ids: Iterable[str]) -> set[str]:
    return {each.partition("[")[0] for each in ids}


def test_a_rule_leaves_some_parameters_of_each_test_in_the_second_tier(usual: list[str], collected: list[str]) -> None:
    assert functions(usual) == functions(collected)


@pytest.mark.parametrize("module", marked_modules())
def test_a_module_with_tests_of_the_third_tier_is_in_the_documentation(module: str, told: list[str]) -> None:
    assert [line for line in told if line.startswith(f"marked {module}")]
    assert f"`{module}`" in (TOP / "docs/explanation/proof.md").read_text()


def test_each_module_that_tries_to_break_a_promise_has_tests_in_the_second_tier(usual: list[str]) -> None:
    table = (TOP / "docs/explanation/proof.md").read_text().partition("## Which tests run when")[0]
    named = set(re.findall(r"test_\w+\.py", table))
    marked = [module for module in marked_modules() if Path(module).name in named]
    assert [module for module in marked if not any(each.startswith(f"{module}::") for each in usual)] == []


@pytest.mark.parametrize("module", sorted(tiers.RULES))
def test_each_rule_moves_something(module: str, usual: list[str], collected: list[str]) -> None:
    assert [each for each in collected if each.startswith(module) and each not in usual]


def test_the_third_tier_tries_four_times_the_examples_of_a_property() -> None:
    [profile] = re.findall(r"--tier 3 --hypothesis-profile (\w+)", (TOP / "Makefile").read_text())
    assert settings.get_profile(profile).max_examples == 4 * settings.get_profile("usual").max_examples


def test_each_way_of_using_a_target_is_known_and_each_target_has_one_whole_way() -> None:
    beside = tiers.SECOND_WAYS | tiers.COMBINED_WAYS
    assert beside < PROBES.keys()
    assert {kind.type for kind in PROBES.values()} == {kind.type for way, kind in PROBES.items() if way not in beside}


def test_the_words_of_the_rules_are_beginnings_of_tests(collected: list[str]) -> None:
    names = {each.rpartition("::")[2] for each in functions(collected)}
    words = tiers.OF_THE_CONNECTION + tiers.OF_THE_CONFIRMATION + tiers.OF_THE_MESSAGE
    words += tiers.OF_ANY_SQS + tuple(tiers.OF_WHOLE_WORKERS)
    words += tiers.OF_EACH_MESSAGE + tiers.OF_THE_LOOP + tuple(tiers.STEPS)
    assert [word for word in words if not any(name.startswith(word) for name in names)] == []


def test_the_cover_of_the_statements_names_tests(collected: list[str]) -> None:
    names = functions(collected)
    assert [
        f"{module}.py::{test}"
        for cover in (COVER, ON_MARIADB, ON_POSTGRESQL, NOT_ON_POSTGRESQL)
        for module, tests in cover.items()
        for test in tests
        if f"{FOLDER}/{module}.py::{test.partition('[')[0]}" not in names
    ] == []
