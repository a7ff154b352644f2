"""What a new target type needs: the files of the recipe, and no line in a list elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from app.config.declared_types import TYPES
from app.config.targets.base import NamespaceSettings

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "CONTRIBUTING.md").read_text().partition("## Add a target\n")[2].partition("\n## ")[0]
STEPS = RECIPE.partition("\n1. ")[2].partition("\n\n")[0]
SHARED = {"workers/targets/base.py"}  # named to be read
FILES = sorted(set(re.findall(r"`((?:[\w<>.*-]+/)*[\w<>*-]+\.(?:py|md|yml|toml|txt|lock))`", STEPS)) - SHARED)
IN_THE_PACKAGE = {"batch.py", "link_target.py", "sql_target.py"}
OTHERWISE = {"amqp", "mysql", "postgresql", "redis", "webhook"}  # also a database or a broker of the service, or a word
# Facts about others: MinIO's old config.json, which system JetStream is of, and what Versity's gateway sends.
NAMED = {
    "app/config/formats/config_json.py": {"elasticsearch"},
    "app/config/sources/jetstream.py": {"nats"},
    "app/events/frontends/s3_records.py": {"kafka", "nats"},
}

SETTINGS = """
from app.config.fields.addresses import Host, HostPort
from app.config.fields.field_types import Text
from app.config.fields.fields import declared, setting
from app.config.targets.base import MessageSettings


@declared
class PigeonSettings(MessageSettings, type_name="pigeon", title="Pigeon", example={"loft": "loft:1", "ring": "a"}):
    loft: HostPort = setting(Host(7), about="where it flies to")
    ring: str = setting(Text(), default="", secret=True, about="its number")
"""
ADAPTER = """
from workers.delivery.outcomes import DELIVERED, Failed
from workers.targets.tcp import Endpoint


class PigeonTarget:
    def __init__(self, settings):
        self.settings = settings

    def endpoints(self):
        return [Endpoint(self.settings.loft)]

    def open(self):
        pass

    def deliver(self, events, window, lease=None):
        return [Failed(f"ring {self.settings.ring} is unknown")] * len(events)

    def close(self):
        pass
"""
USE = """
import socket, sys
import app.config.targets
app.config.targets.__path__.append(f"{sys.argv[1]}/settings")
import workers.systems
workers.systems.__path__.append(f"{sys.argv[1]}/systems")
from app.config.formats.environment import from_environ
from app.config.formats.notify_lines import parse_line
from app.config.formats.reference_page import reference_page
from app.config.target_settings import load, redacted
from workers.target_test import run_target_test

server = socket.create_server(("127.0.0.1", 0))
values = {"loft": f"127.0.0.1:{server.getsockname()[1]}", "ring": "hunter2"}
print(*redacted("pigeon", values).values())
for step in run_target_test(load("pigeon", values), "pigeon"):
    print(step.step, step.ok, step.message)
print(*from_environ({"MINIO_NOTIFY_PIGEON_ENABLE_a": "on", "MINIO_NOTIFY_PIGEON_LOFT_a": "h"}).targets)
print(parse_line("notify_pigeon:b loft=h"))
print("bucketwire target set pigeon:NAME loft=loft:1 ring=a" in reference_page())
"""


@pytest.mark.slow
def test_a_new_type_is_a_module_of_settings_and_an_adapter(tmp_path: Path) -> None:
    for file, text in (("settings/pigeon.py", SETTINGS), ("systems/pigeon/target.py", ADAPTER)):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    command = [sys.executable, "-c", USE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    shown, resolve, connect, login, deliver, variables, line, example = done.stdout.splitlines()
    assert shown.endswith(" *redacted*")
    assert [words.split()[:2] for words in (resolve, connect, login)] == [
        ["resolve", "True"], ["connect", "True"], ["login", "True"],
    ]  # fmt: skip
    assert deliver == "deliver False ring *redacted* is unknown"
    assert variables == "pigeon:a"
    assert "pigeon" in line
    assert example == "True"


def test_the_recipe_has_fifteen_files_at_most() -> None:
    assert len(set(FILES) - IN_THE_PACKAGE) <= 15, FILES


@pytest.mark.parametrize("type_name", TYPES)
def test_every_type_has_the_files_of_the_recipe(type_name: str) -> None:
    """But the webhook, whose server is the user's."""
    for file in set(FILES) - IN_THE_PACKAGE:
        path = file.replace("<type>", type_name)
        assert list(ROOT.glob(path)), path
    if issubclass(TYPES[type_name], NamespaceSettings):
        assert (ROOT / f"spark_jobs/stores/{type_name}.py").exists()


def test_the_source_names_a_type_in_its_own_files_alone() -> None:
    """As a text, as a list of types or a case would."""
    named = {}
    for folder in ("app", "workers", "spark_jobs", "bucketwire"):
        for path in (ROOT / folder).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            own = {part for part in (*path.parts, path.stem.partition("_")[0]) if part in TYPES}
            texts = set(re.findall(r"""["']([a-z]+)["']""", path.read_text()))
            if others := texts & set(TYPES) - OTHERWISE - own:
                named[name] = others
    assert named == NAMED
