"""`make` says what it can do, and a commit runs what continuous integration lints."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.support.without_servers import DEAR

ROOT = Path(__file__).parents[2]
TARGETS = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_make_lists_every_target_with_its_purpose() -> None:
    listed = subprocess.run(["make"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert TARGETS is not None
    assert [line.split()[0] for line in listed.splitlines() if not line.startswith("make")] == TARGETS[1].split()


def test_a_commit_is_linted_as_continuous_integration_does_and_a_push_is_checked() -> None:
    [hooks] = [repo["hooks"] for repo in yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]]
    assert {hook["entry"]: hook.get("stages", ["pre-commit"]) for hook in hooks} == {
        "make lint": ["pre-commit"],
        "make types": ["pre-commit"],
        "make check": ["pre-push"],
    }


def test_what_a_check_leaves_out_is_there() -> None:
    assert [name for name in sorted(DEAR) if not (ROOT / name).is_file()] == []


def test_make_starts_the_tests_without_a_shell() -> None:
    # Between the two a shell would hide from pytest that make was interrupted: tests/support/interruption.py.
    assert re.search(
        r"^test:.*\n(?:\t@.*\n)*\t\$\(BIN\)/pytest [\w $()-]+\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE
    )


def test_the_processes_of_a_run_take_over_what_one_has_compiled() -> None:
    shown = subprocess.run(
        ["make", "--no-print-directory", "--eval=show: ; @echo $$PYTHONDONTWRITEBYTECODE", "show"],
        cwd=ROOT, check=True, capture_output=True, text=True, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    ).stdout  # fmt: skip
    assert shown == "\n"


def test_make_run_installs_by_hash_and_resolves_nothing() -> None:
    asked = ["make", "--dry-run", "VENV=build/none", "build/none/.installed"]
    lines = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    installs = [words.split() for line in lines for words in line.split("pip install ")[1:]]
    what = [next(word for word in words if word.endswith((".lock", ".lock;")) or word == ".") for words in installs]
    assert [word.rstrip(";") for word in what] == [
        "deploy/uv.lock",
        "build/none/setuptools.lock",  # by uv, else by pip
        "build/none/setuptools.lock",
        "requirements.lock",
        ".",
    ]
    assert all("--no-deps" in words for words in installs)
    assert all("--require-hashes" in words for words in installs[:4])


# What stands in for the two programs: it writes down what it was asked for.
ASKED = '#!/bin/sh\necho "$(basename "$0") $*" >> {log}\n'
PIP = """case "$*" in
  "config list"*) echo "{configured}" ;;
  *deploy/uv.lock) {published} && cp "$0.then" "$(dirname "$0")/uv" ;;
esac
"""


@pytest.mark.parametrize(
    ("configured", "published", "exit_code", "installs"),
    [
        ("global.cert='/etc/ssl/certs/ca-certificates.crt'", "true", 0, "uv"),
        ("global.index-url='https://pypi.example/simple'", "true", 0, "pip"),
        (":env:.proxy='http://proxy.example:3128'", "true", 0, "pip"),
        ("", "false", 0, "pip"),  # no wheel for this machine
        ("", "true", 2, "pip"),  # uv reaches nothing
    ],
)
def test_pip_installs_where_uv_would_look_elsewhere_or_cannot(
    tmp_path: Path, configured: str, published: str, exit_code: int, installs: str
) -> None:
    programs, log = tmp_path / "venv/bin", tmp_path / "asked"
    programs.mkdir(parents=True)
    asked = ASKED.format(log=log)
    for name, text in {
        "pip": asked + PIP.format(configured=configured, published=published),
        "pip.then": f"{asked}exit {exit_code}\n",
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    subprocess.run(["make", f"VENV={tmp_path / 'venv'}", f"{tmp_path / 'venv'}/.installed"], cwd=ROOT, check=True)
    lines = [line.split() for line in log.read_text().splitlines()]
    assert [words[0] for words in lines if words[-1] in ("requirements.lock", ".")] == [installs] * 2
