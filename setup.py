"""What pyproject.toml cannot express: a wheel has everything below the package `bucketwire`, and names its commit."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
PACKAGES = ("app", "migrations", "spark_jobs", "workers")
COMMIT = "app/COMMIT"  # read by app/release.py
# An editable installation is for tests and tools, which import the packages by their own names.
EDITABLE = "editable_wheel" in sys.argv


def commit() -> str:
    """Return the commit: as the environment names it, as git does, or as the sdist does; empty if nothing does."""
    if named := os.environ.get("SOURCE_COMMIT"):  # an image is built without the history
        return named
    if (HERE / ".git").exists():
        describe = ["git", "-C", str(HERE), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        try:
            return subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
        except FileNotFoundError:
            return ""
    file = HERE / COMMIT
    return file.read_text() if file.exists() else ""


def version() -> str:
    """Return the version; between releases with the commit, as in `0.3.0.dev0+g0123456789ab`.

    Two builds of different code never have one version. An editable installation has no commit, because it changes.
    """
    declared = str(tomllib.loads((HERE / "pyproject.toml").read_text())["tool"]["bucketwire"]["version"])
    named = "" if EDITABLE or ".dev" not in declared else commit()
    return f"{declared}+g{named[:12]}{'.dirty' if named.endswith('-dirty') else ''}" if named else declared


def write_commit(folder: Path) -> None:
    """Write the commit where the code looks for it."""
    if named := commit():
        (folder / COMMIT).write_text(named)


class Build(build_py):
    """Build into an empty folder, so that a wheel has nothing of an earlier build."""

    def run(self) -> None:
        """Copy the modules and write the commit."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        if not self.editable_mode:
            write_commit(Path(self.build_lib, "bucketwire"))


class Sdist(sdist):
    """Pack the commit with the source."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy the files and write the commit."""
        super().make_release_tree(base_dir, files)
        write_commit(Path(base_dir))


def layout() -> dict[str, object]:
    """Return the packages by their names in the wheel, and the folders that they are in here."""
    own = find_packages(str(HERE), include=[pattern for name in PACKAGES for pattern in (name, f"{name}.*")])
    if EDITABLE:
        return {"packages": ["bucketwire", *own]}
    folders = {f"bucketwire.{name}": name for name in PACKAGES}
    return {"packages": ["bucketwire", *(f"bucketwire.{name}" for name in own)], "package_dir": folders}


setup(version=version(), cmdclass={"build_py": Build, "sdist": Sdist}, **layout())
