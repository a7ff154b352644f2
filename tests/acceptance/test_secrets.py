"""Secrets planted in every place that a target has for one, and looked for in all that the service says at DEBUG."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
import redis as redis_py

from app.config.declared_types import SOURCE_TYPES, TYPES
from app.config.fields.fields import fields_of
from tests import services
from tests.services import until
from tests.services.forking import fork
from tests.support.builders import event
from tests.support.flower import Flower
from tests.support.service_processes import Role, System, start_all, stop_all, system

CLOSED = f"{services.LOOPBACK}:{services.free_port()}"


@dataclass
class Planted:
    """Secrets, each another, and where each was put."""

    where: dict[str, str] = field(default_factory=dict)

    def new(self, place: str) -> str:
        """A secret for one place."""
        made = f"mk{secrets.token_hex(10)}"
        self.where[made] = place
        return made

    def signing(self, place: str) -> str:
        """One in the form of Standard Webhooks."""
        made = f"whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"
        self.where[made.removeprefix("whsec_")] = place
        return made

    def found(self, said: str) -> list[str]:
        """The places whose secrets are in a text: as they are, as a URL or a basic login would hold them."""
        lost = []
        for secret, place in self.where.items():
            forms = {secret, quote(secret, safe=""), base64.b64encode(f"me:{secret}".encode()).decode()}
            if any(form in said for form in forms):
                lost.append(place)
        return lost


@dataclass
class Remotes:
    """Servers that let nobody in who has not the password, and receivers that repeat what they were told."""

    redis: services.Redis
    postgres: services.Postgres
    nats: services.Nats
    mosquitto: services.Mosquitto
    refusing: services.Receiver
    taking: services.Receiver


@pytest.fixture(scope="module")
def remotes(postgres_server: services.Postgres) -> Iterator[Remotes]:
    with contextlib.ExitStack() as stack:
        start = stack.enter_context
        yield Remotes(
            start(services.redis(password=services.PASSWORD)),
            postgres_server,
            start(services.nats()),
            start(services.mosquitto()),
            start(services.receiver()),
            start(services.receiver()),
        )


def bad_targets(remotes: Remotes, planted: Planted) -> dict[str, dict[str, str]]:
    """Targets of which none can be delivered to, with a secret in every setting that can hold one."""
    new, here = planted.new, services.LOOPBACK
    refusing = f"{here}:{remotes.refusing.port}"
    postgres = f"host={here} port={remotes.postgres.port} dbname=postgres user={services.USER}"
    return {
        "amqp:url": {"url": f"amqp://me:{new('amqp url')}@{CLOSED}/", "routing_key": "q"},
        "amqp:key": {"url": f"amqp://me@{CLOSED}/", "routing_key": "q", "password": new("amqp password")},
        "elasticsearch:url": {"url": f"http://me:{new('elasticsearch url')}@{refusing}", "index": "i"},
        "elasticsearch:login": {
            "url": f"http://{refusing}/elsewhere", "index": "i", "username": "me",
            "password": new("elasticsearch password"),
        },
        "elasticsearch:api": {"url": f"http://{refusing}", "index": "i", "api_key": new("elasticsearch api_key")},
        "kafka:sasl": {
            "brokers": CLOSED, "topic": "t", "sasl": "on", "sasl_username": "me",
            "sasl_password": new("kafka sasl_password"),
        },
        "mqtt:url": {"broker": f"tcp://me:{new('mqtt broker')}@{here}:{remotes.mosquitto.port}", "topic": "t"},
        "mqtt:key": {
            "broker": f"tcp://{here}:{remotes.mosquitto.port}", "topic": "t", "username": "me",
            "password": new("mqtt password"),
        },
        "mysql:dsn": {"dsn_string": f"me:{new('mysql dsn_string')}@tcp({CLOSED})/db", "table": "t"},
        "mysql:parts": {
            "host": here, "port": CLOSED.partition(":")[2], "username": "me", "password": new("mysql password"),
            "database": "db", "table": "t",
        },
        "nats:login": {
            "address": f"{here}:{remotes.nats.port}", "subject": "s", "username": "me",
            "password": new("nats password"),
        },
        "nats:token": {"address": f"{here}:{remotes.nats.port}", "subject": "s", "token": new("nats token")},
        "postgresql:text": {
            "connection_string": f"{postgres} password={new('postgresql connection_string')}", "table": "t",
        },
        "postgresql:url": {
            "connection_string": f"postgresql://me:{new('postgresql url')}@{here}:{remotes.postgres.port}/postgres",
            "table": "t",
        },
        "postgresql:parts": {"connection_string": postgres, "password": new("postgresql password"), "table": "t"},
        "redis:login": {
            "address": f"{here}:{remotes.redis.port}", "key": "k", "user": "me", "password": new("redis password"),
        },
        "redis:sentinel": {
            "address": CLOSED, "key": "k", "sentinel": "mymaster", "sentinel_user": "me",
            "sentinel_password": new("redis sentinel_password"),
        },
        "sqs:login": {
            "queue_url": f"http://{refusing}/0/q", "access_key": "me", "secret_key": new("sqs secret_key"),
            "session_token": new("sqs session_token"),
        },
        "webhook:refused": {
            "endpoint": (
                f"http://me:{new('webhook endpoint')}@{refusing}/in/{new('webhook path')}"
                f"?token={new('webhook query')}&k={new('another webhook query')}"
            ),
            "auth_token": new("webhook auth_token"), "signing_secret": planted.signing("webhook signing_secret"),
            "headers": f"X-Key: Token {new('webhook header')}; X-Other: {new('another webhook header')}",
        },
        "webhook:closed": {
            "endpoint": f"http://me:{new('webhook closed')}@{CLOSED}/in?api_key={new('webhook closed query')}",
            "auth_token": f"Splunk {new('webhook closed auth_token')}",
            "headers": f"X-Tenant: {new('webhook closed header')}",
        },
    }  # fmt: skip


def good_targets(remotes: Remotes, planted: Planted) -> dict[str, dict[str, str]]:
    """Targets that work, with the secrets by which they do."""
    return {
        "redis:good": {
            "address": f"{services.LOOPBACK}:{remotes.redis.port}", "key": "good", "password": services.PASSWORD,
        },
        "postgresql:good": {"connection_string": remotes.postgres.dsn(), "table": f"good_{uuid4().hex[:8]}"},
        "nats:good": {
            "address": f"{services.LOOPBACK}:{remotes.nats.port}", "subject": "s", "username": services.USER,
            "password": services.PASSWORD,
        },
        "webhook:good": {
            "endpoint": f"http://{services.LOOPBACK}:{remotes.taking.port}/in?token={planted.new('good query')}",
            "auth_token": planted.new("good auth_token"), "signing_secret": planted.signing("good signing_secret"),
        },
    }  # fmt: skip


def bad_sources(remotes: Remotes, planted: Planted) -> dict[str, dict[str, str]]:
    """Sources of which none can be pulled from, with a secret in every setting that can hold one."""
    new, here = planted.new, services.LOOPBACK
    nats, redis = f"{here}:{remotes.nats.port}", f"{here}:{remotes.redis.port}"
    return {
        "amqp:url": {"url": f"amqp://me:{new('source amqp url')}@{CLOSED}/", "queue": "q"},
        "amqp:key": {"url": f"amqp://me@{CLOSED}/", "queue": "q", "password": new("source amqp password")},
        "jetstream:login": {
            "address": nats, "stream": "S", "subject": "s", "username": "me",
            "password": new("source jetstream password"),
        },
        "jetstream:token": {"address": nats, "stream": "S", "subject": "s", "token": new("source jetstream token")},
        "kafka:sasl": {
            "brokers": CLOSED, "topic": "t", "sasl": "on", "sasl_username": "me",
            "sasl_password": new("source kafka sasl_password"),
        },
        "redis:login": {"address": redis, "key": "k", "user": "me", "password": new("source redis password")},
        "redis:sentinel": {
            "address": CLOSED, "key": "k", "sentinel": "mymaster", "sentinel_user": "me",
            "sentinel_password": new("source redis sentinel_password"),
        },
        "bucket:login": {
            "endpoint": f"http://{here}:{remotes.refusing.port}", "bucket": "images", "access_key": "me",
            "secret_key": new("source bucket secret_key"), "session_token": new("source bucket session_token"),
        },
        "sqs:login": {
            "queue_url": f"http://{here}:{remotes.refusing.port}/0/q", "access_key": "me",
            "secret_key": new("source sqs secret_key"), "session_token": new("source sqs session_token"),
        },
    }  # fmt: skip


class Listening(threading.Thread):
    """Every command that a Redis is given, from now on until `close`."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._client = redis_py.Redis.from_url(url)
        self._monitor = self._client.monitor()
        self._monitor.__enter__()
        self.heard: list[str] = []
        self.start()

    def run(self) -> None:
        with contextlib.suppress(redis_py.RedisError, OSError, ValueError, AttributeError):
            while True:
                self.heard.append(str(self._monitor.next_command()["command"]))

    def close(self) -> None:
        """Stop listening."""
        self._monitor.connection.disconnect()
        self._client.close()
        self.join(10)


