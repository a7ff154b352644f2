"""Programs of Debian's newest release, which this machine's Debian does not have, each in a folder with all it needs.

Nothing is installed: the packages are unpacked, and a program runs in a mount namespace of its own, in which the
folder's `usr` lies over this machine's. Everything else is where it is, so files, users and ports are the usual ones.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

SUITE = "sid"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
MIRROR = "http://deb.debian.org/debian"
# What the packages take for granted, or their scripts.
ALWAYS = ("base-files", "bash", "coreutils", "dash", "grep", "libc-bin", "mawk", "sed", "util-linux")
_ENTER = 'mount --bind "$0" /usr && exec "$@"'
Run = Callable[[Sequence[str | Path]], None]


def unpack(tree: Path, packages: Sequence[str], scratch: Path, run: Run) -> None:
    """Fill the empty folder `tree` with packages and what they depend on; `run` runs apt-get and dpkg."""
    sources, lists, cache = scratch / "sources.list", scratch / "lists", scratch / "cache"
    sources.write_text(f"deb [signed-by={KEYS}] {MIRROR} {SUITE} main\n")
    (scratch / "status").write_text("")  # nothing is installed yet
    (lists / "partial").mkdir(parents=True)
    (cache / "archives/partial").mkdir(parents=True)
    places = {
        "Dir::Etc::SourceList": sources, "Dir::Etc::SourceParts": "/dev/null", "Dir::State::Lists": lists,
        "Dir::State::status": scratch / "status", "Dir::Cache": cache,
    }  # fmt: skip
    apt = ["apt-get", "-qq", *(f"-o{name}={place}" for name, place in places.items()), "-oDebug::NoLocking=1"]
    run([*apt, "update"])
    run([*apt, "-y", "--no-install-recommends", "--download-only", "install", *ALWAYS, *packages])
    for package in sorted((cache / "archives").glob("*.deb"), key=lambda each: not each.name.startswith("base-files")):
        run(["dpkg-deb", "--extract", package, tree])
    run(["ldconfig", "-n", *tree.glob("usr/lib/*-linux-gnu*")])  # makes the links by which libraries are found
    finish(tree)


def finish(tree: Path) -> None:
    """What the packages' own scripts would have done, as far as the programs need it."""
    (tree / "usr/bin/awk").symlink_to("mawk")
    for link in (tree / "usr").rglob("*"):  # a configuration, which has to come along
        if link.is_symlink() and link.readlink().is_relative_to("/etc"):
            target = tree / link.readlink().relative_to("/")
            if target.exists():
                link.unlink()
                (shutil.copytree if target.is_dir() else shutil.copy)(target, link)


def within(tree: Path, argv: Sequence[str | Path], user: str | None = None) -> list[str | Path]:
    """The command that runs a program of a tree, as the same process and if need be as another user; needs root."""
    drop = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", _ENTER, tree / "usr", *drop, *argv]
