"""What provisioning promises: nothing half-made, a reason for what cannot be had, and an error for it under CI."""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import provision, services
from tests.provision import steps
from tests.services import server_process

TOP = Path(__file__).parents[2]


def provide(cache: Path, *names: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A real run with a cache of its own on a machine that has no build tools."""
    argv = [sys.executable, "-m", "tests.provision", *names]
    env = {"BUCKETWIRE_CACHE": str(cache), "PATH": "/nonexistent", **env}
    return subprocess.run(argv, cwd=TOP, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_a_server_that_cannot_be_had_is_named_with_its_reason(tmp_path: Path) -> None:
    done = provide(tmp_path / "cache", "minio")
    assert (done.returncode, done.stderr) == (0, "")
    assert "CANNOT BE HAD: needs go, which is not installed" in done.stdout


def test_a_run_that_waits_for_another_one_says_so(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.provision", "minio"]
    env = {"BUCKETWIRE_CACHE": str(tmp_path), "PATH": "/nonexistent"}
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with subprocess.Popen(argv, cwd=TOP, env=env, stdout=subprocess.PIPE, text=True) as second:
            assert second.stdout is not None
            assert "waiting for another run of tests.provision" in second.stdout.readline()
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert "needs go" in second.stdout.readline()


def test_under_ci_a_server_that_cannot_be_had_is_an_error(tmp_path: Path) -> None:
    assert provide(tmp_path / "cache", "minio", CI="true").returncode == 1


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    done = provide(tmp_path / "cache", "minoi")
    assert done.returncode == 2
    assert "no such server: minoi; there are redis, postgres" in done.stderr


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(provision.CannotProvideError, match="sh ended with 3: why"):  # noqa: PT012, SIM117 (the block is the subject)
        with provision.building(tmp_path / "made-1") as made:
            (made / "half").touch()
            provision.run(["sh", "-c", "echo why; exit 3"])
    assert list(tmp_path.iterdir()) == []


def test_a_long_build_says_how_far_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(steps, "PROGRESS_SECONDS", 0.02)
    said = ""

    def build() -> None:
        provision.run(
            ["sh", "-c", "echo k8s.io/api; echo k8s.io/apiserver; until [ -e go-on ]; do sleep 0.02; done"],
            cwd=tmp_path,
        )

    def watch() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "2 lines of output" in said

    def provide_it() -> None:
        with steps.providing("kubernetes"):
            build()

    building = threading.Thread(target=provide_it)
    building.start()
    services.until(watch)
    (tmp_path / "go-on").touch()
    building.join()
    assert re.search(r"(?m)^kubernetes      sh runs for \d+ s, 2 lines of output, the last: k8s.io/apiserver$", said), (
        said
    )


def test_a_build_without_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PROGRESS_SECONDS", 0.02)
    monkeypatch.setattr(steps, "BUILD_TIMEOUT", 0)
    with pytest.raises(provision.CannotProvideError, match="sleep took more than 0 s"):
        provision.run(["sleep", "600"])


def test_a_build_may_have_a_longer_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(steps, "PROGRESS_SECONDS", 0.02)
    monkeypatch.setattr(steps, "BUILD_TIMEOUT", 0)
    provision.run(["sh", "-c", "sleep 0.2; touch built"], cwd=tmp_path, limit=600)
    assert (tmp_path / "built").exists()


def test_a_build_that_succeeds_replaces_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "made-1").mkdir()
    with provision.building(tmp_path / "made-1") as made:
        (made / "whole").touch()
    assert [path.relative_to(tmp_path) for path in tmp_path.rglob("*")] == [Path("made-1"), Path("made-1/whole")]


@pytest.mark.parametrize(
    ("ci", "usual", "outcome"),
    [("", True, "Skipped"), ("true", True, "Failed"), ("true", False, "Skipped")],
)
def test_a_missing_server_skips_its_test_but_fails_it_under_ci(
    monkeypatch: pytest.MonkeyPatch, ci: str, usual: bool, outcome: str
) -> None:
    monkeypatch.setitem(provision.RECIPES, "redis", provision.Recipe("redis", ("/nowhere/redis",), usual=usual))
    monkeypatch.setenv("CI", ci)
    monkeypatch.setattr(server_process, "NONE", False)
    with pytest.raises(
        BaseException, match=r"redis: /nowhere/redis not found; run `python -m tests.provision redis`"
    ) as ended:
        services.need("redis")
    assert type(ended.value).__name__ == outcome
