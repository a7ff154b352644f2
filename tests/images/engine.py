"""What builds and runs images: Docker where there is one, else Debian's buildah and podman without a registry.

Without a registry the base image is put together from Debian's packages and this machine's own Python, and the images
of servers are built from Debian's packages.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import provision

BASE = "docker.io/library/python:3.11-slim-bookworm"
PLACE = provision.CACHE / "images"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = ("buildah", "podman", "crun", "debootstrap", "netavark", "aardvark-dns", "iptables", "iproute2")
COMMANDS = ("buildah", "podman", "crun", "debootstrap", "iptables", "ip")
PODMAN_COMPOSE = PLACE / "podman-compose-1.6.0"
STAND_INS = Path(__file__).parent / "stand_ins"
# What Python needs besides the least that Debian installs.
LIBRARIES = (
    "ca-certificates", "netbase", "tzdata", "libssl3", "libffi8", "libsqlite3-0", "libuuid1", "libbz2-1.0", "liblzma5",
    "libreadline8", "libncursesw6", "libgdbm6", "libgdbm-compat4", "libnsl2", "libtirpc3", "libexpat1", "zlib1g",
)  # fmt: skip
DOCUMENTATION = ("usr/share/doc", "usr/share/info", "usr/share/locale", "usr/share/man")
_INSIDE = "IMAGE_TEST_INSIDE"  # set where a mount namespace of its own has been entered
# Nothing of the machine has its ports there, and rules of a firewall go with it. Containers and what serves them end
# with the command, also when it is killed: the shell is process 1, and podman begins as after a start of the machine.
# Without a resolver, because aardvark-dns would forward to one that cannot be reached.
_APART = f"""
ip link set lo up
mount --bind /dev/null /etc/resolv.conf
for each in {PLACE}/run /run/containers /run/crun /run/libpod /run/netns /dev/shm
do mkdir -p $each && mount -t tmpfs tmpfs $each
done
"$@"
exit $?
"""


def call(*command: str | Path, check: bool = True, timeout: float = 1800) -> subprocess.CompletedProcess[str]:
    """Run a command; its output is shown where it fails and should not."""
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout, check=False
    )
    if check and done.returncode:
        sys.exit(
            f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        )
    return done


class Docker:
    """A Docker engine that is there."""

    name = "docker"

    def build(self, tag: str, *options: str) -> None:
        """Build an image of the tree."""
        call("docker", "build", "--quiet", "--tag", tag, *options, ".")

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine."""
        return call("docker", *words, check=check, timeout=300)

    options: Sequence[str] = ()

    def compose(self, *words: str | Path) -> str:
        """Run a command of Compose; return what it prints."""
        return call("docker", "compose", *words).stdout

    def healthy(self, container: str) -> bool:
        """Whether a container's health check has passed."""
        form = "{{.State.Health.Status}}"
        return self.run("inspect", "--format", form, container).stdout.strip() == "healthy"

    def have_servers(self, images: Mapping[str, str]) -> None:
        """Have what Compose cannot pull: the images of servers, which are given by the names of their services."""

    own_network: Sequence[str] = ()  # what a command is put behind