@pytest.fixture
def whole(postgres_server: services.Postgres) -> Iterator[tuple[System, services.Redis, Planted]]:
    planted = Planted()
    password = planted.new("the broker's password")
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    with services.redis(password=password) as broker, system(url, broker.url, start=False, concurrency=1) as whole:
        token = planted.new("the API's token")
        for role in whole.roles:
            environment = {**role.settings, "BUCKETWIRE_API_TOKENS": f"env:admin:{token}"}
            role.settings = environment | {"GUNICORN_CMD_ARGS": "--log-level debug"}
            if role.arguments[0] in ("worker", "beat"):
                role.arguments = [*role.arguments, "--log-level", "DEBUG"]
        whole.settings = environment
        whole.token = token
        start_all(whole.roles)
        yield whole, broker, planted


def commands(whole: System) -> str:
    """What the CLI says of everything, output and errors."""
    lines = [
        ["target", "ls"], ["config", "get"], ["status"], ["doctor"], ["doctor", "--json"],
        ["dead-letter", "ls"],
        *(["target", "test", name] for name in ("webhook:refused", "postgresql:url", "elasticsearch:login")),
        ["source", "ls"], ["config", "export"],
        *(["source", verb, name] for name in ("redis:login", "bucket:login", "sqs:login") for verb in ("show", "test")),
        ["target", "set", "redis:new", "address=h", "key=k", "user=me", f"passwort={whole.token}"],
    ]  # fmt: skip
    folder, said = services.new_folder("commands"), []
    for number, line in enumerate(lines):
        log = folder / f"{number}.log"
        fork(["app.cli", *line], log, env=whole.settings).wait(60)
        said.append(log.read_text())
        assert said[-1], line
        assert "Traceback" not in said[-1], line
    return "\n".join(said)


