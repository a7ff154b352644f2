"""The wheel, installed outside the repository: the service runs from it, beside modules with the names of its packages.

The wheel is made by `python -m build` from a copy of the tree, and installed into an environment of its own. That finds
the libraries in the environment of the tests, so that they are not installed a second time: `test_make_run.py` installs
them for real. A foreign `app`, `workers`, `migrations` and `spark_jobs`, which fail when they are imported, are in the
environment, on PYTHONPATH, and in the working directory.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import pytest
import yaml

from bucketwire.start import PACKAGES
from tests import provision, services
from tests.services import speed, until
from tests.spark.conftest import QUICKLY
from tests.support.clone import ROOT, copy_tree
from tests.support.service_processes import Role, start_all, stop_all

COMMIT = "0123456789ab"
STRANGE = "somebody else's"
EVENT = (ROOT / "examples/event.json").read_bytes()  # the tour's
PATIENCE = 60

pytestmark = [
    pytest.mark.nightly(
        "the service from a clone; what each package may import, in test_layout.py and test_architecture.py"
    ),
    pytest.mark.timeout(600),
]


@dataclass(eq=False)
class Installed(Role):
    """A command of the installed service, in a working directory with strangers."""

    program: Path = Path()

    def argv(self) -> Sequence[str | Path]:
        put_strangers(self.log.parent)
        return [self.program, *self.arguments]


@dataclass(frozen=True)
class Environment:
    """The environment with the wheel, and what it was installed from."""

    folder: Path
    wheel: Path
    sdist: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin/python"

    @property
    def bucketwire(self) -> Path:
        return self.folder / "bin/bucketwire"

    @property
    def packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.folder)}))

    def role(self, *arguments: str, ready: str, settings: Mapping[str, str]) -> Installed:
        return Installed(list(arguments), {**settings, **self.strangers()}, ready, program=self.bucketwire)

    def strangers(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder / "strangers")}

    def run(self, *command: str | Path, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end in a working directory with strangers."""
        environment = os.environ | dict(settings) | self.strangers()
        return subprocess.run(
            list(map(str, command)), env=environment, cwd=self.folder / "strangers", capture_output=True, text=True,
            timeout=180 * speed.slowness(), check=False,
        )  # fmt: skip


def put_strangers(folder: Path) -> None:
    """Put packages with our packages' names there, which must not be imported."""
    for name in PACKAGES:
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "__init__.py").write_text(f"raise RuntimeError({STRANGE!r})\n")


def run(*command: str | Path, cwd: Path, **environment: str) -> None:
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300 * speed.slowness(),
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"


@pytest.fixture(scope="module")
def installed() -> Environment:
    tree = copy_tree(services.new_folder("tree") / "bucketwire")
    # With the setuptools that is here: test_release.py has environments made for the build, which takes as long again.
    run(sys.executable, "-m", "build", "--no-isolation", cwd=tree, SOURCE_COMMIT=COMMIT)
    [wheel], [sdist] = tree.glob("dist/*.whl"), tree.glob("dist/*.tar.gz")
    environment = Environment(services.new_folder("environment"), wheel, sdist)
    venv.create(environment.folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", environment.python, "install", "--quiet"]
    run(*pip, "--no-deps", "--no-index", "--disable-pip-version-check", wheel, cwd=tree)
    # A path file is not read in a folder that another one adds, so the editable installation stays unknown.
    (environment.packages / "libraries.pth").write_text(sysconfig.get_path("purelib"))
    put_strangers(environment.packages)
    put_strangers(environment.folder / "strangers")
    return environment


def test_the_wheel_adds_one_name_and_has_all_that_is_needed(installed: Environment) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    [metadata] = tops - {"bucketwire"}
    assert metadata.endswith(".dist-info")
    assert zipfile.ZipFile(installed.wheel).read(f"{metadata}/top_level.txt").split() == [b"bucketwire"]
    assert {f"{metadata}/licenses/LICENSE", f"{metadata}/licenses/THIRD-PARTY-NOTICES.md"} <= set(names)
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "bucketwire", *PACKAGES],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    wanted = {
        name if name.startswith("bucketwire/") else f"bucketwire/{name}" for name in tracked if (ROOT / name).exists()
    }
    ours = {name for name in names if name.startswith("bucketwire/")}
    assert ours == wanted | {"bucketwire/app/COMMIT"}


def test_the_sdist_has_what_an_installation_by_the_lock_needs(installed: Environment) -> None:
    with tarfile.open(installed.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "CHANGELOG.md", "constraints.txt", "requirements.lock", "setup.py", "app/COMMIT"} <= names


def test_other_software_in_the_environment_finds_its_own_modules(installed: Environment) -> None:
    for name in PACKAGES:
        done = installed.run(installed.python, "-P", "-c", f"import bucketwire, {name}", settings={})
        assert STRANGE in done.stderr


def test_the_version_names_the_commit_of_the_build(installed: Environment) -> None:
    done = installed.run(installed.bucketwire, "--version", settings={})
    version = installed.wheel.name.split("-")[1]
    assert version.endswith(f".dev0+g{COMMIT}") or ".dev" not in version, "two builds must not have one version"
    assert (done.stdout, done.stderr) == (f"bucketwire {version} (commit {COMMIT})\n", "")


