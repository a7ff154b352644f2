"""What a person is told when a command cannot do what it was asked to: one sentence, never a stack trace."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from app.cli import COMMANDS
from app.cli.commands import processes
from app.config.settings import Settings
from app.server.application import create_app
from tests import services
from tests.integration.cli.conftest import Cli
from tests.support.service_processes import BUCKETWIRE

# These become another program, which in this process would be the end of the tests.
JOBS = {"backfill", "scan", "tables"}


def test_a_service_that_was_never_set_up_says_how_to(bare: Cli, folder: Path) -> None:
    refused = bare("status")
    assert refused.code == 1
    assert refused.err == (
        f"bucketwire: there is no outbox yet at {folder}/bucketwire.db; create it: "
        "`bucketwire up` or `bucketwire migrate`\n"
    )
    assert not folder.exists()


def test_migrating_twice_is_fine_and_back_to_nothing_is_possible(bare: Cli) -> None:
    assert bare("migrate").code == 0
    revision = bare("migrate", "--json").json["revision"]
    assert revision
    assert bare("migrate", "--down", "base", "--json").json == {"revision": None}
    assert "has no tables yet" in bare("status").err
    assert bare("migrate").code == 0


def test_secrets_are_not_sealed_again_while_a_key_is_missing(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Fernet.generate_key().decode() for _ in range(2))
    assert bare("migrate").code == 0
    for name, key in (("one", first), ("two", second)):
        monkeypatch.setenv("BUCKETWIRE_SECRET_KEYS", key)
        made = bare("target", "set", f"webhook:{name}", "endpoint=https://example.com/", f"auth_token=hush-{name}")
        assert made.code == 0, made.err
    login = ("sasl=on", "sasl_username=u", "sasl_password=hush-source")
    made = bare("source", "set", "kafka:minio", "brokers=127.0.0.1:9", "topic=events", *login)
    assert made.code == 0, made.err
    refused = bare("config", "reseal")
    assert refused.code == 1
    assert "webhook:one: " in refused.err
    for name in ("endpoint", "auth_token"):
        assert f"{name}: *redacted* was sealed with a key that is not among" in refused.err
    monkeypatch.setenv("BUCKETWIRE_SECRET_KEYS", f"{second},{first}")
    assert bare("config", "reseal", "--json").json == {"targets": 2, "sources": 1, "buckets": 0}
    assert bare("config", "reseal").out == "encrypted the secrets of 2 targets, 1 source and 0 buckets again\n"
    monkeypatch.setenv("BUCKETWIRE_SECRET_KEYS", second)
    assert "hush-one" in bare("config", "export", "--secrets").out


def test_a_broker_that_deletes_or_refuses_at_its_memory_limit_is_a_problem(
    bare: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services.redis(extra=("--maxmemory-policy", "allkeys-lru")) as broker, broker.client() as client:
        monkeypatch.setenv("BUCKETWIRE_BROKER_URL", broker.url)
        problems = {each["subject"]: each["text"] for each in found(bare) if each["grade"] == "problem"}
        assert "broker" not in problems
        assert "maxmemory-policy is allkeys-lru" in problems["eviction"]
        assert "set it to noeviction" in problems["eviction"]
        client.config_set("maxmemory-policy", "noeviction")
        assert "eviction" not in {each["subject"] for each in found(bare)}
        client.config_set("maxmemory", 1)
        problems = {each["subject"]: each["text"] for each in found(bare) if each["grade"] == "problem"}
        assert "cannot be used: command not allowed when used memory > 'maxmemory'" in problems["broker"]
        assert "drain" not in problems, "it only follows"
        client.config_set("maxmemory", 0)
        client.execute_command("ACL", "SETUSER", "default", "-info")
        assert "eviction" not in {each["subject"] for each in found(bare)}
        assert client.keys() == []


def found(bare: Cli) -> list[dict[str, str]]:
    """What the doctor finds."""
    findings: list[dict[str, str]] = bare("doctor", "--json").json["findings"]
    return findings


def test_a_database_that_is_away_is_named_without_its_password(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    port = services.free_port()
    monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", f"postgresql://me:hush-hush@127.0.0.1:{port}/x")
    refused = bare("status")
    assert refused.code == 1
    assert refused.err.startswith("bucketwire: the outbox database is unavailable: ")
    assert len(refused.err.splitlines()) == 1
    assert "hush-hush" not in refused.err
    doctor = bare("doctor")
    assert doctor.code == 1
    assert "hush-hush" not in doctor.out


def test_every_bad_setting_is_named(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUCKETWIRE_DATABSE_URL", "sqlite:////x")
    monkeypatch.setenv("BUCKETWIRE_RETENTION", "soon")
    for command in ("status", "up", "api", "worker", "beat", "flower"):
        refused = bare(command)
        assert refused.code == 1
        assert "did you mean BUCKETWIRE_DATABASE_URL?" in refused.err
        assert "BUCKETWIRE_RETENTION: “soon” is not a duration" in refused.err


def test_wrong_usage_has_an_exit_code_of_its_own(bare: Cli) -> None:
    for words in (["nosuch"], ["status", "--nosuch"], ["worker", "--only", "some"], ["event", "history", "bucket"]):
        assert bare(*words).code == 2
    assert "'webhok' is neither a target type" in bare("worker", "--targets", "webhok").err
    assert bare("worker", "--only", "drain", "--targets", "redis").code == 2
    assert bare("flower", "--listen", "5555").code == 2


def test_a_worker_has_the_name_that_it_is_given(bare: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[list[str]]()
    monkeypatch.setattr(processes, "exec_process", lambda argv, _environment: started.append(argv))
    assert bare("worker", "--targets", "webhook", "--name", "webhooks-2").code == 0
    assert started[0][started[0].index("--hostname") + 1] == "webhooks-2@%h"
    for name in ("two@hosts", "a%b", "", "-x"):
        assert "is not up to 64 letters" in bare("worker", "--name", name).err


def test_flower_is_not_opened_to_the_network_without_a_password(bare: Cli) -> None:
    refused = bare("flower", "--listen", "0.0.0.0:5555")
    assert refused.code == 1
    assert "FLOWER_BASIC_AUTH" in refused.err


def test_where_an_error_came_from_is_shown_to_those_who_ask(bare: Cli, folder: Path) -> None:
    environment = {"BUCKETWIRE_DATA_DIR": str(folder), "BUCKETWIRE_DEBUG": "1"}
    asked = subprocess.run([BUCKETWIRE, "status"], env=environment, capture_output=True, text=True, check=False)
    assert "Traceback" in asked.stderr


def test_a_reader_that_has_enough_ends_the_command_quietly(cli: Cli, folder: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {BUCKETWIRE} --help | true"],
        env={"BUCKETWIRE_DATA_DIR": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""


def test_a_new_epoch_is_in_the_audit_log(bare: Cli) -> None:
    assert bare("migrate").code == 0
    assert "a new epoch of the event log has begun" in bare("new-epoch").out
    assert '"log.new_epoch"' in bare("audit", "--json").out


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - JOBS))
def test_every_command_explains_itself(bare: Cli, command: str) -> None:
    shown = bare(command, "--help")
    assert shown.code == 0
    assert shown.out.startswith(f"Usage: bucketwire {command}")
    sentence = " ".join(shown.out.split("\n\n")[1].split())
    assert sentence.endswith("."), sentence


@pytest.mark.nightly(
    "one command: all become another program by one code",
    when=lambda command: command in {"reconcile run", "scan", "tables"},
)
@pytest.mark.parametrize("command", [*sorted(JOBS), "reconcile run"])
def test_a_command_that_becomes_another_program_is_explained_by_that_one(command: str) -> None:
    shown = subprocess.run([BUCKETWIRE, *command.split(), "--help"], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith(f"Usage: bucketwire {command} [OPTIONS]")


def test_what_is_not_utf_8_is_refused_by_the_name_of_its_argument(cli: Cli, tmp_path: Path) -> None:
    assert cli("target", "set", "webhook:audit", "endpoint=http://127.0.0.1:9/").code == 0
    for argument, words in {
        "KEY=VALUE": ("target", "set", "webhook:audit", "comment=\udcff"),
        "--reason": ("target", "pause", "webhook:audit", "--reason", "\udcff"),
        "--prefix": ("rule", "add", "b", "webhook:audit", "--event", "*", "--prefix", "\udcff"),
        "--metadata": ("rule", "add", "b", "webhook:audit", "--event", "*", "--metadata", "a=\udcff"),
        "--bucket": ("dead-letter", "ls", "--bucket", "\udcff"),
        "KEY": ("event", "history", "b", "\udcff"),
        "NAME": ("token", "revoke", "\udcff"),
        "RUN": ("reconcile", "cancel", "\udcff"),
    }.items():
        refused = cli(*words)
        assert (refused.code, "is not text; write it as UTF-8" in refused.err) == (2, True), words
        assert argument in refused.err
    lines, declaration = tmp_path / "lines", tmp_path / "declaration.yaml"
    lines.write_bytes(b"notify_webhook:audit comment=\xff")
    declaration.write_text('targets: {"webhook:audit": {endpoint: "http://127.0.0.1:9/", comment: "\\ud800"}}')
    for refused in (cli("config", "set", "--file", str(lines)), cli("apply", "-f", str(declaration))):
        assert refused.code == 1
        assert "UTF-8" in refused.err
        assert "this is a bug" not in refused.err


def test_a_secret_that_was_sealed_with_a_lost_key_can_be_set_again(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, first = "webhook:audit", "endpoint=https://example.com/first"
    assert cli("target", "set", target, first, "auth_token=hush", "comment=kept").code == 0
    monkeypatch.setenv("BUCKETWIRE_SECRET_KEYS", Fernet.generate_key().decode())
    for words in (("comment=other",), ("endpoint=https://example.com/second",)):  # what is left out cannot be kept
        refused = cli("target", "set", target, *words)
        assert (refused.code, "set this secret again" in refused.err) == (1, True), words
    assert cli("target", "set", target, "endpoint=https://example.com/second", "auth_token=").code == 0
    line = "notify_webhook:audit enable=on endpoint=https://example.com/second comment=kept\n"
    assert cli("config", "export", "--secrets").out == line
    monkeypatch.setenv("BUCKETWIRE_SECRET_KEYS", Fernet.generate_key().decode())
    settings = Settings.from_environ(os.environ | {"BUCKETWIRE_DATA_DIR": str(folder)})
    client = create_app(settings).test_client()
    kept = {"endpoint": "https://example.com/*redacted*", "comment": "kept"}
    assert client.put("/v1/targets/webhook/audit", json=kept).status_code == 400
    given = client.put("/v1/targets/webhook/audit", json={"endpoint": "https://example.com/third"})
    assert given.get_json()["settings"] == {"endpoint": "https://example.com/*redacted*"}
