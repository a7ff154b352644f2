"""The parts of the service as processes of their own, on a real Redis: who takes which work."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import httpx
import pytest
import redis
import sqlalchemy as sa

from app.broker import SERVICE_QUEUE, Broker, queue_name
from app.config.settings import KEY_PREFIX
from app.outbox import tables
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.append import Log
from app.outbox.processes import Process, read_processes
from tests import services
from tests.services import until
from tests.support.builders import add_target, event, migrated
from tests.support.service_processes import BUCKETWIRE, Api, Role

HERE = f"http://{services.LOOPBACK}"


@pytest.fixture
def broker() -> Iterator[services.Redis]:
    """A broker of its own."""
    with services.redis() as server:
        yield server


@pytest.fixture
def settings(tmp_path: Path, broker: services.Redis) -> Mapping[str, str]:
    """Settings of a service with an outbox and a broker of its own."""
    return {
        "BUCKETWIRE_DATA_DIR": str(tmp_path / "var"),
        "BUCKETWIRE_DATABASE_URL": f"sqlite:///{tmp_path}/outbox.db",
        "BUCKETWIRE_BROKER_URL": f"redis://{services.LOOPBACK}:{broker.port}/0",
        "BUCKETWIRE_SECRET_KEYS": "u9Qe0xkqDqk0yXH3p2o0hQ0XcX1m8o6v6fJm1pWcQ2A=",
    }


@pytest.fixture
def database(settings: Mapping[str, str]) -> Iterator[Database]:
    opened = migrated(settings["BUCKETWIRE_DATABASE_URL"])
    yield opened
    opened.close()


@contextmanager
def running(settings: Mapping[str, str], *commands: str) -> Iterator[list[Role]]:
    """These parts of the service, until the end of the block."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Role(
                    arguments=command.split(),
                    settings=settings,
                    ready="beat: Starting" if command == "beat" else " ready.",
                )
            ).start()
            for command in commands
        ]


def heartbeats(database: Database) -> int:
    """When the drain last said that it runs."""
    with database.reading() as connection:
        return int(connection.execute(sa.select(sa.func.coalesce(sa.func.max(tables.heartbeats.c.at), 0))).scalar_one())


def waiting(settings: Mapping[str, str], queue: str) -> int:
    """How many messages a queue holds."""
    with redis.Redis.from_url(settings["BUCKETWIRE_BROKER_URL"]) as client:
        return int(client.llen(KEY_PREFIX + queue))


def test_the_drain_and_the_targets_have_workers_that_keep_to_their_own_work(
    settings: Mapping[str, str], database: Database, receiver: services.Receiver
) -> None:
    add_target(database, "a", endpoint=f"{receiver.url}/", allow_private="on")
    Log(database).append([[event("one")]])

    with running(settings, "worker --only targets --concurrency 1", "beat"):
        until(lambda: waiting(settings, SERVICE_QUEUE) > 3, 20, what="drains that nobody takes")
        assert receiver.requests() == []

    with running(settings, "worker --only drain", "beat"):
        until(lambda: waiting(settings, "target.webhook.a") > 0, 20, what="a wake-up that nobody takes")
        until(lambda: waiting(settings, SERVICE_QUEUE) == 0, 20, what="the drains to be taken")
        assert receiver.requests() == []

    with running(settings, "worker --only drain", "worker --only targets --concurrency 1", "beat"):
        until(lambda: len(receiver.requests()) == 1, 30, what="the delivery")


def test_a_worker_serves_the_targets_it_is_told_and_those_that_are_made_meanwhile(
    settings: Mapping[str, str], database: Database, receiver: services.Receiver
) -> None:
    for name in ("a", "b"):
        add_target(database, name, endpoint=f"{receiver.url}/{name}", allow_private="on")

    def arrived() -> set[str]:
        return {request.path for request in receiver.requests()}

    with running(settings, "worker --only drain", "worker --only targets --targets webhook:a --concurrency 1", "beat"):
        Log(database).append([[event("one")]])
        until(lambda: "/a" in arrived(), 20, what="the delivery to the target that is served")
        until(lambda: waiting(settings, "target.webhook.b") > 0, 20, what="a wake-up for the one that is not")
        assert arrived() == {"/a"}

    with running(settings, "worker --targets webhook --concurrency 1", "beat"):
        until(lambda: arrived() == {"/a", "/b"}, 30, what="the delivery to the other")
        add_target(database, "c", endpoint=f"{receiver.url}/c", allow_private="on")
        Log(database).append([[event("two")]])
        until(lambda: "/c" in arrived(), 30, what="the delivery to a target made meanwhile")


