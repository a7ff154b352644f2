"""The units for systemd, as `systemd-analyze` and the other tools of systemd judge them; test_units.py starts them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from app.config.settings import Settings
from tests import services
from tests.support.procfile import PROCESSES, parses

UNITS = Path(__file__).parents[2] / "deploy/systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
PROGRAM = "/opt/bucketwire/bin/bucketwire"
MAX_EXPOSURE = 1.5  # of ten; where the service may not do what it does not need, a unit is below it


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory with the units, and as much of a system as they refer to."""
    services.need("systemd")
    shutil.copytree(UNITS, tmp_path / "etc/systemd/system")
    for program in (PROGRAM, "/bin/kill"):
        path = tmp_path / program.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2("/bin/true", path)
    (tmp_path / "etc/systemd/system/sysinit.target").write_text("[Unit]\n")  # every service waits for it
    return tmp_path


def systemd(*words: str | Path) -> str:
    """What a tool of systemd complains of; it has to succeed unless it complains."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 or done.stderr, done.stdout
    return done.stderr


def verified(root: Path) -> str:
    units = sorted(path for path in (root / "etc/systemd/system").iterdir() if path.suffix in (".service", ".target"))
    return systemd("systemd-analyze", "verify", f"--root={root}", *units)


def exposed(root: Path, unit: str) -> float:
    command = ["systemd-analyze", "security", "--offline=true", f"--root={root}", "--no-pager", unit]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"Overall exposure level for \S+: (\d+\.\d)", said)
    assert found, said
    return float(found[1])


def test_every_unit_is_well_formed(root: Path) -> None:
    assert verified(root) == ""


@pytest.mark.parametrize(
    ("file", "spoil", "complaint"),
    [
        ("bucketwire-beat.service", lambda text: text.replace("Restart=always", "Restart=allways"), "allways"),
        ("bucketwire-.service.d/10-common.conf", lambda text: f"{text}\nProtectHomes=yes\n", "ProtectHomes"),
        ("bucketwire-api.service", lambda text: text.replace(PROGRAM, "/opt/nothing"), "/opt/nothing"),
    ],
)
def test_a_mistake_would_be_found(root: Path, file: str, spoil: Callable[[str], str], complaint: str) -> None:
    path = root / "etc/systemd/system" / file
    path.write_text(spoil(path.read_text()))
    assert complaint in verified(root)


@pytest.mark.parametrize("unit", SERVICES)
def test_every_service_is_hardened(root: Path, unit: str) -> None:
    assert exposed(root, unit) <= MAX_EXPOSURE


def test_a_service_of_ones_own_with_such_a_name_is_hardened_too(root: Path) -> None:
    own, other = "bucketwire-webhooks.service", "webhooks.service"
    for name in (own, other):
        (root / "etc/systemd/system" / name).write_text(f"[Service]\nExecStart={PROGRAM} worker --only targets\n")
    assert exposed(root, own) <= MAX_EXPOSURE < exposed(root, other)


@pytest.mark.parametrize("unit", SERVICES)
def test_each_service_runs_a_command_that_there_is(unit: str) -> None:
    text = (UNITS / unit).read_text()
    [line] = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    variables = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.MULTILINE))
    program, *words = shlex.split(re.sub(r"\$\{(\w+)\}", lambda found: variables[found[1]], line))
    assert program == PROGRAM
    assert parses(words)
    assert "WantedBy=bucketwire.target" in text


def test_there_is_a_service_for_each_process() -> None:
    own = {"release": "migrate", "web": "api"}
    processes = {own.get(name, name) for name in PROCESSES}
    assert {name.removeprefix("bucketwire-").removesuffix(".service") for name in SERVICES} == processes


def test_the_settings_to_fill_in_are_settings() -> None:
    lines = (UNITS / "bucketwire.env").read_text().splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    empty = {name for name, value in given.items() if not value}
    assert empty == {"BUCKETWIRE_SECRET_KEYS", "BUCKETWIRE_API_TOKENS"}
    settings = Settings.from_environ({name: value for name, value in given.items() if value})
    assert not settings.embedded_database
    assert not settings.embedded_broker


def test_the_user_and_the_folder_of_settings_are_made(root: Path) -> None:
    if os.geteuid():
        pytest.skip("only root gives files to another user")
    (root / "etc/bucketwire").mkdir()
    (root / "etc/bucketwire/bucketwire.env").write_text("BUCKETWIRE_API_TOKENS=secret\n")
    for tool, arguments in (("sysusers", []), ("tmpfiles", ["--create"])):
        folder = root / f"usr/lib/{tool}.d"
        folder.mkdir(parents=True)
        shutil.copy2(UNITS / f"bucketwire.{tool}.conf", folder / "bucketwire.conf")
        systemd(f"systemd-{tool}", f"--root={root}", *arguments, "bucketwire.conf")
    [(user, group)] = re.findall(r"^bucketwire:x:(\d+):(\d+):", (root / "etc/passwd").read_text(), re.MULTILINE)
    assert user != "0"
    for name, mode in (("", 0o750), ("secrets", 0o750), ("bucketwire.env", 0o640)):
        status = (root / "etc/bucketwire" / name).stat()
        assert (status.st_mode & 0o777, status.st_uid, status.st_gid) == (mode, 0, int(group)), name
