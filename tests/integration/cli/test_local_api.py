"""A command on this machine runs the API's routes itself: what that wakes, what it costs, what it needs."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from app.api.in_process import CommandApi
from app.config.arn import TargetId
from app.config.settings import KEY_PREFIX
from app.manifest import plan
from app.manifest.plan import Plan
from app.outbox.engine.database import Database
from app.wakeups import SERVICE_QUEUE
from tests import services
from tests.integration.cli.conftest import Cli
from tests.support.builders import registry

SET = ("target", "set", "redis:cache", "address=127.0.0.1:6379", "key=events")
# What takes long to import, and no command that shows something needs.
SLOW = ("botocore", "celery", "gunicorn", "kombu", "prometheus_client", "requests", "yaml")
LOADED = """
import sys
from app.cli import main
try:
    main(sys.argv[2:])
except SystemExit as ended:
    assert ended.code in (None, 0, 1), ended.code  # 1: nothing runs
print("loaded:", *[name for name in sys.argv[1].split(",") if name in sys.modules])
"""


def test_a_change_wakes_the_drain_and_a_look_does_not(
    cli: Cli, redis_server: services.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BUCKETWIRE_BROKER_URL", f"redis://{services.LOOPBACK}:{redis_server.port}/6")
    with redis.Redis(services.LOOPBACK, redis_server.port, db=6) as broker:
        broker.flushdb()
        for words, messages in (("target", "ls"), 0), (SET, 1), (("target", "show", "redis:cache"), 1):
            assert cli(*words).code == 0
            assert broker.llen(f"{KEY_PREFIX}{SERVICE_QUEUE}") == messages, words


def test_a_change_needs_no_broker_and_says_nothing_about_it(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETWIRE_BROKER_URL", f"redis://{services.LOOPBACK}:{services.free_port()}/0")
    done = cli(*SET)
    assert (done.code, done.err) == (0, "")


def test_a_command_does_not_look_for_garbage_in_what_it_imports(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    before, during = gc.get_threshold(), list[int]()
    call = CommandApi.call

    def noted(*arguments: Any) -> dict[str, Any]:
        during.append(gc.get_threshold()[0])
        return call(*arguments)

    monkeypatch.setattr(CommandApi, "call", noted)
    assert cli("target", "ls").code == 0
    assert min(during) > 10 * before[0]
    assert gc.get_threshold() == before, "of what runs after it"


@pytest.mark.parametrize("words", [("target", "set", "redis:cache"), ("config", "set", "notify_redis:cache")])
def test_two_commands_that_set_different_keys_of_a_target_at_once_both_succeed(
    cli: Cli, database: Database, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    assert cli(*SET).code == 0
    make = plan.make_plan

    def overtaken(*arguments: Any, **options: Any) -> Plan:
        planned = make(*arguments, **options)
        monkeypatch.setattr(plan, "make_plan", make)
        plan.set_keys(registry(database), {TargetId("redis", "cache"): {"db": "3"}})
        return planned

    monkeypatch.setattr(plan, "make_plan", overtaken)
    assert cli(*words, "comment=mine").code == 0
    settings = cli("target", "show", "redis:cache", "--json").json["settings"]
    assert (settings["db"], settings["comment"]) == ("3", "mine")


def test_a_declaration_may_be_as_large_as_a_body_of_events(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bucketwire.yaml"
    path.write_text("targets: {redis:cache: {address: '127.0.0.1:6379', key: events}}\n" + "#\n")
    rules = [f"- {{bucket: b, events: put, target: redis:cache, prefix: '{number:0900}'}}\n" for number in range(1500)]
    with path.open("a") as file:
        file.writelines(["rules:\n", *rules])
    assert cli("apply", "-f", str(path), "--dry-run").out.count("+ rule:") == 1500


# The status asks the broker, whose library loads yaml.
@pytest.mark.nightly(
    "one command: all import by one code", when=lambda command: command in {"target ls", "rule ls", "dead-letter ls"}
)
@pytest.mark.parametrize(
    ("command", "needed"),
    [("status", "kombu yaml"), ("target ls", ""), ("rule ls", ""), ("dead-letter ls", "")],
    ids=["status", "targets", "rules", "dead_letters"],
)
def test_what_shows_something_loads_only_what_it_needs(cli: Cli, folder: Path, command: str, needed: str) -> None:
    assert cli(*SET).code == 0
    argv = [sys.executable, "-c", LOADED, ",".join(SLOW), *command.split()]
    done = subprocess.run(
        argv, env={"BUCKETWIRE_DATA_DIR": str(folder)}, capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, f"loaded: {needed}".rstrip()), done.stderr
