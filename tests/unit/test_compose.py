"""The production shape is well formed: compose file, Procfile and image agree with the CLI and with each other."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.config.declared_types import TYPES
from app.config.settings import Settings
from app.config.target_settings import load
from tests import provision
from tests.images import compose
from tests.images.engine import STAND_INS
from tests.support.procfile import PROCESSES, ROOT, parses

COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
TARGETS = {name: service for name, service in SERVICES.items() if name.startswith("target-")}
OWN = {name: service for name, service in SERVICES.items() if service["image"].startswith("bucketwire")}


@pytest.mark.parametrize("name", OWN)
def test_each_part_runs_a_command_that_there_is(name: str) -> None:
    assert parses(OWN[name]["command"])


@pytest.mark.parametrize("name", PROCESSES)
def test_each_line_of_the_procfile_runs_a_command_that_there_is(name: str) -> None:
    program, *words = shlex.split(PROCESSES[name])
    assert program == "bucketwire"
    assert parses(words)


def test_the_procfile_has_every_part_and_serves_every_type_of_target() -> None:
    assert {"release", "web", "beat", "drain", "sources", "flower"} <= PROCESSES.keys()
    pools = [line for line in PROCESSES.values() if "--only targets" in line]
    limits = [re.search(r"--targets (\S+)", line) for line in pools]
    served = {word for limit in limits if limit for word in limit[1].split(",")}
    assert None in limits or served == set(TYPES), "a type of target without a pool has its events wait for ever"


def test_the_compose_file_has_every_part() -> None:
    assert set(OWN) == {"migrate", "api", "beat", "drain", "workers", "sources", "spark", "flower"}
    assert set(SERVICES) - set(OWN) - set(TARGETS) == {"database", "rabbitmq", "redis"}


def test_the_broker_is_chosen_by_a_profile_so_are_sources_and_spark_and_all_else_always_runs() -> None:
    assert {name: service.get("profiles") for name, service in SERVICES.items() if service.get("profiles")} == {
        "rabbitmq": ["rabbitmq"],
        "redis": ["redis"],
        "sources": ["sources"],
        "spark": ["spark"],
        **{name: [name] for name in TARGETS},
    }
    for name in OWN.keys() - {"migrate"}:
        needs = OWN[name]["depends_on"]
        assert needs["migrate"]["condition"] == "service_completed_successfully"
        assert {broker for broker, need in needs.items() if need.get("required") is False} == {"rabbitmq", "redis"}


def test_whatever_others_wait_for_can_say_that_it_is_healthy() -> None:
    for service in SERVICES.values():
        for other, need in service.get("depends_on", {}).items():
            if need["condition"] == "service_healthy":
                assert SERVICES[other]["healthcheck"]["test"], other
    assert all(OWN[name]["healthcheck"]["test"] for name in OWN.keys() - {"migrate"})


def test_workers_and_beat_are_probed_where_they_answer() -> None:
    for name in OWN.keys() - {"migrate", "api", "flower"}:
        listen = OWN[name]["environment"]["BUCKETWIRE_PROBE_LISTEN"]
        assert f"http://{listen}/readyz" in OWN[name]["healthcheck"]["test"][-1], name


def test_the_environment_of_every_part_is_one_that_it_accepts() -> None:
    filled = {
        "BUCKETWIRE_DATABASE_URL": "postgresql://bucketwire:x@database/bucketwire",
        "BUCKETWIRE_BROKER_URL": "amqp://bucketwire:x@rabbitmq:5672//",
        "BUCKETWIRE_SECRET_KEYS": "u9Qe0xkqDqk0yXH3p2o0hQ0XcX1m8o6v6fJm1pWcQ2A=",
        "BUCKETWIRE_API_TOKENS": f"minio:ingest:{'x' * 32}",
    }
    for name, service in OWN.items():
        environment = {variable: filled.get(variable, text) for variable, text in service["environment"].items()}
        settings = Settings.from_environ(environment)
        assert not settings.embedded_database, name
        assert not settings.embedded_broker, name
        assert settings.secret_keys, f"{name} would seal with a key that the other parts do not have"
    assert str(Settings.from_environ(environment | {"BUCKETWIRE_LISTEN": "0.0.0.0:8730"}).listen) == "0.0.0.0:8730"
    assert OWN["api"]["ports"] == ["8730:8730"]


def test_every_part_gets_minios_variables() -> None:
    for name, service in OWN.items():
        assert service.get("env_file") == [{"path": "minio.env", "required": False}], name


def test_no_secret_stands_in_the_file_and_every_one_is_asked_for() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    asked = set(re.findall(r"\$\{(\w+)", text))
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if "=" in line and not line.startswith("#")
    )
    assert asked <= set(example)
    assert {name for name, value in example.items() if not value} == {
        "RABBITMQ_PASSWORD",
        "POSTGRES_PASSWORD",
        "BUCKETWIRE_SECRET_KEYS",
        "BUCKETWIRE_API_TOKENS",
        "TARGET_PASSWORD",
        "FLOWER_BASIC_AUTH",
        "AWS_ENDPOINT_URL_S3",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "BUCKETWIRE_SPARK_TOKEN",
        "COMMIT",
    }


def version(command: list[str]) -> str:
    said = subprocess.run(command, capture_output=True, text=True, check=command[0] != "mosquitto").stdout
    found = re.search(r"(\d+\.\d+)", said)
    assert found, said
    return found[1]


def of_the_matrix(server: str) -> str:
    """The version of a server that `make matrix` ran last, by its page."""
    page = (ROOT / "docs/reference/support-matrix.md").read_text()
    found = re.search(rf"^\| {server} \| (\d+\.\d+)\.\d+ \|", page, re.MULTILINE)
    assert found, server
    return found[1]


def test_the_servers_are_of_the_versions_that_the_tests_run_on() -> None:
    images = {name: SERVICES[name]["image"].split(":")[1] for name in ("database", "redis", "rabbitmq")}
    if reason := provision.missing("postgres"):
        pytest.skip(reason)
    [postgres] = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    assert images["database"] == version([str(postgres), "--version"]).split(".")[0]
    assert images["redis"] == of_the_matrix("Valkey")
    assert images["rabbitmq"] == of_the_matrix("RabbitMQ")


def test_each_type_of_target_has_a_server_of_the_version_that_the_tests_run_on() -> None:
    """But the webhook, whose server is the user's."""
    versions = {name.removeprefix("target-"): service["image"].rpartition(":")[2] for name, service in TARGETS.items()}
    installed = {
        "amqp": SERVICES["rabbitmq"]["image"].rpartition(":")[2],
        "postgresql": SERVICES["database"]["image"].rpartition(":")[2],
        "redis": SERVICES["redis"]["image"].rpartition(":")[2],
        "elasticsearch": provision.ELASTICSEARCH_VERSION,
        "kafka": provision.KAFKA_VERSION,
        "mysql": of_the_matrix("MySQL"),
        "mqtt": of_the_matrix("Mosquitto"),
        "nats": of_the_matrix("NATS core, JetStream"),
        "nats-streaming": provision.STAN_VERSION.removeprefix("v"),
        "nsq": provision.NSQ_VERSION,
        "sqs": provision.ELASTICMQ_VERSION,
    }
    assert {name: versions[name] for name in installed} == installed
    assert set(versions) == set(TYPES) - {"webhook"} | {"mariadb", "nats-streaming"}
    if reason := provision.missing("mariadb"):
        pytest.skip(reason)
    assert versions["mariadb"] == version(["mariadbd", "--version"])


