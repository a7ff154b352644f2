"""Install what is absent: the builders side by side, each with a queue of its own."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO

from tests.provision.debian import install_packages
from tests.provision.places import CACHE
from tests.provision.steps import CannotProvideError, providing, show
from tests.provision.table import RECIPES, Recipe


def provide(recipe: Recipe) -> str:
    """Build what is absent and say what was done; packages have been installed by then."""
    if recipe.absent() and recipe.build:
        recipe.build()
    if absent := recipe.absent():
        raise CannotProvideError(f"{', '.join(absent)} still absent after the installation")
    return "ready"


def main(arguments: Sequence[str]) -> int:
    """Provide the named servers, or the usual ones; returns the exit status."""
    names = [argument for argument in arguments if argument != "--all"]
    if unknown := [name for name in names if name not in RECIPES]:
        sys.stderr.write(f"no such server: {', '.join(unknown)}; there are {', '.join(RECIPES)}\n")
        return 2
    wanted = [RECIPES[name] for name in names]
    wanted = wanted or [recipe for recipe in RECIPES.values() if recipe.usual or "--all" in arguments]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        if any(recipe.absent() for recipe in wanted):
            _lock(lock)
        # One queue for each builder: two runs of Maven at once would write the same files of its repository.
        queues = _queues(wanted)
        with ThreadPoolExecutor(len(queues) + 1) as pool:
            packages = pool.submit(_packages, wanted)
            complete = [done.result() for done in [pool.submit(_provide_all, queue, packages) for queue in queues]]
    return 0 if all(complete) or os.environ.get("CI") != "true" else 1


def _lock(file: IO[str]) -> None:
    """Wait for another run's builds, which this one then finds."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        show(f"waiting for another run of tests.provision, which has locked {file.name}")
        fcntl.flock(file, fcntl.LOCK_EX)


def _queues(wanted: Sequence[Recipe]) -> list[list[Recipe]]:
    """The recipes by their builder, and in each queue those last that wait for packages."""
    queues: dict[str, list[Recipe]] = {}
    for recipe in sorted(wanted, key=lambda recipe: bool(recipe.packages)):
        queues.setdefault(recipe.builder, []).append(recipe)
    return list(queues.values())


def _provide_all(queue: Sequence[Recipe], packages: Future[Mapping[str, str]]) -> bool:
    """Provide one server after the other, and print a line for each; whether all could be had."""
    complete = True
    for recipe in queue:
        began, lacking = time.monotonic(), bool(recipe.absent())
        reasons = packages.result() if recipe.packages else {}
        with providing(recipe.name):
            try:
                said = provide(recipe)
            except CannotProvideError as reason:
                complete = False
                said = f"CANNOT BE HAD: {reasons.get(recipe.name) or reason}"
            show(said + (f" ({time.monotonic() - began:.0f} s)" if lacking else ""))
    return complete


def _packages(wanted: Sequence[Recipe]) -> Mapping[str, str]:
    """Install the packages of the absent servers, all in one go; returns the reasons of those that failed, by name."""
    lacking = [
        recipe for recipe in wanted if recipe.packages and any(not a.startswith(str(CACHE)) for a in recipe.absent())
    ]
    if not lacking:
        return {}
    try:
        install_packages(sorted({package for recipe in lacking for package in recipe.packages}))
    except CannotProvideError as together:
        reasons = {}
        for recipe in lacking:  # one package that does not exist must not take the others along
            try:
                install_packages(recipe.packages)
            except CannotProvideError as alone:
                reasons[recipe.name] = str(alone) or str(together)
        return reasons
    return {}
