"""`bucketwire target test`: each step told, the failing one named, no secret said, nothing left in a namespace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.config import target_settings
from app.events import own_events as marks
from tests import services
from tests.contract import ways
from tests.contract.probes.base import TIMEOUT, Probe
from tests.services import forking
from workers.target_test import Step, run_target_test


def steps_of(probe: Probe, values: dict[str, str]) -> list[Step]:
    """A trial of these settings, whatever it comes to; no secret is in its words."""
    settings = target_settings.load(probe.type, {"timeout": f"{TIMEOUT}s"} | values)
    found = list(run_target_test(settings, probe.type))
    words = " ".join(step.message for step in found)
    assert "wrong-s3cret" not in words
    assert probe.secret not in words
    assert all(0 <= step.seconds < 30 for step in found)
    return found


def names(steps: Sequence[Step]) -> list[str]:
    return [step.step for step in steps]


@pytest.mark.nightly("the steps of one way of each type", when=lambda running: running in ways.SECOND)
def test_a_target_that_works_confirms_a_marked_event_and_a_namespace_keeps_none(probe: Probe) -> None:
    steps = steps_of(probe, probe.values())
    assert all(step.ok for step in steps), steps
    ends = ["remove"] if probe.is_namespace else []
    assert names(steps) == ["resolve", "connect", "login", "deliver", *ends]
    if probe.is_namespace:
        assert probe.held() == []
    else:
        ((path, document),) = probe.held()
        assert path.startswith(f"{marks.TEST_BUCKET}/")
        assert marks.TEST_EVENT in document
        assert path in steps[-1].message


@pytest.mark.nightly(
    "two; what comes before a login is one code for all types, and what it says is what an opening says",
    when=lambda running: running not in {"redis-namespace", "webhook"},
)
def test_a_closed_port_fails_the_connecting(probe: Probe) -> None:
    steps = steps_of(probe, probe.at_port(services.free_port()))
    assert names(steps) == ["resolve", "connect"]
    assert not steps[-1].ok
    assert "refused" in steps[-1].message.lower()


@pytest.mark.nightly(
    "four; what comes before a login is one code for all types, and what it says is what an opening says",
    when=lambda running: running not in {"kafka", "mysql-namespace", "redis-namespace", "webhook"},
)
def test_a_wrong_password_fails_the_login_and_is_not_told(probe: Probe) -> None:
    steps = steps_of(probe, probe.as_stranger())
    assert steps[-1].step == probe.strangers_fail_at
    assert not steps[-1].ok
    assert all(step.ok for step in steps[:-1])
    assert probe.held() == []


@pytest.mark.nightly(
    "three; what comes before a login is one code for all types, and what it says is what an opening says",
    when=lambda running: running not in {"kafka", "postgresql-namespace", "webhook"},
)
def test_a_wrong_certificate_fails_the_tls_and_the_right_one_is_a_step(
    probe: Probe, certificates: services.Certificates
) -> None:
    wrong = steps_of(probe, probe.by_tls(certificates.other_ca))
    assert names(wrong) == ["resolve", "connect", "tls"]
    assert not wrong[-1].ok
    assert "certificate" in wrong[-1].message
    right = steps_of(probe, probe.by_tls(certificates.ca))
    assert all(step.ok for step in right), right
    assert ("tls" in names(right)) == (not probe.tls_within_protocol)


def test_one_of_several_brokers_is_enough_and_the_other_is_told_of(redis_server: services.Redis) -> None:
    """Brokers need only take a connection here, so that any server will do for the reachable one."""
    closed = services.free_port()
    brokers = f"{services.LOOPBACK}:{closed},{services.LOOPBACK}:{redis_server.port}"
    settings = target_settings.load("kafka", {"brokers": brokers, "topic": "t", "timeout": "1s"})
    steps = list(run_target_test(settings, "kafka"))
    about_closed = [step for step in steps if str(closed) in step.message and "refused" in step.message.lower()]
    assert [(step.step, step.ok) for step in about_closed] == [("connect", True)]
    assert (steps[-1].step, steps[-1].ok) == ("login", False)  # Redis speaks no Kafka


def test_a_name_that_does_not_resolve_and_a_private_address_fail_the_resolving() -> None:
    redis = target_settings.load("redis", {"address": "no-such-host.invalid:1", "key": "k"})
    guarded = target_settings.load("webhook", {"endpoint": f"http://{services.LOOPBACK}:1/"})
    for settings, kind, words in ((redis, "redis", "not known"), (guarded, "webhook", "allow_private=on")):
        (step,) = run_target_test(settings, kind)
        assert (step.step, step.ok) == ("resolve", False)
        assert words in step.message


def test_a_driver_that_cannot_be_imported_is_a_step_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "workers.systems.webhook.target", None)
    webhook = target_settings.load("webhook", {"endpoint": f"http://{services.LOOPBACK}:1/hush-hush"})
    (step,) = run_target_test(webhook, "webhook")
    assert (step.step, step.ok, step.message) == ("login", False, "unexpected ModuleNotFoundError")


def test_the_command_tells_people_and_programs_and_its_exit_code_says_the_rest(tmp_path: Path) -> None:
    environment = os.environ | {"BUCKETWIRE_DATA_DIR": str(tmp_path / "var")}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [forking.command(), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    with services.redis(password=services.PASSWORD) as server:
        place = f"address={services.LOOPBACK}:{server.port}"
        assert run("migrate").returncode == 0
        assert run("target", "set", "redis:good", place, "key=k", f"password={services.PASSWORD}").returncode == 0
        assert run("target", "set", "redis:bad", place, "key=k", "password=wrong-s3cret").returncode == 0
        good, bad = run("target", "test", "redis:good"), run("target", "test", "redis:bad", "--json")
        none = run("target", "test", "redis:none")
        entries = json.loads(run("audit", "--action", "target.test", "--json").stdout)
        with server.client() as client:
            assert client.exists("k") == 0
    assert (good.returncode, bad.returncode, none.returncode) == (0, 1, 1), (good, bad, none)
    assert [line.split()[0] for line in good.stdout.splitlines()] == [
        "resolve", "connect", "login", "deliver", "remove", "redis:good",
    ]  # fmt: skip
    told = json.loads(bad.stdout)
    assert (told["target"], told["ok"], told["steps"][-1]["step"]) == ("redis:bad", False, "login")
    assert "there is no target redis:none" in none.stderr
    assert [(entry["resource"], entry["via"]) for entry in entries] == [
        ("target:redis:bad", "bucketwire target test"),
        ("target:redis:good", "bucketwire target test"),
    ]
    assert all(entry["actor"].startswith("user:") for entry in entries)
    for each in (good, bad, none):
        assert "wrong-s3cret" not in each.stdout + each.stderr
        assert "Traceback" not in each.stderr