def test_only_the_service_reaches_the_servers_of_targets_and_each_has_the_command_that_sets_it() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    told = {
        name: words for words, name in re.findall(r"^  # bucketwire target set (.+)\n  (\S+):$", text, re.MULTILINE)
    }
    assert told.keys() == TARGETS.keys()
    for name, words in told.items():
        assert "ports" not in TARGETS[name]
        target, *texts = shlex.split(words)
        values = dict(text.split("=", 1) for text in texts)
        load(target.partition(":")[0], values)
        assert f"{name}:" in words or f"@{name}/" in words, "it goes to its own server"
        asks = "TARGET_PASSWORD" in str(TARGETS[name])
        assert asks == ("PASSWORD" in words), name


def test_what_runs_the_whole_file_has_its_servers_and_the_commands_of_the_page() -> None:
    """`make image-test`, which runs by hand."""
    stages = re.findall(r"^FROM base AS (\S+)$", (STAND_INS / "Dockerfile").read_text(), re.MULTILINE)
    assert stages == list(compose.SERVERS)
    assert SERVICES[compose.TARGET]["image"] in compose.SERVERS.values()
    assert [words[1:3] for words in compose.commands("secret")] == [["target", "set"], ["rule", "add"]]


def test_the_image_runs_as_a_user_of_its_own_and_has_what_is_imported() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    # A name would not tell Kubernetes that it is not root.
    assert lines.count("USER 10001:10001") == len({service["image"] for service in OWN.values()})
    assert 'ENTRYPOINT ["tini", "--", "bucketwire"]' in lines, "SIGTERM never reaches a process 1 without a handler"
    stages = [line.split()[-1] for line in lines if line.startswith("FROM ")]
    assert OWN["spark"]["build"]["target"] in stages
    assert stages[-1] == "base", "what is built where no stage is named is the service"
    copied = {line.split()[1] for line in lines if line.startswith("COPY ") and "--from" not in line}
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "bench"}
    assert packages <= copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {f"!{name}" for name in packages} <= set(ignored)