def test_the_whole_service_runs_and_delivers_the_tours_event(installed: Environment) -> None:
    settings = {
        "BUCKETWIRE_DATA_DIR": str(services.new_folder("var")),
        "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{services.free_port()}",
    }
    with installed.role("up", "--concurrency", "1", ready="Ctrl-C stops everything.", settings=settings).start() as up:
        post(settings)
        until(lambda: received(installed, settings), PATIENCE, what="the event at the sample target")
        doctor = (installed.bucketwire, "doctor")
        until(lambda: installed.run(*doctor, settings=settings).returncode == 0, PATIENCE, what="all is well")
        assert STRANGE not in up.said()


def received(installed: Environment, settings: Mapping[str, str]) -> bool:
    done = installed.run(installed.bucketwire, "sample", "--json", settings=settings)
    assert done.returncode == 0, done.stderr
    return [one["object"] for one in orjson.loads(done.stdout)] == ["plain/a.txt"]


def post(settings: Mapping[str, str]) -> None:
    url = f"http://{settings['BUCKETWIRE_LISTEN']}/v1/events"
    assert httpx.post(url, content=EVENT, timeout=PATIENCE, trust_env=False).json()["recorded"] == 1


@dataclass(frozen=True)
class Apart:
    """The processes started one by one, as in production, with a mirror in their Redis."""

    installed: Environment
    settings: Mapping[str, str]
    probed: str  # where the worker answers health checks

    def __call__(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a command of `bucketwire` with their settings."""
        return self.run(self.installed.bucketwire, *words, **more)

    def run(self, program: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return self.installed.run(program, *words, settings=dict(self.settings) | more)


@pytest.fixture(scope="module")
def apart(installed: Environment) -> Iterator[Apart]:
    with services.redis() as redis:
        settings = {
            "BUCKETWIRE_DATA_DIR": str(services.new_folder("var")),
            "BUCKETWIRE_DATABASE_URL": f"sqlite:///{services.new_folder('outbox')}/outbox.db",
            "BUCKETWIRE_BROKER_URL": redis.url,
            "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{services.free_port()}",
            "BUCKETWIRE_ALLOW_PRIVATE": "on",
        }
        apart = Apart(installed, settings, f"{services.LOOPBACK}:{services.free_port()}")
        address = f"address={services.LOOPBACK}:{redis.port}"
        for words in (
            ["migrate"],
            ["target", "set", "redis:mirror", address, "key=objects"],
            ["event", "add", "*", "arn:minio:sqs::mirror:redis", "--event", "*"],
        ):
            done = apart(*words)
            assert done.returncode == 0, done.stdout + done.stderr
        probed = {"BUCKETWIRE_PROBE_LISTEN": apart.probed}
        roles = [
            installed.role("api", "--workers", "1", ready="Listening at", settings=settings),
            installed.role("beat", ready="is starting.", settings=settings),
            installed.role("worker", "--concurrency", "1", ready=" ready.", settings=settings | probed),
        ]
        try:
            start_all(roles)
            post(settings)
            yield apart
            assert STRANGE not in "".join(role.said() for role in roles)
        finally:
            stop_all(roles)


def test_the_processes_run_apart_and_deliver_the_tours_event(apart: Apart) -> None:
    def delivered() -> bool:
        return [row["events"]["delivered"] for row in orjson.loads(apart("status", "--json").stdout)] == [1]

    until(delivered, PATIENCE, what="the event at the mirror")


def test_the_health_check_of_the_compose_file_reaches_a_worker(installed: Environment, apart: Apart) -> None:
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    listen = compose["workers"]["environment"]["BUCKETWIRE_PROBE_LISTEN"]
    kind, python, *words = compose["workers"]["healthcheck"]["test"]
    assert (kind, python) == ("CMD", "python")
    assert listen in words[-1]
    here = [word.replace(listen, apart.probed) for word in words]
    until(lambda: apart.run(installed.python, *here).returncode == 0, PATIENCE, what="an answer")


def test_a_reconciliation_runs_on_spark(apart: Apart, tmp_path: Path) -> None:
    """The event's object is in the listing and at the target, another one only in the listing."""
    services.need("spark_jars")
    [record] = orjson.loads(EVENT)["Records"]
    thing = record["s3"]["object"]
    entry = {"status": "success", "type": "file", "lastModified": record["eventTime"], "size": thing["size"]}
    entries = [entry | {"key": key, "etag": thing["eTag"]} for key in ("a.txt", "missing.txt")]
    (tmp_path / "listing.json").write_bytes(b"\n".join(map(orjson.dumps, entries)))
    listing = ("--listing", str(tmp_path / "listing.json"), "--listed-at", "1s")
    jars = {"BUCKETWIRE_SPARK_JARS": str(provision.SPARK_JARS), "BUCKETWIRE_SPARK_MASTER": "local[1]"}
    done = apart(
        "reconcile", "run", "plain", "--target", "redis:mirror", "--check", "--json", *listing, **jars, **QUICKLY
    )
    assert done.returncode == 3, done.stdout + done.stderr[-3000:]
    counts = orjson.loads(done.stdout)
    assert (counts["objects"], counts["target_rows"], counts["missing"]) == (2, 1, 1)
