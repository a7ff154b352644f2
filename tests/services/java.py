"""How Java runs in the tests: quick to start, and with the classes that a server loads in an archive.

The first server of a kind that is stopped (a kill leaves nothing) writes the archive of its classes, into
`tests.provision`'s cache; those after it map that file in place of loading each class again. An archive is of one Java
and of one class path at its place; Java goes on without one that does not fit.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests import provision
from tests.services.server_process import Server

# It compiles for a start, not for a long run; and what Maven Central has needs no second check of its byte code. For
# what it compiles it has the room of a long run all the same: in the 48 MB of a quick one it throws away and compiles
# again, which took a quarter of a Spark driver's processor time.
QUICK = (
    "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m", "-XX:-UsePerfData",
    "-XX:+UnlockDiagnosticVMOptions", "-XX:-BytecodeVerificationRemote",
)  # fmt: skip
JAVA = ("java", "-Djava.net.preferIPv4Stack=true", *QUICK)


def archive(kind: str, jars: Iterable[Path]) -> Path:
    """Where the archive of the classes in these files is, or will be."""
    return provision.CACHE / f"{kind}-classes-{fingerprint(jars)}.jsa"


def fingerprint(jars: Iterable[Path], *more: str) -> str:
    """What changes with Java, with these files, and with `more`."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    of = [*([Path(java).resolve()] if java else []), *jars]
    found = repr([*((str(path), path.stat().st_mtime_ns) for path in of), *more])
    return hashlib.blake2b(found.encode(), digest_size=6).hexdigest()


def as_file(folder: Path) -> Path:
    """The classes in a folder as a file beside it: an archive is of files only."""
    jar = folder.with_suffix(".jar")
    if not jar.exists():
        whole = jar.with_suffix(f".{os.getpid()}")
        with zipfile.ZipFile(whole, "w") as made:
            for each in sorted(folder.iterdir()):
                made.write(each, each.name)
        os.utime(whole, ns=(0, folder.stat().st_mtime_ns))  # whoever makes it, it is the same
        whole.replace(jar)
    return jar


@dataclass(eq=False)
class JavaServer(Server):
    """A server that Java runs."""

    _claim: IO[str] | None = field(init=False, default=None, repr=False)  # locked, while it is to leave an archive

    def jars(self) -> Sequence[Path]:
        """Its class path, which has files only."""
        raise NotImplementedError

    def java(self, *options: str, main: str, arguments: Sequence[str | Path] = ()) -> list[str | Path]:
        """The command that runs a class of it, with the archive of an earlier run, if there is one."""
        kept = archive(self.name, self.jars())
        shared = [f"-XX:SharedArchiveFile={kept}"] if kept.exists() else []
        return [*JAVA, *shared, *options, "-cp", os.pathsep.join(map(str, self.jars())), main, *arguments]

    def serving(self, *options: str, main: str, arguments: Sequence[str | Path] = ()) -> list[str | Path]:
        """The same for its own process, which leaves an archive if there is none."""
        leaving = [f"-XX:ArchiveClassesAtExit={self._left}"] if self._claims(archive(self.name, self.jars())) else []
        return self.java(*leaving, *options, main=main, arguments=arguments)

    @property
    def _left(self) -> Path:
        return self.folder / "classes.jsa"

    def _claims(self, kept: Path) -> bool:
        """Whether it is this server that leaves the archive."""
        if kept.exists():
            return False
        if self._claim is None:
            claim = kept.with_suffix(".lock").open("w")
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                claim.close()
                return False
            self._claim = claim
        return True

    def stop(self) -> None:
        """Ask it to end, as any server, and keep the archive that it leaves."""
        child = self._child
        super().stop()
        if self._claim is None:
            return
        if child is not None and child.returncode == 128 + self.stop_signal and self._left.exists():
            kept = archive(self.name, self.jars())
            whole = kept.with_suffix(f".{os.getpid()}")  # what it left may be in another file system
            shutil.move(self._left, whole)
            whole.replace(kept)
        self._claim.close()
        self._claim = None
