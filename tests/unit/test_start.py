"""A process of the service has the service's own packages, whatever else is called so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from bucketwire.start import PACKAGES

ROOT = Path(__file__).parents[2]
PROBE = f"""
import importlib, sys
sys.path.insert(0, "")  # as celery and gunicorn do
print(*(importlib.import_module(name).__file__ for name in {PACKAGES}), importlib.import_module("app.release").__name__)
print(sys.argv[1:], __name__)
"""


def run(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that has, as PYTHONPATH has, packages of the same names, which fail when imported."""
    for place in (folder, folder / "path"):
        for name in PACKAGES:
            (place / name).mkdir(parents=True)
            (place / name / "__init__.py").write_text("raise RuntimeError('a stranger')\n")
    (folder / "path" / "probe.py").write_text(PROBE)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "path"), str(ROOT)])} | environment
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_module_runs_with_the_packages_of_the_service(tmp_path: Path) -> None:
    done = run(tmp_path, "-P", "-m", "bucketwire.start", "probe", "--an", "option")
    assert done.returncode == 0, done.stderr
    files, arguments = done.stdout.splitlines()
    assert files.split() == [*(str(ROOT / name / "__init__.py") for name in PACKAGES), "app.release"]
    assert arguments == "['--an', 'option'] __main__"


def test_without_it_the_strangers_are_found(tmp_path: Path) -> None:
    assert "a stranger" in run(tmp_path, "-P", "-m", "probe").stderr


def test_the_command_runs_with_them_too(tmp_path: Path) -> None:
    done = run(tmp_path, "-P", "-m", "bucketwire", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("bucketwire ")


def test_a_stranger_that_is_imported_already_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "path").mkdir()
    code = "import sys, types; sys.modules['app'] = types.ModuleType('app')\n"
    (tmp_path / "path" / "sitecustomize.py").write_text(code)
    done = run(tmp_path, "-P", "-m", "bucketwire.start", "probe")
    assert done.returncode == 0, done.stderr
    assert str(ROOT / "app" / "__init__.py") in done.stdout