def answers(whole: System, flower: Flower) -> str:
    """What the API and Flower say of everything."""
    with whole.client() as client:
        said = [
            client.get(path).text
            for path in ("/v1/targets", "/v1/sources", "/v1/doctor", "/v1/rules", "/v1/dead-letters", "/v1/replays",
                         "/metrics", "/readyz", "/openapi.json", "/v1/events?bucket=images&key=a.txt")
        ]  # fmt: skip
    tasks = flower.ask("/api/tasks")
    pages = ["/api/workers", "/api/tasks", "/api/queues/length", "/", "/broker", "/tasks"]
    pages += [f"/worker/{name}" for name in flower.ask("/api/workers")] + [f"/task/{each}" for each in list(tasks)[:20]]
    with httpx.Client(base_url=flower.url, timeout=10, trust_env=False) as client:
        said += [client.get(page).text for page in pages]
    return "\n".join(said)


@pytest.mark.parametrize(("bad", "types"), [(bad_targets, TYPES), (bad_sources, SOURCE_TYPES)])
def test_every_setting_that_is_a_secret_is_planted(
    bad: Callable[[Remotes, Planted], dict[str, dict[str, str]]], types: Mapping[str, type], remotes: Remotes
) -> None:
    given: dict[str, set[str]] = {}
    for name, values in bad(remotes, Planted()).items():
        given.setdefault(name.partition(":")[0], set()).update(values)
    for type_name, cls in types.items():
        wanted = {key.name for key in fields_of(cls).values() if key.secret or key.kind.holds_secrets}
        assert wanted <= given.get(type_name, set()), type_name


