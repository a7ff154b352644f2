"""A test that passed when it was run again still says what it had failed of."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
FAILS_ONCE = """
from pathlib import Path

def test_of_two_runs():
    first = Path(__file__).with_suffix(".once")
    if not first.exists():
        first.touch()
        raise ValueError("the cause of the first failure")

def test_of_one_run():
    pass
"""


@pytest.mark.nightly("without xdist: one plugin prints it", when=lambda processes: processes != [])
@pytest.mark.slow
@pytest.mark.parametrize("processes", [[], ["-n", "1"]], ids=["alone", "xdist"])
def test_the_error_of_the_first_run_is_printed(processes: list[str], tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(FAILS_ONCE)
    options = ["-p", "tests.support.reruns", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(tmp_path)]
    argv = [sys.executable, "-m", "pytest", "-q", "--reruns", "1", "--tb=short", *options, *processes, str(file)]
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "COLUMNS"))}
    done = subprocess.run(argv, cwd=TOP, env=plain, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    said = done.stdout.partition("why tests were run again")[2]
    assert "test_it.py::test_of_two_runs failed in call:" in said
    assert "ValueError: the cause of the first failure" in said
    assert "test_of_one_run" not in said


def test_every_run_of_the_suite_says_it(pytestconfig: pytest.Config) -> None:
    assert pytestconfig.pluginmanager.has_plugin("tests.support.reruns")
