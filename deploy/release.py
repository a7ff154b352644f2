"""Make everything that a release publishes, into `dist/VERSION`: `make release VERSION=0.3.0` on a clean tag `v0.3.0`.

The sdist, the wheel, the chart, the images, an SBOM of each, a provenance statement and `SHA256SUMS`. The sdist and the
wheel are built twice and must be equal byte by byte. Nothing is published, and nothing but the images' build and the
isolated build's setuptools needs the network. `docs/how-to/release.md` has the steps before and after.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

ROOT = Path(__file__).parents[1]
CHART = Path("deploy/helm/bucketwire")
ICON = "app/console/static/icon.svg"
PLACEHOLDER = "SECURITY-CONTACT"  # stands in SECURITY.md until somebody who publishes has an address
LOCKS = {"bucketwire": "requirements.lock", "bucketwire-spark": "requirements-spark.lock"}
BUILD_TYPE = "urn:bucketwire:build:make-release:1"
ENGINES = ("docker", "podman")
# What makes the environment of a build: uv in no time, where `make` has installed it; pip takes as long as the build.
INSTALLER = "uv" if Path(sys.executable).with_name("uv").exists() else "pip"
_PACKAGES = "${Package}\t${Version}\t${Architecture}\n"  # what dpkg-query prints for each


class NotReady(Exception):
    """The tree is not one that may be released; the message says what to do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the tree, make the files, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make release", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("version", help="X.Y.Z, of which the tag vX.Y.Z is checked out")
    parser.add_argument("--images", choices=[*ENGINES, "none"], default=next(filter(shutil.which, ENGINES), "none"))
    parser.add_argument("--repository", default="", help="where the source is published, as https://forge/owner/name")
    parser.add_argument("--image", default="docker.io/bucketwire/bucketwire", help="what the chart runs")
    parser.add_argument("--dry-run", action="store_true", help="go on although the tree may not be released")
    parser.add_argument("--sign-key", type=Path, help="an SSH key that signs SHA256SUMS")
    given = parser.parse_args(arguments)
    try:
        folder = make_files(given)
    except NotReady as error:
        sys.stderr.write(f"release: {error}\n")
        return 1
    sys.stdout.write(f"{(folder / 'SHA256SUMS').read_text()}All of it is in {folder}.\n")
    return 0


def make_files(given: argparse.Namespace) -> Path:
    """Make the files of a release; return their folder. Raises `NotReady`."""
    problems = list(check_tree(given.version))
    if not given.repository.startswith("https://"):
        problems.append("the chart needs --repository https://…, where the source is published")
    for problem in problems:
        sys.stderr.write(f"release: {problem}\n")
    if problems and not given.dry_run:
        raise NotReady(f"{len(problems)} problems; nothing was built")
    commit, epoch = git("rev-parse", "HEAD"), int(git("log", "-1", "--format=%ct"))
    folder = Path(ROOT, "dist", given.version)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    build_packages(folder, commit, epoch)
    package_chart(folder, given.repository, given.image, epoch)
    write_sbom(folder / "bucketwire.cdx.json", LOCKS["bucketwire"], given.version, epoch)
    if given.images != "none":
        build_images(folder, given.images, given.version, commit, epoch)
    artefacts = sorted(path for path in folder.iterdir() if path.is_file())
    write_provenance(folder / "provenance.intoto.json", artefacts, given.version, commit, epoch)
    write_sums(folder, given.sign_key)
    return folder