def test_a_secret_is_in_no_log_error_task_answer_figure_or_page(
    whole: tuple[System, services.Redis, Planted], remotes: Remotes
) -> None:
    running, broker, planted = whole
    bad, good = bad_targets(remotes, planted), good_targets(remotes, planted)
    for each in list(bad.values()):
        each["timeout"] = "1s"

    # Remotes that repeat in their refusal all that they could have been told.
    def told(name: str) -> str:
        values = str(bad[name])
        return " ".join(secret for secret in planted.where if secret in values)

    refusals = {"type": "security_exception", "reason": f"ES says no, not with {told('elasticsearch:login')}"}
    remotes.refusing.set(
        services.Answer(status=422, body=f"the hook says no, not with {told('webhook:refused')}", method="POST"),
        services.Answer(status=401, body=json.dumps({"error": refusals, "status": 401}), path="/elsewhere/"),
        services.Answer(status=401),
    )
    listening = Listening(broker.url)
    said: list[Any] = []
    with running.client() as client:
        for name, values in (bad | good).items():
            running.add_target(name, **values)
            wrong = client.put(f"/v1/targets/{name.replace(':', '/')}", json=values | {"timeout": "never"})
            assert wrong.status_code == 400
            said.append(wrong.text)
        guessed = {"Authorization": f"Bearer {planted.new('a guessed token')}"}
        refused = client.post("/v1/events", content=b"{}", headers=guessed)
        assert refused.status_code == 401
        said.append(refused.text)
        pulled = bad_sources(remotes, planted)
        for name, values in pulled.items():
            running.ask("PUT", f"/v1/sources/{name.replace(':', '/')}", json=values | {"timeout": "1s"})
    puller = Role(["worker", "--only", "sources", "--log-level", "DEBUG"], running.settings, " ready.")
    with puller.start(), Flower(settings=running.settings).start() as flower:
        running.post(event("a.txt").record.encode())
        until(lambda: running.settled(*good), 30, what="the deliveries of those that work")

        def tried() -> bool:
            shown = running.ask("GET", "/v1/targets").json()["targets"]
            waiting = [each for each in shown if f"{each['type']}:{each['name']}" in bad]
            return all(each["reason"] or each["events"]["parked"] or each["events"]["dead"] for each in waiting)

        until(tried, 40, what="a try of each that does not work")

        def pulled_from() -> bool:
            return all(each["reason"] for each in running.ask("GET", "/v1/sources").json()["sources"])

        until(pulled_from, 40, what="a try of each source")
        said.append(answers(running, flower))
        # Each that does not work is tried again and again, which would take most of the processor from the commands.
        stop_all([puller, running.drain, *running.workers])
        said += [commands(running), flower.log.read_text(errors="replace")]
        running_logs = running.logs() + puller.said()
    listening.close()
    assert running_logs.count("DEBUG") > 100
    for name in bad:
        kind, _, own = name.partition(":")
        assert f"arn:minio:sqs::{own}:{kind}" in running_logs, "this one was not tried"
    for words in ("the hook says no, not with *redacted*", "ES says no, not with *redacted*"):
        assert words in "".join(said), "no refusal was told"
    assert any("deliver" in command for command in listening.heard)
    planted.where[services.PASSWORD] = "the databases' and the good targets' password"
    for place, text in (
        ("logs", running_logs), ("answers", "\n".join(said)), ("the broker", "\n".join(listening.heard)),
    ):  # fmt: skip
        assert planted.found(text) == [], place
    with running.database.reading() as connection:
        kept = str(connection.exec_driver_sql("SELECT settings, reason, problem FROM targets").all())
        kept += str(connection.exec_driver_sql("SELECT history FROM parked").all())
        kept += str(connection.exec_driver_sql("SELECT settings, reason FROM sources").all())
    assert planted.found(kept) == []
