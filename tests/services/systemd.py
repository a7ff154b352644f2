"""A systemd of its own, as process 1 of a namespace, with the units of deploy/systemd installed as their page says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from tests.services.server_process import Server, need, until

_TOP = Path(__file__).parents[2]
# What every service of a system has: they start before all others.
_TARGETS = ("basic", "multi-user", "network-online", "shutdown", "sysinit")
# In namespaces of its own, where nothing of what it writes is of this machine: only the network is.
_BOOT = """
set -e
mkdir {cgroup}
echo $$ > {cgroup}/cgroup.procs
exec unshare --cgroup --mount --pid --fork --propagation private sh {folder}/init
"""
_INIT = """
set -e
mount -t proc proc /proc
umount -R /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for place in etc opt var; do
    mount -t overlay overlay -o lowerdir=/$place,upperdir={folder}/$place,workdir={folder}/work/$place /$place
done
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/log /opt/python /opt/source /opt/bucketwire
mount --bind {python} /opt/python
mount --bind {source} /opt/source
mount -t overlay -o lowerdir={packages},upperdir={folder}/packages,workdir={folder}/work/packages none /opt/bucketwire
ln -sf /opt/python/bin/python3 /opt/bucketwire/bin/python3
sed -i 's|^home = .*|home = /opt/python/bin|' /opt/bucketwire/pyvenv.cfg
sed -i '1s|.*|#!/opt/bucketwire/bin/python3|' /opt/bucketwire/bin/bucketwire
units=/opt/source/deploy/systemd
cp -r $units/*.target $units/*.service $units/*.service.d /etc/systemd/system/
cp -r {folder}/more/. /etc/systemd/system/
mkdir -p /etc/sysusers.d /etc/tmpfiles.d /etc/bucketwire
cp $units/bucketwire.sysusers.conf /etc/sysusers.d/bucketwire.conf
cp $units/bucketwire.tmpfiles.conf /etc/tmpfiles.d/bucketwire.conf
systemd-sysusers bucketwire.conf
cp {folder}/bucketwire.env /etc/bucketwire/
systemd-tmpfiles --create bucketwire.conf
mount -t tmpfs tmpfs /tmp
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 container=tests SYSTEMD_UNIT_PATH=/etc/systemd/system \
    /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
"""


# This checkout's code, and a Python that may be in a folder that the units hide; no journal runs. On a busy machine ten
# services that start at once take longer than systemd waits by itself.
_HERE = """
[Service]
TimeoutStartSec=240
Environment=LD_LIBRARY_PATH=/opt/python/lib PYTHONPATH=/opt/source
StandardOutput=append:/run/log/%n
StandardError=inherit
"""


@dataclass(eq=False)
class Systemd(Server):
    """The service manager, which has started nothing yet; the service's settings, and more units by their names."""

    name: ClassVar[str] = "systemd"
    settings: Mapping[str, str]
    units: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        need(self.name)
        if os.geteuid():
            pytest.skip("only root makes namespaces")

    def prepare(self) -> None:
        hierarchies = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 " in line]
        self._cgroup = Path(hierarchies[0]) / self.folder.name
        for place in ("etc", "opt", "var", "packages"):
            (self.folder / place).mkdir()
            (self.folder / "work" / place).mkdir(parents=True)
        more = self.folder / "more"
        targets = {f"{name}.target": "[Unit]\nDefaultDependencies=no\n" for name in _TARGETS}
        for unit, text in {**targets, "bucketwire-.service.d/99-tests.conf": _HERE, **self.units}.items():
            (more / unit).parent.mkdir(parents=True, exist_ok=True)
            (more / unit).write_text(text)
        (self.folder / "bucketwire.env").write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        names = {
            "cgroup": self._cgroup, "folder": self.folder,
            "python": sys.base_prefix, "packages": sys.prefix, "source": _TOP,
        }  # fmt: skip
        (self.folder / "boot").write_text(_BOOT.format(**names))
        (self.folder / "init").write_text(_INIT.format(**names))

    def argv(self) -> Sequence[str | Path]:
        return ["sh", self.folder / "boot"]

    def ping(self) -> None:
        self.systemctl("is-active", "basic.target")

    @property
    def _init(self) -> int:
        """The process that is number 1 in there."""
        [child] = psutil.Process(self.pid).children()
        return child.pid

    def systemctl(self, *words: str) -> str:
        """What `systemctl` says; it has to succeed."""
        done = self.ask("systemctl", *words)
        assert done.returncode == 0, (
            f"systemctl {' '.join(words)}: {done.stdout}{done.stderr}\n{self.tail()}{self._last()}"
        )
        return done.stdout.strip()

    def ask(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in there."""
        enter = ["nsenter", f"--target={self._init}", "--mount", "--pid", "--cgroup", *command]
        return subprocess.run(enter, capture_output=True, text=True, timeout=300, check=False)

    def state(self, unit: str, of: str = "ActiveState") -> str:
        """A property of a unit."""
        return self.systemctl("show", unit, "--property", of, "--value")

    def said(self, unit: str) -> str:
        """All that a service has written."""
        with suppress(FileNotFoundError):
            return Path(f"/proc/{self._init}/root/run/log/{unit}").read_text(errors="replace")
        return ""

    def _last(self) -> str:
        """The end of what each service has written."""
        logs = sorted(Path(f"/proc/{self._init}/root/run/log").glob("*.service"))
        return "".join(f"\n--- {log.name}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def stop(self) -> None:
        if self.running:
            os.kill(self._init, signal.SIGKILL)  # with it the kernel ends all the others
        super().stop()
        folders = [Path(path) for path, _, _ in os.walk(self._cgroup, topdown=False)]
        until(lambda: all(map(_removed, folders)), what="the groups of its processes removed")


def _removed(cgroup: Path) -> bool:
    with suppress(FileNotFoundError):
        try:
            cgroup.rmdir()
        except OSError:  # its last process has not ended yet
            return False
    return True
