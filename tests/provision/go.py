"""What is compiled, because no registry has it as a binary: commands of Go modules."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.provision.places import (
    CACHE,
    ETCD,
    ETCD_VERSION,
    KUBERNETES,
    KUBERNETES_SCHEMAS,
    KUBERNETES_VERSION,
    NSQ,
    NSQ_VERSION,
    OTELCOL,
    OTELCOL_VERSION,
)
from tests.provision.steps import LONG_BUILD_TIMEOUT, building, run, tool
from tests.support import kubernetes_schemas

SOURCES = Path(__file__).parents[1] / "services" / "sources"
# What is stripped off the commands is not made; and the compiler, which ends soon, collects less of its garbage. All
# builds have the same flags, so that Go's own packages are compiled once.
_GO_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-s -w")
_GO_SETTINGS = {"CGO_ENABLED": "0", "GOGC": "400"}


def installed(place: Path, *packages: str, tags: str = "") -> Callable[[], None]:
    """A build of published Go commands into `place`, with these build tags."""

    def build() -> None:
        with building(place) as made:
            for package in packages:
                argv = [tool("go"), "install", *_GO_FLAGS, f"-tags={tags}", package]
                run(argv, cwd=made, GOBIN=str(made), GOFLAGS="-p=2 -buildvcs=false", **_GO_SETTINGS)

    return build


def build_nsq() -> None:
    """NSQ's module has a `replace`, which `go install pkg@version` refuses: hence a module of our own around it."""
    with building(NSQ) as made:
        (made / "go.mod").write_text(
            f"module peers/nsq\ngo 1.21\nrequire github.com/nsqio/nsq {NSQ_VERSION}\n"
            "replace github.com/judwhite/go-svc => github.com/mreiferson/go-svc v1.2.2-0.20210815184239-7a96e00010f6\n"
        )
        commands = [f"github.com/nsqio/nsq/apps/{name}" for name in ("nsqd", "nsqlookupd", "nsq_tail")]
        argv = [tool("go"), "build", *_GO_FLAGS, "-o", f"{made}/", *commands]
        run(argv, cwd=made, GOFLAGS="-p=2 -buildvcs=false -mod=mod", **_GO_SETTINGS)


def built(place: Path, module: str, version: str, package: str) -> Callable[[], None]:
    """A build of one command of a Go module that `go install` refuses, one package at a time."""

    def build() -> None:
        with building(place) as made:
            (made / "go.mod").write_text(f"module peers/sender\ngo 1.25.0\nrequire {module} {version}\n")
            argv = [tool("go"), "build", *_GO_FLAGS, "-o", f"{made}/", package]
            run(argv, cwd=made, limit=LONG_BUILD_TIMEOUT, GOFLAGS="-p=1 -buildvcs=false -mod=mod", **_GO_SETTINGS)

    return build


def build_otelcol() -> None:
    """The OpenTelemetry Collector of the parts that the tests need: with all parts it would take many times as long."""
    modules = ("exporter/otlphttpexporter", "otelcol", "receiver/otlpreceiver", "service")
    with building(OTELCOL) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        module = Path(scratch)
        shutil.copy(SOURCES / "otelcol.go", module)
        lines = [f"require go.opentelemetry.io/collector/{name} {OTELCOL_VERSION}" for name in modules]
        (module / "go.mod").write_text("\n".join(["module peers/otelcol", "go 1.25.0", *lines, ""]))
        argv = [tool("go"), "build", *_GO_FLAGS, "-o", f"{made}/otelcol", "."]
        run(argv, cwd=module, GOFLAGS="-p=2 -buildvcs=false -mod=mod", **_GO_SETTINGS)


def build_kubernetes_schemas() -> None:
    """Schemas of what a Kubernetes takes, from the description of its API in Kubernetes' own module."""
    with building(KUBERNETES_SCHEMAS) as made:
        module = downloaded(f"k8s.io/kubernetes@{KUBERNETES_VERSION}")
        kubernetes_schemas.write(module / "api/openapi-spec/swagger.json", made)


def build_kubernetes() -> None:
    """Kubernetes' API server and its etcd. Its module builds by itself only with the published parts of its source."""
    with building(KUBERNETES) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        source = Path(scratch) / "kubernetes"
        shutil.copytree(downloaded(f"k8s.io/kubernetes@{KUBERNETES_VERSION}"), source)
        run(["chmod", "-R", "u+w", source])
        for left_out in ("vendor", "go.work", "go.work.sum"):
            path = source / left_out
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        module, parts = source / "go.mod", f"v0{KUBERNETES_VERSION.removeprefix('v1')}"
        lines = [line for line in module.read_text().splitlines() if "=> ./staging" not in line]
        module.write_text(re.sub(r"(?m)^(\s*k8s\.io/\S+) v0\.0\.0(?=\s|$)", rf"\1 {parts}", "\n".join(lines)))
        named = f"-X k8s.io/component-base/version.gitVersion={KUBERNETES_VERSION}"
        flags = ["-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags=-s -w {named}"]
        settings = {**_GO_SETTINGS, "GOWORK": "off"}
        argv = [tool("go"), "build", "-v", *flags, "-o", f"{made}/", "./cmd/kube-apiserver"]  # it names each package
        run(argv, cwd=source, GOFLAGS="-p=2 -buildvcs=false -mod=mod", **settings)
        etcd = Path(scratch) / "etcd"
        etcd.mkdir()  # like that of NSQ, its module cannot be installed by its name
        (etcd / "go.mod").write_text(f"module peers/etcd\ngo 1.24\nrequire {ETCD} {ETCD_VERSION}\n")
        argv = [tool("go"), "build", *_GO_FLAGS, "-o", f"{made}/etcd", ETCD]
        run(argv, cwd=etcd, GOFLAGS="-p=2 -buildvcs=false -mod=mod", **_GO_SETTINGS)


def downloaded(module: str) -> Path:
    """Have Go fetch a module, and return its folder, which cannot be written to."""
    with tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        (Path(scratch) / "go.mod").write_text("module fetched\ngo 1.21\n")
        run([tool("go"), "mod", "download", module], cwd=Path(scratch))
    done = subprocess.run([tool("go"), "env", "GOMODCACHE"], capture_output=True, text=True, check=True)
    return Path(done.stdout.strip(), module)
