"""The set-up installs what the tests ran with."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINNED = {
    canonicalize_name(name): version
    for name, _, version in (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines())
    if version
}
EXTRAS = PROJECT["optional-dependencies"]
WANTED = [*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS["spark"]]


@pytest.mark.parametrize("wanted", WANTED)
def test_every_dependency_is_pinned_to_a_version_that_is_allowed(wanted: str) -> None:
    requirement = Requirement(wanted)
    version = PINNED.get(canonicalize_name(requirement.name))
    assert version, f"add it to constraints.txt: pip freeze --exclude-editable | grep -i {requirement.name}"
    assert requirement.specifier.contains(version)


def test_nothing_is_pinned_to_a_place_of_one_machine() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if "/" in line or " @ " in line or line.startswith("-")] == []