def check_tree(version: str) -> Iterable[str]:
    """Yield what stands against a release of this version."""
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
        yield f"{version} is no version of the form X.Y.Z"
    if git("status", "--porcelain"):
        yield "the tree has changes that are not committed: git status"
    if f"v{version}" not in git("tag", "--points-at", "HEAD").split():
        yield f"the commit has no tag v{version}: git switch --detach v{version}"
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["bucketwire"]["version"]
    chart = yaml.safe_load((ROOT / CHART / "Chart.yaml").read_text())
    for place, found in (
        ("version of tool.bucketwire in pyproject.toml", declared),
        ("version of the chart", chart["version"]),
        ("appVersion of the chart", chart["appVersion"]),
    ):
        if found != version:
            yield f"the {place} is {found}, not {version}"
    heading = re.compile(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", re.MULTILINE)
    if not heading.search((ROOT / "CHANGELOG.md").read_text()):
        yield f"CHANGELOG.md has no heading ## [{version}] - YYYY-MM-DD"
    if PLACEHOLDER in (ROOT / "SECURITY.md").read_text():
        yield f"SECURITY.md has no address for reports: replace {PLACEHOLDER}"


def build_packages(folder: Path, commit: str, epoch: int) -> None:
    """Build the sdist, and the wheel from it, twice, and keep one of each; raise `NotReady` if they differ."""
    with tempfile.TemporaryDirectory(prefix="bucketwire-release-") as place:
        first, second = (_built(Path(place, name), commit, epoch) for name in ("first", "second"))
        if first != second:
            raise NotReady(f"two builds differ in {[name for name in first if first[name] != second.get(name)]}")
    for name, content in first.items():
        (folder / name).write_bytes(content)


def _built(place: Path, commit: str, epoch: int) -> dict[str, bytes]:
    tree = place / "tree"
    tree.mkdir(parents=True)
    archive = place / "tree.tar"
    git("archive", "--output", str(archive), "HEAD")
    with tarfile.open(archive) as packed:
        packed.extractall(tree, filter="data")
    archive.unlink()
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "SOURCE_COMMIT": commit[:12]}
    environment |= {"UV_SYSTEM_CERTS": "true"}  # as `make` has it

    def build(*options: str) -> None:
        command = [sys.executable, "-m", "build", "--installer", INSTALLER, "--outdir", str(place), *options]
        run(command, environment=environment)

    build("--sdist", str(tree))
    [sdist] = place.glob("*.tar.gz")
    sdist.write_bytes(reproducible(sdist, epoch))
    unpacked = place / "sdist"
    with tarfile.open(sdist) as packed:
        packed.extractall(unpacked, filter="data")
    build("--wheel", str(next(unpacked.iterdir())))
    return {path.name: path.read_bytes() for path in place.iterdir() if path.is_file()}


def reproducible(archive: Path, epoch: int) -> bytes:
    """Return a tar.gz with the same files in the order of their names, of no user and of one time."""
    with tarfile.open(archive) as packed:
        files = [(member, packed.extractfile(member)) for member in packed.getmembers() if member.isfile()]
        return _tar_gz({member.name: file.read() for member, file in files if file}, epoch)


def _tar_gz(files: Mapping[str, bytes], epoch: int) -> bytes:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o644
            packed.addfile(member, io.BytesIO(content))
    return gzip.compress(plain.getvalue(), mtime=epoch)


def package_chart(folder: Path, repository: str, image: str, epoch: int) -> None:
    """Pack the chart as `helm package` does, running this image; it names the repository and this commit's icon."""
    tracked = git("ls-files", str(CHART)).splitlines()
    files = {str(Path("bucketwire", Path(name).relative_to(CHART))): (ROOT / name).read_bytes() for name in tracked}
    values = files["bucketwire/values.yaml"].decode()
    pattern = re.compile(r"^(\s+repository:) (bucketwire(?:-spark)?)$", re.MULTILINE)
    changed, count = pattern.subn(lambda found: f"{found[1]} {image}{found[2].removeprefix('bucketwire')}", values)
    if count != len(LOCKS):
        raise NotReady(f"values.yaml of the chart names {count} images, not {len(LOCKS)}")
    files["bucketwire/values.yaml"] = changed.encode()
    chart = yaml.safe_load(files["bucketwire/Chart.yaml"])
    version = chart["version"]
    chart |= {"home": repository, "sources": [repository], "icon": f"{repository}/raw/v{version}/{ICON}"}
    images = [
        {"name": name, "image": f"{image}{name.removeprefix('bucketwire')}:{chart['appVersion']}"} for name in LOCKS
    ]
    chart.setdefault("annotations", {})["artifacthub.io/images"] = yaml.safe_dump(images)
    files["bucketwire/Chart.yaml"] = yaml.safe_dump(chart, sort_keys=False).encode()
    (folder / f"bucketwire-chart-{version}.tgz").write_bytes(_tar_gz(files, epoch))


