"""`make` says what it can do, and a commit runs what continuous integration lints."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

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
        r"^test:.*\n(?:\t@.*\n)*\t\$\(BIN\)/pytest [\w -]+\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE
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
    installs = [line.split("pip install ", 1)[1].split() for line in lines if "pip install" in line]
    assert [words[-2:] for words in installs] == [
        ["--requirement", "build/none/setuptools.lock"],
        ["--requirement", "requirements.lock"],
        ["--editable", "."],
    ]
    assert all("--no-deps" in words for words in installs)
    assert all("--require-hashes" in words for words in installs[:2])