def test_each_process_is_listed_while_it_runs(settings: Mapping[str, str], database: Database) -> None:
    def listed() -> dict[str, Process]:
        with database.reading() as connection:
            return {one.name.partition("@")[0]: one for one in read_processes(connection)}

    with running(
        settings,
        "worker --only drain",
        "worker --only targets --targets webhook --concurrency 2",
        "worker --only spark",
        "beat",
    ) as roles:
        until(lambda: len(listed()) == 4, 20, what="a heartbeat of each")
        found = [listed()[name] for name in ("drain", "targets-webhook", "spark", "beat")]
        assert [one.pid for one in found] == [role.pid for role in roles]
        assert [one.pool for one in found] == ["solo", "prefork", "thread", "beat"]
        assert [one.serves for one in found] == [["drain"], ["webhook"], ["spark"], ["beat"]]
        assert set(found[1].processes) == {child.pid for child in roles[1].children()}
        # Not that of this process: pytest sees what a build has left in the folder of the source, too.
        told = subprocess.run([BUCKETWIRE, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
        assert {one.version for one in listed().values()} == {told.split()[1]}
    assert all(one.ended_at >= one.served_at > 0 for one in listed().values()), "each has ended in order"


def test_a_worker_serves_nothing_while_its_broker_is_away_and_drops_the_messages_of_0_2(
    settings: Mapping[str, str], database: Database, broker: services.Redis
) -> None:
    target = add_target(database, "a")

    def known() -> list[Process]:
        with database.reading() as connection:
            return read_processes(connection)

    def worker() -> Process:
        return known()[0]

    with closing(Broker(settings["BUCKETWIRE_BROKER_URL"])) as former:
        former.publish(SERVICE_QUEUE, "probe_queues", declare=True)
        former.publish(queue_name(target), "queue_alive", (1,), declare=True)
    with running(settings, "worker --concurrency 1") as [role]:
        until(lambda: waiting(settings, SERVICE_QUEUE) + waiting(settings, queue_name(target)) == 0, 20)
        until(known, 20, what="its heartbeat")
        broker.stop()
        until(lambda: "cannot be used" in worker().problem, 60, what="its problem")
        away = worker()
        until(lambda: worker().at > away.at, 60, what="another heartbeat")
        assert worker().served_at == away.served_at
        broker.start()
        until(lambda: worker().served_at > away.at, 60, what="that it serves again")
        assert worker().problem == ""
        assert "ERROR" not in role.said()


def test_an_api_is_known_by_the_heartbeats_of_any_of_its_workers_until_it_ends(
    settings: Mapping[str, str], database: Database
) -> None:
    def known() -> list[Process]:
        with database.reading() as connection:
            return read_processes(connection)

    with Api(["api", "--workers", "2"], settings).start() as api:
        until(lambda: known() and known()[0].served_at, 20, what="its heartbeat")
        [first] = known()
        assert (first.pid, first.address, first.problem) == (api.pid, api.url, "")
        assert (first.serves, first.name.partition("@")[0], first.host) == (["api"], "api", socket.gethostname())
        for child in api.children():
            child.kill()
            at = now_ms()
            until(lambda at=at: known()[0].served_at > at, 30, what="a heartbeat by another worker")  # type: ignore[misc]
        [later] = known()
        assert (later.id, later.started_at) == (first.id, first.started_at)
    [ended] = known()
    assert ended.ended_at >= later.served_at


def test_an_api_that_has_one_thread_is_well_by_its_own_doctor(settings: Mapping[str, str], database: Database) -> None:
    def known() -> list[Process]:
        with database.reading() as connection:
            return read_processes(connection)

    with Api(["api", "--workers", "1", "--threads", "1"], settings).start() as api:
        until(lambda: known() and known()[0].served_at, 20, what="its heartbeat")
        found = httpx.get(f"{api.url}/v1/doctor", timeout=60, trust_env=False).json()["findings"]
    assert [(one["grade"], one["text"]) for one in found if one["subject"] == "api"] == [("ok", f"{api.url} answers")]


def test_a_worker_whose_figures_have_no_place_says_so_and_does_not_start(settings: Mapping[str, str]) -> None:
    nowhere = {
        **settings,
        "BUCKETWIRE_DATA_DIR": "/proc/nowhere",
        "BUCKETWIRE_METRICS_LISTEN": f"{services.LOOPBACK}:0",
    }
    worker = Role(arguments=["worker", "--only", "targets"], settings=nowhere, ready=" ready.")
    with pytest.raises(RuntimeError, match="bucketwire ended with 1") as refused:
        worker.start()
    assert "cannot create a metrics folder in /proc/nowhere" in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_an_idle_service_writes_no_logs(settings: Mapping[str, str], database: Database) -> None:
    with running(settings, "worker --only drain", "beat") as roles:
        sizes = [role.log.stat().st_size for role in roles]
        began = now_ms()
        until(lambda: heartbeats(database) > began + 1000, 20, what="many drains")
        assert [role.log.stat().st_size for role in roles] == sizes


def test_an_api_that_the_network_reaches_does_not_start_without_a_token(
    settings: Mapping[str, str], database: Database
) -> None:
    port = services.free_port()
    api = Role(arguments=["api"], settings={**settings, "BUCKETWIRE_LISTEN": f"0.0.0.0:{port}"}, ready="Booting worker")
    with pytest.raises(RuntimeError, match="bucketwire ended with 1") as refused:
        api.start()
    assert "there is no token; create one with `bucketwire token create" in str(refused.value)
    assert "Traceback" not in str(refused.value)


def test_targets_of_the_environment_are_there_when_the_api_is(settings: Mapping[str, str], database: Database) -> None:
    environ = {
        "MINIO_NOTIFY_WEBHOOK_ENABLE_env": "on",
        "MINIO_NOTIFY_WEBHOOK_ENDPOINT_env": "http://127.0.0.1:9/",
        "MINIO_NOTIFY_WEBHOOK_ENABLE_bad": "on",
    }
    # A process of gunicorn's own that has hardly begun does not notice that it shall end: wait for the first answer.
    with Api(arguments=["api", "--workers", "1"], settings={**settings, **environ}).start() as api:
        assert "environment: webhook:bad: endpoint: is required" in api.log.read_text()
        with database.reading() as connection:
            rows = connection.exec_driver_sql("SELECT name, origin, problem <> '' FROM targets ORDER BY name").all()
    assert [tuple(row) for row in rows] == [("bad", "environment", 1), ("env", "environment", 0)]
