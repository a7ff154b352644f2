"""`make release` on a tag: everything that is published, built twice and equal, and named by its sums."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from tests import services
from tests.support.clone import copy_tree

VERSION = "9.8.7"
REPOSITORY = "https://forge.example/somebody/bucketwire"
GIT = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")

pytestmark = [
    pytest.mark.nightly(
        "the service from a clone; what each package may import, in test_layout.py and test_architecture.py"
    ),
    pytest.mark.timeout(900),
]


def release(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "deploy/release.py", VERSION, "--images", "none", *options]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=800, check=False)


def commit(tree: Path, *tag: str) -> None:
    for words in (["add", "--all"], ["commit", "--quiet", "--message", "x"], *([["tag", *tag]] if tag else [])):
        subprocess.run([*GIT, *words], cwd=tree, check=True)


def replace(path: Path, pattern: str, by: str) -> None:
    text, count = re.subn(pattern, by, path.read_text(), flags=re.MULTILINE)
    assert count, f"{path} has no {pattern}"
    path.write_text(text)


@pytest.fixture(scope="module")
def tree() -> Path:
    tree = copy_tree(services.new_folder("release") / "bucketwire")
    subprocess.run([*GIT, "init", "--quiet"], cwd=tree, check=True)
    commit(tree)
    return tree


def test_a_tree_that_is_not_ready_is_refused_with_every_reason(tree: Path) -> None:
    done = release(tree)
    assert done.returncode == 1
    for reason in (
        f"the commit has no tag v{VERSION}: git switch --detach v{VERSION}",
        f"the version of tool.bucketwire in pyproject.toml is 0.3.0.dev0, not {VERSION}",
        f"the appVersion of the chart is 0.3.0.dev0, not {VERSION}",
        f"CHANGELOG.md has no heading ## [{VERSION}] - YYYY-MM-DD",
        "SECURITY.md has no address for reports: replace SECURITY-CONTACT",
        "the chart needs --repository https://…",
        "nothing was built",
    ):
        assert reason in done.stderr
    assert not (tree / "dist").exists()


@pytest.fixture(scope="module")
def released(tree: Path) -> Path:
    replace(tree / "pyproject.toml", '^version = ".*"$', f'version = "{VERSION}"')
    replace(tree / "deploy/helm/bucketwire/Chart.yaml", "^(version|appVersion): .*$", rf"\1: {VERSION}")
    replace(tree / "CHANGELOG.md", r"^## \[Unreleased\]$", f"## [Unreleased]\n\n## [{VERSION}] - 2026-12-01")
    replace(tree / "SECURITY.md", "SECURITY-CONTACT", "security@example.com")
    commit(tree, f"v{VERSION}")
    key = tree.parent / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    done = release(tree, "--repository", REPOSITORY, "--image", "registry.example/bw", "--sign-key", str(key))
    assert done.returncode == 0, done.stderr
    return tree / "dist" / VERSION


def test_the_files_are_complete_and_their_sums_are_signed(released: Path) -> None:
    sums = dict(reversed(line.split("  ")) for line in (released / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {
        f"bucketwire-{VERSION}.tar.gz", f"bucketwire-{VERSION}-py3-none-any.whl", f"bucketwire-chart-{VERSION}.tgz",
        "bucketwire.cdx.json", "provenance.intoto.json",
    }  # fmt: skip
    assert {name: hashlib.sha256((released / name).read_bytes()).hexdigest() for name in sums} == sums
    signers = released.parent / "signers"
    signers.write_text(f"us {(released.parents[2] / 'key.pub').read_text()}")
    verify = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "us", "-n", "bucketwire-release"]
    with (released / "SHA256SUMS").open() as signed:
        subprocess.run([*verify, "-s", str(released / "SHA256SUMS.sig")], stdin=signed, check=True, env=os.environ)


def test_the_sbom_names_the_product_and_every_locked_package(released: Path) -> None:
    bom = json.loads((released / "bucketwire.cdx.json").read_text())
    root = bom["metadata"]["component"]
    assert (bom["bomFormat"], root["name"], root["version"]) == ("CycloneDX", "bucketwire", VERSION)
    locked = re.findall(r"^([\w.-]+)==", (released.parents[1] / "requirements.lock").read_text(), re.MULTILINE)
    assert {one["name"].lower() for one in bom["components"]} == {name.lower() for name in locked}
    assert all(one["purl"].startswith("pkg:pypi/") and one.get("externalReferences") for one in bom["components"])


def test_the_provenance_names_the_commit_and_every_file(released: Path) -> None:
    statement = json.loads((released / "provenance.intoto.json").read_text())
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert set(subjects) == {path.name for path in released.iterdir()} - {
        "SHA256SUMS", "SHA256SUMS.sig", "provenance.intoto.json",
    }  # fmt: skip
    assert all(hashlib.sha256((released / name).read_bytes()).hexdigest() == value for name, value in subjects.items())
    [source] = [
        one for one in statement["predicate"]["buildDefinition"]["resolvedDependencies"] if one["name"] == "source"
    ]
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=released.parents[1], capture_output=True, text=True)  # noqa: PLW1510
    assert source["digest"]["gitCommit"] == head.stdout.strip()


def test_the_chart_runs_the_releases_image_and_says_where_it_comes_from(released: Path) -> None:
    with tarfile.open(released / f"bucketwire-chart-{VERSION}.tgz") as packed:
        files = {member.name: packed.extractfile(member) for member in packed}
        chart, values = (yaml.safe_load(files[f"bucketwire/{name}.yaml"] or b"") for name in ("Chart", "values"))
    assert (chart["version"], chart["home"], chart["sources"]) == (VERSION, REPOSITORY, [REPOSITORY])
    assert chart["icon"] == f"{REPOSITORY}/raw/v{VERSION}/app/console/static/icon.svg"
    assert values["image"]["repository"] == "registry.example/bw"
    assert f"registry.example/bw-spark:{VERSION}" in chart["annotations"]["artifacthub.io/images"]
    assert any(name.startswith("bucketwire/templates/") for name in files)
