"""The set-up installs what the tests ran with, and so does the image, by hash."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import requires
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
# What each image installs, and of what.
LOCKS = {
    "requirements.lock": [*PROJECT["dependencies"], *EXTRAS["otel"]],
    "requirements-spark.lock": [*PROJECT["dependencies"], *EXTRAS["otel"], *EXTRAS["spark"]],
}
WANTED = [*PROJECT["dependencies"], *EXTRAS["dev"], *EXTRAS["otel"], *EXTRAS["spark"]]


@pytest.mark.parametrize("wanted", WANTED)
def test_every_dependency_is_pinned_to_a_version_that_is_allowed(wanted: str) -> None:
    requirement = Requirement(wanted)
    version = PINNED.get(canonicalize_name(requirement.name))
    assert version, f"add it to constraints.txt: pip freeze --exclude-editable | grep -i {requirement.name}"
    assert requirement.specifier.contains(version)


def test_nothing_is_pinned_to_a_place_of_one_machine() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    assert [line for line in lines if "/" in line or " @ " in line or line.startswith("-")] == []


def locked(lock: str) -> dict[str, tuple[str, str]]:
    """Each requirement's version and hashes: it is one line once the breaks in it are taken out."""
    text = (ROOT / lock).read_text().replace("\\\n", "")
    found = re.findall(r"^([\w.-]+)==(\S+)(.*)$", text, re.MULTILINE)
    return {canonicalize_name(name): (version, rest) for name, version, rest in found}


@pytest.mark.parametrize("lock", LOCKS)
def test_the_image_installs_every_dependency_by_version_and_hash(lock: str) -> None:
    for wanted in map(Requirement, LOCKS[lock]):
        assert canonicalize_name(wanted.name) in locked(lock), f"make {lock} anew, its head says how: {wanted}"
    for name, (version, rest) in locked(lock).items():
        assert re.fullmatch(r"(\s+--hash=sha256:[0-9a-f]{64})+", rest), f"{name}: {rest[:100]!r}"
        # What builds the package is no dependency of it.
        assert version == PINNED.get(name) or name == "setuptools", f"{name}: {version} is not that of constraints.txt"


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="what is installed here is not all for the image's Python")
@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_all_that_its_packages_need_and_nothing_else(lock: str) -> None:
    assert closure(LOCKS[lock]) | {"setuptools"} == set(locked(lock))


def test_the_images_are_built_from_the_locks_alone() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"python install ((?:[^&\n])*)", lines)
    # What builds packages is installed by hash itself, and nothing is fetched beside it.
    assert [" ".join(words.split()) for words in installs] == [
        "--require-hashes -r setuptools.lock",
        "--no-build-isolation --require-hashes -r requirements.lock",
        "--no-deps --no-build-isolation .",
        "--no-build-isolation --require-hashes -r requirements-spark.lock",
    ]
    assert lines.count("uninstall --yes setuptools") == 2
    assert {f"!{lock}" for lock in LOCKS} <= set((ROOT / ".dockerignore").read_text().splitlines())


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_place_that_packages_come_from(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert [line for line in text.splitlines() if re.match(r"\s*-", line) and "--hash=" not in line] == []
    assert "://" not in text


# What the lock is made for: the image, whatever machine asks.
IMAGE = {"python_version": "3.11", "python_full_version": "3.11.4", "sys_platform": "linux", "platform_system": "Linux",
         "platform_machine": "x86_64", "platform_python_implementation": "CPython", "os_name": "posix"}  # fmt: skip


def closure(wanted: list[str]) -> set[str]:
    """The names of these requirements and of all that they need, as the packages installed here say it."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(each), "") for each in wanted]
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({**IMAGE, "extra": extra}):
            continue
        for chosen in ("", *requirement.extras):
            place = (canonicalize_name(requirement.name), chosen)
            if place not in found:
                found.add(place)
                waiting += [(Requirement(each), chosen) for each in requires(requirement.name) or ()]
    return {name for name, _ in found}


def test_every_action_of_the_workflows_is_a_commit_and_no_tag_that_may_move() -> None:
    used = [
        line.partition("uses:")[2].strip()
        for file in sorted((ROOT / ".github").rglob("*.y*ml"))
        for line in file.read_text().splitlines()
        if "uses:" in line
    ]
    assert used
    for action in used:
        assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v[0-9.]+", action), action
