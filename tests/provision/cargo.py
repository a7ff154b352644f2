"""What crates.io has as source alone: commands that Rust's cargo compiles."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.provision.places import CACHE, GARAGE, GARAGE_VERSION
from tests.provision.steps import LONG_BUILD_TIMEOUT, building, run, tool

# A test's server need not be fast, and is built in less than half of the time.
_SETTINGS = {f"CARGO_PROFILE_RELEASE_{name}": value for name, value in (("OPT_LEVEL", "1"), ("LTO", "off"))}


def build_garage() -> None:
    """Garage with one of its databases, by the versions of its own lock file; it takes a C compiler, too."""
    with building(GARAGE) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        options = ["--locked", "--no-default-features", "--features", "bundled-libs,lmdb", "--root", scratch]
        command = [tool("cargo"), "install", "garage", "--version", GARAGE_VERSION, *options]
        run(command, cwd=Path(scratch), limit=LONG_BUILD_TIMEOUT, CARGO_TARGET_DIR=f"{scratch}/target", **_SETTINGS)
        (Path(scratch) / "bin/garage").rename(made / "garage")