class Podman(Docker):
    """Buildah builds, podman runs: in a mount namespace of its own and without control groups, as in a container."""

    name = "podman"
    options = ("--cgroups", "disabled")
    own_network = (
        "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", _APART, "sh",
    )  # fmt: skip

    def __init__(self) -> None:
        PLACE.mkdir(parents=True, exist_ok=True)
        (PLACE / "storage.conf").write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{PLACE}/storage"\nrunroot = "{PLACE}/run"\n'
        )
        (PLACE / "containers.conf").write_text(
            '[containers]\ncgroups = "disabled"\ndefault_ulimits = ["nofile=4096:4096", "nproc=16384:16384"]\n'
            'log_driver = "k8s-file"\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\nruntime = "crun"\n'
            f'[network]\nnetwork_backend = "netavark"\nnetwork_config_dir = "{PLACE}/networks"\n'
        )
        # What a short name means, as for Docker.
        (PLACE / "registries.conf").write_text('unqualified-search-registries = ["docker.io"]\n')
        os.environ |= {
            "CONTAINERS_STORAGE_CONF": str(PLACE / "storage.conf"),
            "CONTAINERS_CONF": str(PLACE / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(PLACE / "registries.conf"),
        }
        if self.run("image", "exists", BASE, check=False).returncode:
            self._make_base()

    def build(self, tag: str, *options: str) -> None:
        self._build(tag, ".", *options)

    def _build(self, tag: str, folder: str | Path, *options: str) -> None:
        mounts = [f"--volume={path}:{path}:ro" for path in (CERTIFICATES, Path("/etc/pip.conf")) if path.exists()]
        how = ["--pull-never", "--isolation", "chroot", "--layers"]
        call("buildah", "bud", *how, *mounts, "-t", tag, *options, folder)

    def run(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return call("podman", *words, check=check, timeout=300)

    def compose(self, *words: str | Path) -> str:
        path = f"PYTHONPATH={PODMAN_COMPOSE}"
        return call("env", path, sys.executable, "-m", "tests.images.old_podman", *words).stdout

    def healthy(self, container: str) -> bool:
        # Without systemd nothing runs it regularly.
        return self.run("healthcheck", "run", container, check=False).returncode == 0

    def have_servers(self, images: Mapping[str, str]) -> None:
        if not PODMAN_COMPOSE.exists():
            with provision.building(PODMAN_COMPOSE) as made:
                pinned = "==".join(PODMAN_COMPOSE.name.rsplit("-", 1))
                call(sys.executable, "-m", "pip", "install", "--quiet", "--target", made, pinned)
        for service, image in images.items():
            whole = image if "/" in image else f"library/{image}"
            self._build(f"docker.io/{whole}", STAND_INS, "--target", service)

    def _make_base(self) -> None:
        root = PLACE / "root"
        shutil.rmtree(root, ignore_errors=True)
        sources = Path("/etc/apt/sources.list.d/debian.sources")
        mirror = next(line.split()[1] for line in sources.read_text().splitlines() if line.startswith("URIs:"))
        call("debootstrap", "--variant=minbase", f"--include={','.join(LIBRARIES)}", "bookworm", root, mirror)
        shutil.copy(sources, root / "etc/apt/sources.list.d/")
        (root / "etc/apt/sources.list").write_text("")
        here, there = Path(sys.base_prefix), root / "usr/local"
        version = sysconfig.get_python_version()
        unused = shutil.ignore_patterns("site-packages", "test", "tests", "idle_test", "__pycache__", "config-*")
        shutil.copytree(here / "lib" / f"python{version}", there / "lib" / f"python{version}", ignore=unused)
        (there / "lib" / f"python{version}" / "site-packages").mkdir()
        shutil.copy(here / "bin" / f"python{version}", there / "bin")
        for name in ("python3", "python"):
            (there / "bin" / name).symlink_to(f"python{version}")
        for library in here.glob("lib/libpython3*.so*"):
            shutil.copy(library, there / "lib", follow_symlinks=False)
        # The official image is built without debug information, and Debian's slim one without documentation.
        call("strip", "--strip-unneeded", *there.glob("lib/libpython3*.so*"), *there.rglob("lib-dynload/*.so"))
        (root / "etc/dpkg/dpkg.cfg.d/slim").write_text("".join(f"path-exclude /{each}/*\n" for each in DOCUMENTATION))
        for each in DOCUMENTATION:
            shutil.rmtree(root / each, ignore_errors=True)
        for section in range(1, 10):  # as in Debian's slim image, because Java's package makes links there
            (root / f"usr/share/man/man{section}").mkdir(parents=True)
        call("chroot", root, "ldconfig")
        call("chroot", root, "/usr/local/bin/python", "-m", "ensurepip")
        (there / "bin/pip").symlink_to("pip3")
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
        (root / "var/lib/apt/lists/partial").mkdir(parents=True)
        (root / "var/cache/apt/archives/partial").mkdir(parents=True)
        archive = PLACE / "root.tar"
        call("tar", "-C", root, "--exclude=./proc/*", "--exclude=./sys/*", "--exclude=./dev/*", "-cf", archive, ".")
        path = "ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.run("import", "--change", path, "--change", "ENV LANG=C.UTF-8", str(archive), BASE)
        archive.unlink()
        shutil.rmtree(root)


def engine() -> Docker:
    """What there is; without Docker this process goes on in a mount namespace of its own, without control groups."""
    if shutil.which("docker") and call("docker", "info", check=False).returncode == 0:
        return Docker()
    if not os.environ.get(_INSIDE):
        if not all(map(shutil.which, COMMANDS)):
            provision.install_packages(PACKAGES)
        inside = 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", inside, "sh"]
        command += [sys.executable, "-m", "tests.images", *sys.argv[1:]]
        os.execvpe("unshare", command, os.environ | {_INSIDE: "1"})
    return Podman()
