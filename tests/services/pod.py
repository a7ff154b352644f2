"""A pod of the Helm chart, as a node would run it: its command as its user, with its variables and its mounts only."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from tests import provision
from tests.services.server_process import LOOPBACK, Server, free_port, need

_TOP = Path(__file__).parents[2]
_HOME = Path("/var/lib/bucketwire")  # of the image's user, which cannot write to it
OPENSHIFTS = 1000730000  # a user that OpenShift chooses, and a group of the volumes
_WRITABLE = ("/proc", "/sys", "/dev")  # what a container has of its own, too
# The image's files are where the image has them, and its user has a name. Then everything that is mounted is read-only,
# but for the volumes.
_ENTER = """
set -e
mount -t tmpfs tmpfs /opt
mkdir /opt/python /opt/source /opt/bucketwire
mount --bind {python} /opt/python
mount --bind {source} /opt/source
mount -t overlay -o lowerdir={packages},upperdir={folder}/packages,workdir={folder}/work none /opt/bucketwire
ln -sf /opt/python/bin/python3 /opt/bucketwire/bin/python3
sed -i 's|^home = .*|home = /opt/python/bin|' /opt/bucketwire/pyvenv.cfg
sed -i '1s|.*|#!/opt/bucketwire/bin/python3|' /opt/bucketwire/bin/bucketwire
{{ cat /etc/passwd; echo bucketwire:x:10001:10001::{home}:/usr/sbin/nologin; }} > {folder}/passwd
mount --bind {folder}/passwd /etc/passwd
mkdir -p /opt/bucketwire/jars {jars}
mount --bind {jars} /opt/bucketwire/jars
mount -t tmpfs tmpfs /var/lib
mkdir -p {places}
{volumes}
cut -d ' ' -f 2 /proc/mounts | while read -r place; do
    case $place in {writable}) ;; *) mount -o remount,bind,ro "$place" || true ;; esac
done
cd {home}
exec setpriv --reuid {user} --regid {group} --groups {groups} --no-new-privs --inh-caps=-all --bounding-set=-all \\
    env -i {variables} {command}
"""


@dataclass(eq=False)
class Pod(Server):
    """One container of the rendered chart; with what its ports are here in `ports`.

    `volumes` are the folders that persist, by mount path: a claim's. An `emptyDir` is the pod's own. Where the chart
    leaves the user to OpenShift, it is one without a name and a home, in the group 0.
    """

    name: ClassVar[str] = "pod"
    patience: ClassVar[float] = 120
    spec: Mapping[str, Any]
    variables: Mapping[str, str]
    ports: Mapping[int, int]
    volumes: Mapping[str, Path]

    def check(self) -> None:
        for needed in ("spark_jars", "nss_wrapper"):
            need(needed)
        if os.geteuid():
            pytest.skip("only root makes namespaces")

    def prepare(self) -> None:
        for each in ("packages", "work", "volumes"):
            (self.folder / each).mkdir()
        (self.folder / "enter").write_text(self._script())

    @property
    def container(self) -> Mapping[str, Any]:
        [container] = self.spec["containers"]
        return container  # type: ignore[no-any-return]

    def volume(self, place: str) -> Path:
        """The folder that is mounted at a place, which is of the group of the pod, as `fsGroup` has it."""
        if place in self.volumes:
            return self.volumes[place]
        folder = self.folder / "volumes" / place.strip("/").replace("/", "-")
        if not folder.exists():
            folder.mkdir()
            share(folder, self.context["fsGroup"])
        return folder

    @property
    def context(self) -> Mapping[str, Any]:
        """As whom it runs."""
        return {"runAsUser": OPENSHIFTS, "runAsGroup": 0, "fsGroup": OPENSHIFTS, **self.spec["securityContext"]}

    def _script(self) -> str:
        context = self.context
        assert self.container["securityContext"]["readOnlyRootFilesystem"]
        assert self.container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        places = [mount["mountPath"] for mount in self.container["volumeMounts"]]
        # /tmp is the last, because it hides what is below it.
        mounts = [f"mount --bind {self.volume(place)} {place}" for place in sorted(places, key=lambda at: at == "/tmp")]
        image = {"PATH": "/opt/bucketwire/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONUNBUFFERED": "1"}
        image |= {"BUCKETWIRE_DATA_DIR": f"{_HOME}/var", "BUCKETWIRE_SPARK_JARS": "/opt/bucketwire/jars"}
        # A Python that is not where it was made, and this checkout's code.
        tests = {"LD_LIBRARY_PATH": "/opt/python/lib", "PYTHONPATH": "/opt/source", "LANG": "C.UTF-8"}
        home = "/" if context["runAsUser"] == OPENSHIFTS else str(_HOME)
        variables = {"HOME": home, **image, **tests, **self.variables}
        return _ENTER.format(
            python=sys.base_prefix, source=_TOP, packages=sys.prefix, folder=self.folder, jars=provision.SPARK_JARS,
            places=" ".join([str(_HOME), *(place for place in places if place != "/tmp")]), volumes="\n".join(mounts),
            writable="|".join([*places, *(f"{place}|{place}/*" for place in _WRITABLE)]), home=_HOME,
            user=context["runAsUser"], group=context["runAsGroup"], groups=context["fsGroup"],
            variables=" ".join(shlex.quote(f"{key}={value}") for key, value in variables.items()),
            command=shlex.join(["bucketwire", *self.container["args"]]),
        )  # fmt: skip

    def argv(self) -> Sequence[str | Path]:
        return ["unshare", "--mount", "--propagation", "private", "sh", self.folder / "enter"]

    def ping(self) -> None:
        """Ask as the readiness probe of the chart does; what has none is ready."""
        if (probe := self.container.get("readinessProbe")) is not None:
            asked = probe["httpGet"]
            [port] = [each["containerPort"] for each in self.container["ports"] if each["name"] == asked["port"]]
            httpx.get(f"http://{LOOPBACK}:{self.ports[port]}{asked['path']}", timeout=10).raise_for_status()


def share(folder: Path, group: int) -> None:
    """Let a group write to a folder, as a node does for `fsGroup`."""
    os.chown(folder, 0, group)
    folder.chmod(0o2775)


def here(variables: Mapping[str, str], ports: Sequence[int]) -> tuple[dict[str, str], dict[int, int]]:
    """Have what listens on a port of the pod listen on a free one of this machine; the variables, and those ports."""
    mapped = {port: free_port() for port in ports}
    changed = dict(variables)
    for port, free in mapped.items():
        changed = {key: value.replace(f"0.0.0.0:{port}", f"{LOOPBACK}:{free}") for key, value in changed.items()}
    return changed, mapped
