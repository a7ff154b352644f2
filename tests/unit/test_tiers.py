"""What the tiers promise: together they are everything, and `make test` runs each test at least once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings

from tests.contract import ways
from tests.contract.probes.registry import PROBES
from tests.support import tiers

TOP = Path(__file__).parents[2]

pytestmark = pytest.mark.slow


OTHERS = ("heavy", "sender")  # which neither tier runs

COLLECT = """
import json, sys, pytest
class Told:
    def pytest_collection_finish(self, session):
        from tests.unit.test_tiers import told_of
        print(json.dumps(told_of(session)))
sys.exit(pytest.main(["-qq", "--collect-only", "-p", "no:cacheprovider", "--tier", "2", "tests"], plugins=[Told()]))
"""


class Told(NamedTuple):
    """A test that was collected; of its markers what stays, whether they ask for parameters, and whether they hold."""

    id: str
    tier: int
    markers: list[tuple[str, bool, bool]]

    @property
    def function(self) -> str:
        return self.id.partition("[")[0]

    @property
    def module(self) -> str:
        return self.id.partition("::")[0]


def told_of(session: pytest.Session) -> list[Told]:
    """All tests that this process has collected, also those that its tier leaves out."""
    items = [*session.items, *session.config.stash[tiers.LEFT_OUT]]
    return [_told_of(item) for item in items if not any(map(item.get_closest_marker, OTHERS))]


def _told_of(item: pytest.Item) -> Told:
    read = [
        (*tiers.read(marker), tiers.moves(marker, tiers.parameters(item))) for marker in item.iter_markers("nightly")
    ]
    return Told(item.nodeid, tiers.tier(item), [(stays, when is not None, moves) for stays, when, moves in read])


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest) -> list[Told]:
    """All tests but those that neither tier runs."""
    config = request.config
    if (
        {TOP / each for each in config.args} == {TOP / "tests"}
        and not config.option.keyword
        and not config.option.markexpr
    ):
        return told_of(request.session)
    plain = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    argv = [sys.executable, "-c", COLLECT]
    done = subprocess.run(argv, cwd=TOP, env=plain, capture_output=True, text=True, timeout=900, check=True)
    return [Told(*each) for line in done.stdout.splitlines() if line.startswith("[[") for each in json.loads(line)]


@pytest.fixture(scope="module")
def usual(told: list[Told]) -> list[Told]:
    """Those that tier 2 runs."""
    return [each for each in told if each.tier == tiers.USUAL]


def test_a_test_that_is_not_left_to_the_night_as_a_whole_has_parameters_in_the_second_tier(
    told: list[Told], usual: list[Told]
) -> None:
    partly = {each.function for each in told if not any(not asks for _, asks, _ in each.markers)}
    assert partly - {each.function for each in usual} == set()


def test_each_marker_says_what_stays_and_moves_something(told: list[Told]) -> None:
    """Also where a function is several modules' test, and has the parameters that a marker asks for in one of them."""
    moves: dict[tuple[str, str], bool] = {}
    for each in told:
        for stays, _, holds in each.markers:
            name = each.function.rpartition("::")[2], stays
            moves[name] = moves.get(name, False) or holds
    assert [name for name, some in moves.items() if not (some and name[1])] == []
    assert len(moves) > 100


def test_a_module_that_a_marker_names_as_staying_stays(told: list[Told], usual: list[Told]) -> None:
    stays = {name for each in told for text, _, _ in each.markers for name in re.findall(r"test_\w+\.py", text)}
    assert len(stays) > 20
    assert stays - {Path(each.module).name for each in usual} == set()


@pytest.mark.parametrize("marker", [pytest.mark.nightly, pytest.mark.nightly(when=bool)])
def test_a_marker_has_to_say_what_stays(marker: pytest.MarkDecorator) -> None:
    with pytest.raises(TypeError, match="stays"):
        tiers.moves(marker.mark, {})


def test_each_module_that_tries_to_break_a_promise_has_tests_in_the_second_tier(
    told: list[Told], usual: list[Told]
) -> None:
    table = (TOP / "docs/explanation/proof.md").read_text().partition("## Which tests run when")[0]
    named = set(re.findall(r"test_\w+\.py", table))
    of_promises = {each.module for each in told if Path(each.module).name in named}
    assert of_promises
    assert of_promises - {each.module for each in usual} == set()


def test_the_third_tier_tries_four_times_the_examples_of_a_property() -> None:
    [profile] = re.findall(r"--tier 3 --hypothesis-profile (\w+)", (TOP / "Makefile").read_text())
    assert settings.get_profile(profile).max_examples == 4 * settings.get_profile("usual").max_examples


def test_each_way_of_using_a_target_is_known_and_each_target_has_one_whole_way() -> None:
    assert PROBES.keys() > ways.BESIDE
    assert {kind.type for kind in PROBES.values()} == {
        kind.type for way, kind in PROBES.items() if way not in ways.BESIDE
    }
