"""Pythons of the versions that the service supports, each with an environment of its own in the cache.

An interpreter is the machine's own, pyenv's, or one of Debian's newest release, which is unpacked, not installed. The
environment has what `make test` installs, of the same pins.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests import provision

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.12", "3.13", "3.14")  # besides that of `make test`
OF_DEBIAN = ("3.13", "3.14")  # which its newest release has
EXTRAS = ".[dev,otel,spark]"
_PINS = ("constraints.txt", "pyproject.toml")


def interpreter(version: str) -> Path:
    """A Python of this version; CannotProvideError with the reason where none can be had."""
    homes = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser().glob(f"versions/{version}.*/bin")
    places = os.pathsep.join([os.environ["PATH"], *map(str, sorted(homes, reverse=True))])
    for place in places.split(os.pathsep):
        path = shutil.which(f"python{version}", path=place)
        if path and works(path, version):  # pyenv's own commands are there for versions that are not switched on
            return Path(path)
    if version not in OF_DEBIAN:
        raise provision.CannotProvideError(f"there is no Python {version} on PATH or in pyenv")
    provision.main(["newest_python"])
    if reason := provision.missing("newest_python"):
        raise provision.CannotProvideError(reason)
    return provision.NEWEST_PYTHON / "usr/bin" / f"python{version}"


def works(python: str | Path, version: str) -> bool:
    """Whether a command is a Python of this version that can make environments."""
    code = "import sys, venv; print('.'.join(map(str, sys.version_info[:2])))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


def environment(version: str) -> Path:
    """The Python of an environment of this version with everything that the tests need, and this checkout."""
    pins = b"".join((ROOT / name).read_bytes() for name in _PINS)
    place = provision.CACHE / f"python-{version}-{hashlib.blake2b(pins, digest_size=6).hexdigest()}"
    python = place / "bin/python"
    if not (place / "installed").exists():
        found = interpreter(version)
        for old in provision.CACHE.glob(f"python-{version}-*"):  # of other pins, or unfinished
            shutil.rmtree(old)
        provision.run([found, "-m", "venv", "--without-pip", place])
        # Debian's Python brings no pip, and that of an old one is too old: so the newest, by the pip of this process.
        pip = [sys.executable, "-m", "pip", "--python", python]
        provision.run([*pip, "install", "--quiet", "--disable-pip-version-check", "pip"])
        _install(python, "--constraint", "constraints.txt", EXTRAS)
        (place / "installed").touch()
    _install(python, "--no-deps", "--editable", ".")
    return python


def _install(python: Path, *words: str) -> None:
    provision.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words], cwd=ROOT)