def build_images(folder: Path, engine: str, version: str, commit: str, epoch: int) -> None:
    """Build both images, and save each with its SBOM: the locked packages and those of Debian."""
    for name, lock in LOCKS.items():
        tag = f"{name}:{version}"
        target = ["--target", "spark"] if name.endswith("-spark") else []
        run([engine, "build", "--build-arg", f"COMMIT={commit}", *target, "--tag", tag, "."])
        run([engine, "save", "--output", str(folder / f"{name}-{version}-image.tar"), tag])
        command = [engine, "run", "--rm", "--network", "none", "--entrypoint", "dpkg-query", tag, "-W", "-f", _PACKAGES]
        write_sbom(folder / f"{name}-image.cdx.json", lock, version, epoch, run(command).splitlines())


def write_sbom(path: Path, lock: str, version: str, epoch: int, packages: Iterable[str] = ()) -> None:
    """Write a CycloneDX document of what a lock file names and of Debian's packages (name, version, architecture)."""
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch)}
    tool = [sys.executable, "-m", "cyclonedx_py", "requirements", "--output-reproducible"]
    tool += ["--no-validate"]  # the whole document is, below
    made = run([*tool, "--pyproject", "pyproject.toml", "--output-file", "-", lock], environment=environment)
    document = json.loads(made)
    document["metadata"]["component"]["version"] = version
    bom = Bom.from_json(document)  # type: ignore[attr-defined]  # added by a decorator
    bom.register_dependency(bom.metadata.component, bom.components)
    for package in packages:
        name, found, architecture = package.split("\t")
        address = PackageURL("deb", "debian", name, found, {"arch": architecture})
        bom.components.add(
            Component(name=name, version=found, type=ComponentType.LIBRARY, purl=address, bom_ref=str(address))
        )
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    if error := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        raise NotReady(f"{path.name} is no valid CycloneDX document: {error}")
    path.write_text(f"{text}\n")


def write_provenance(path: Path, artefacts: Iterable[Path], version: str, commit: str, epoch: int) -> None:
    """Write an in-toto statement in SLSA's form (v1) of how these files were made."""
    materials = ["constraints.txt", *LOCKS.values()]
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each.name, "digest": {"sha256": sha256(each)}} for each in artefacts],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"version": version, "ref": f"refs/tags/v{version}"},
                "resolvedDependencies": [
                    {"name": "source", "digest": {"gitCommit": commit}},
                    *({"name": name, "digest": {"sha256": sha256(ROOT / name)}} for name in materials),
                ],
            },
            "runDetails": {
                "builder": {"id": BUILD_TYPE, "version": {"python": sys.version.split()[0]}},
                "metadata": {"startedOn": datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")},
            },
        },
    }
    path.write_text(json.dumps(statement, indent=2) + "\n")


def write_sums(folder: Path, key: Path | None) -> None:
    """Write `SHA256SUMS` of all files there, and its signature if there is a key."""
    lines = [f"{sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    sums = folder / "SHA256SUMS"
    sums.write_text("".join(lines))
    if key is not None:
        run(["ssh-keygen", "-Y", "sign", "-f", str(key), "-n", "bucketwire-release", str(sums)])


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git(*words: str) -> str:
    """Return what git prints in this tree."""
    return run(["git", *words]).strip()


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command in this tree and return its output; raise `NotReady` with its last lines if it fails."""
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise NotReady(f"{' '.join(command)} ended with {done.returncode}\n{said}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
