"""The test servers themselves: real answers, loopback only, data kept through a crash, nothing left running."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import amqp
import httpx
import psutil
import psycopg2
import pymysql
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests import provision, services
from tests.services import forking, reaper
from tests.services.proxy_process import far_proxies

NIGHTLY = pytest.mark.nightly("TLS in the contract suite; servers that end with the process that started them")

TOP = Path(__file__).parents[2]
ONCE = Retry(NoBackoff(), 0)


class Probe:
    """One real write and one real read; `write` is repeated after a restart only where nothing is kept."""

    def __init__(
        self, start: Callable[[], services.Server], write: Callable[..., None], read: Callable[..., object]
    ) -> None:
        self.start, self.write, self.read = start, write, read


def sql_write(server: services.Postgres | services.MySQL) -> None:
    server.create_database("kept")
    with server.connection("kept") as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (v VARCHAR(20))")
        cursor.execute("INSERT INTO t VALUES (%s)", ("é🪣",))


def sql_read(server: services.Postgres | services.MySQL) -> object:
    with server.connection("kept") as connection, connection.cursor() as cursor:
        cursor.execute("SELECT v FROM t")
        return cursor.fetchone()


def redis_write(server: services.Redis) -> None:
    with server.client() as client:
        client.set("kept", "é🪣")


def redis_read(server: services.Redis) -> object:
    with server.client() as client:
        return client.get("kept")


def rabbitmq_write(server: services.RabbitMQ) -> None:
    with server.connection() as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True, auto_delete=False)
        channel.basic_publish(amqp.Message("é🪣".encode(), delivery_mode=2), routing_key="kept")


def rabbitmq_read(server: services.RabbitMQ) -> object:
    with server.connection() as connection:
        message = connection.channel().basic_get("kept")
        return message and bytes(message.body)  # not acknowledged, so it goes back when the connection closes


def minio_write(server: services.MinIO) -> None:
    server.client().make_bucket("kept")
    body = "é🪣".encode()
    server.client().put_object("kept", "a/é", io.BytesIO(body), len(body))


def minio_read(server: services.MinIO) -> object:
    with contextlib.closing(server.boto3()) as client, client.get_object(Bucket="kept", Key="a/é")["Body"] as body:
        return body.read()


def receiver_write(server: services.Receiver) -> None:
    assert httpx.post(server.url, content="é🪣".encode()).status_code == 200


def receiver_read(server: services.Receiver) -> object:
    return server.bodies()


PROBES = {
    "redis": Probe(lambda: services.redis(durable=True), redis_write, redis_read),
    "postgres": Probe(services.postgres, sql_write, sql_read),
    "mysql": Probe(services.mysql, sql_write, sql_read),
    "mariadb": Probe(services.mariadb, sql_write, sql_read),
    "rabbitmq": Probe(services.rabbitmq, rabbitmq_write, rabbitmq_read),
    "minio": Probe(services.minio, minio_write, minio_read),
    "receiver": Probe(services.receiver, receiver_write, receiver_read),
}


@pytest.mark.nightly(
    "PostgreSQL and Redis: one code starts and ends them; each is killed in the contract suite or by test_kill.py",
    when=lambda name: name in {"mariadb", "minio", "mysql", "rabbitmq", "receiver"},
)
@pytest.mark.parametrize("name", PROBES)
def test_a_server_keeps_what_was_written_through_kill_and_stop_and_leaves_nothing_running(name: str) -> None:
    probe = PROBES[name]
    with leaves_nothing(probe.start()) as server:
        port = server.port
        probe.write(server)
        written = probe.read(server)
        assert "é🪣".encode() in str(written).encode() or "é🪣".encode() == written or written == ["é🪣".encode()]
        if name == "rabbitmq":  # Erlang's log of what was declared is written with a delay of up to two seconds
            time.sleep(2.5)
        for end in (server.kill, server.stop):
            end()
            assert not server.running
            assert using(server) == []
            server.start()
            assert server.port == port
            assert probe.read(server) == written


@dataclass(eq=False)
class Leaving(services.ZooKeeper):
    """The smallest server of Java's."""

    def argv(self) -> Sequence[str | Path]:
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        return self.serving(main=main, arguments=[self.folder / "zoo.cfg"])


@NIGHTLY
def test_a_server_of_java_leaves_its_classes_to_those_after_it_if_it_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provision, "CACHE", tmp_path)
    first, beside = Leaving(), Leaving()
    for end, found in ((first.kill, 0), (first.stop, 1)):
        first.start()
        assert not any("classes.jsa" in str(word) for word in beside.argv())
        end()
        kept = list(tmp_path.glob("*.jsa"))
        assert len(kept) == found
    with beside.start():
        assert str(kept[0]) in Path(f"/proc/{beside.pid}/maps").read_text()


S = TypeVar("S", bound=services.Server)


@contextlib.contextmanager
def leaves_nothing(server: S) -> Iterator[S]:
    """The server for the block, which must find it on loopback only; afterwards no process of it may be left."""
    with server:
        addresses = server.listeners()
        assert server.port in {port for _, port in addresses}
        assert {address for address, _ in addresses} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
        assert using(server) != []
        yield server
    assert using(server) == []


def using(server: services.Server) -> list[str]:
    """The processes that work in the server's folder or were started with its name: family ties do not hide any."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):  # pid 1 may be closed to us
            words = [*process.cmdline(), process.cwd()]
            if any(str(server.folder) in word for word in words):
                found.append(" ".join(words))
    return found


def test_a_frozen_server_accepts_but_does_not_answer_until_thawed() -> None:
    with services.redis() as server, server.client() as client:
        client.set("k", "v")
        server.freeze()
        with redis.Redis(port=server.port, socket_timeout=0.2, retry=ONCE) as other, pytest.raises(redis.TimeoutError):
            other.ping()
        server.thaw()
        assert client.get("k") == b"v"


@NIGHTLY
def test_a_frozen_server_can_be_stopped() -> None:
    with services.postgres() as server:
        server.freeze()
        pid = server.pid
    assert not psutil.pid_exists(pid)


def test_a_server_that_does_not_come_up_says_why_and_leaves_nothing() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with pytest.raises(RuntimeError, match=r"redis ended with 1(.|\n)*no-such-option"):
        services.redis(extra=("--no-such-option", "1"))
    assert {process.pid for process in psutil.Process().children(recursive=True)} - before == set()


@NIGHTLY
def test_redis_asks_for_its_password_and_speaks_tls(certificates: services.Certificates) -> None:
    with services.redis(tls=True, password="s3cret") as server:
        with redis.Redis(port=server.port, retry=ONCE) as client, pytest.raises(redis.AuthenticationError):
            client.ping()
        with redis.Redis.from_url(server.tls_url, ssl_ca_certs=str(certificates.ca)) as client:
            assert client.ping()
        with (
            redis.Redis.from_url(server.tls_url, ssl_ca_certs=str(certificates.other_ca), retry=ONCE) as client,
            pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.ping()


@NIGHTLY
def test_postgres_verifies_both_ways(postgres_server: services.Postgres, certificates: services.Certificates) -> None:
    base = (
        f"host=localhost port={postgres_server.port} dbname=postgres user=client sslmode=verify-full hostaddr=127.0.0.1"
    )
    trusting = f"{base} sslrootcert={certificates.ca}"
    connection = psycopg2.connect(f"{trusting} sslcert={certificates.client_cert} sslkey={certificates.client_key}")
    connection.close()
    with pytest.raises(psycopg2.OperationalError, match="certificate"):
        psycopg2.connect(trusting)
    with pytest.raises(psycopg2.OperationalError, match="certificate verify failed"):
        psycopg2.connect(f"{base} sslrootcert={certificates.other_ca}")


@NIGHTLY
@pytest.mark.parametrize("fixture", ["mysql_server", "mariadb_server"])
def test_mysql_verifies_both_ways(
    fixture: str, request: pytest.FixtureRequest, certificates: services.Certificates
) -> None:
    server: services.MySQL = request.getfixturevalue(fixture)
    where: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "client", "ssl_ca": str(certificates.ca)}
    mine: dict[str, Any] = {"ssl_cert": str(certificates.client_cert), "ssl_key": str(certificates.client_key)}
    connection = pymysql.connect(**where, **mine, ssl_verify_cert=True, ssl_verify_identity=True)
    with connection, connection.cursor() as cursor:
        cursor.execute("SHOW STATUS LIKE 'Ssl_version'")
        assert "TLSv1." in str(cursor.fetchone())
    with pytest.raises(pymysql.OperationalError, match="Access denied"):
        pymysql.connect(**where)


@NIGHTLY
def test_rabbitmq_speaks_tls_and_refuses_a_wrong_password(
    rabbitmq_server: services.RabbitMQ, certificates: services.Certificates
) -> None:
    with amqp.Connection(
        f"localhost:{rabbitmq_server.tls_port}",
        services.USER,
        services.PASSWORD,
        ssl={"ca_certs": str(certificates.ca), "server_hostname": "localhost", "cert_reqs": ssl.CERT_REQUIRED},
    ) as connection:
        assert connection.channel().is_open
    wrong = amqp.Connection(f"127.0.0.1:{rabbitmq_server.port}", services.USER, "wrong")
    with pytest.raises(amqp.AccessRefused):
        wrong.connect()
    wrong.collect()


def test_minio_tells_its_webhooks_what_happened_to_an_object(receiver: services.Receiver) -> None:
    hooks = {"one": (receiver.url + "one", "t0ken")}
    with services.receiver(client_cert=True) as secure:
        hooks["two"] = (secure.url + "two", "")
        with services.minio(webhooks=hooks, region="eu-west-1") as server:
            server.client().make_bucket("photos")
            for name in hooks:
                server.mc("event", "add", "m/photos", server.arn(name), "--event", "put")
            listed = server.mc("event", "ls", "m/photos")
            assert {entry["arn"] for entry in listed} == {f"arn:minio:sqs:eu-west-1:{name}:webhook" for name in hooks}
            server.client().put_object("photos", "a b", io.BytesIO(b"x"), 1)
            [plain], [shown] = receiver.wait(1), secure.wait(1)
    assert (plain.path, plain.headers["authorization"]) == ("/one", "Bearer t0ken")
    assert plain.json()["EventName"] == "s3:ObjectCreated:Put"
    assert plain.json()["Records"][0]["s3"]["object"]["key"] == "a+b"
    assert (shown.path, shown.subject, shown.json()["Key"]) == ("/two", "client", "photos/a b")


@NIGHTLY
def test_minio_speaks_tls() -> None:
    with services.minio(tls=True) as server, contextlib.closing(server.boto3()) as client:
        client.create_bucket(Bucket="over-tls")
        assert [bucket["key"] for bucket in server.mc("ls", "m")] == ["over-tls/"]


def test_empty_url_is_an_empty_database(empty_url: str) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(empty_url)
    assert sqlalchemy.inspect(engine).get_table_names() == []
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE t (v VARCHAR(10))")
    engine.dispose()


def test_the_receiver_answers_by_its_rules_and_writes_down_what_came(receiver: services.Receiver) -> None:
    receiver.set(
        services.Answer(status=503, headers={"Retry-After": "2"}, containing="poison", times=2),
        services.Answer(status=307, headers={"Location": "/there"}, path="/here"),
        services.Answer(close=True, path="/gone"),
        services.Answer(delay=0.3, path="/slow"),
    )
    with httpx.Client(base_url=receiver.url) as client:
        answers = [client.post("/", content=b"a poison b") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [503, 503, 200]
        assert answers[0].headers["retry-after"] == "2"
        assert client.post("/here").headers["location"] == "/there"
        with pytest.raises(httpx.RemoteProtocolError):
            client.post("/gone", content=b"x")
        began = time.monotonic()
        assert client.post("/slow", headers={"X-Event": "1"}, content=b"\x00\xff").status_code == 200
        assert time.monotonic() - began >= 0.3
    requests = receiver.requests()
    assert [(request.path, request.status) for request in requests] == [
        ("/", 503), ("/", 503), ("/", 200), ("/here", 307), ("/gone", 0), ("/slow", 200)
    ]  # fmt: skip
    assert (requests[-1].body, requests[-1].headers["x-event"]) == (b"\x00\xff", "1")
    assert len({request.connection for request in requests}) == 2, "kept alive until the receiver closed it"
    receiver.set(status=401)
    assert httpx.post(receiver.url).status_code == 401
    receiver.forget()
    assert receiver.requests() == []


def test_receivers_are_forked_and_share_nothing_with_the_tests_or_one_another(receiver: services.Receiver) -> None:
    with services.receiver(tls=True) as other:
        mine, its = psutil.Process(receiver.pid), psutil.Process(other.pid)
        between = mine.parent()
        assert between is not None
        assert between == its.parent()
        assert between.pid not in (mine.pid, os.getpid())
        for server, process in ((receiver, mine), (other, its)):
            assert (process.num_threads(), os.getsid(process.pid)) == (1, process.pid)
            assert files(process.pid) >= {str(server.log), str(server.file)}
        for one, another in itertools.product((receiver.pid, other.pid), (other.pid, between.pid, os.getpid())):
            shared = files(one) & files(another) if one != another else set()
            assert not {file for file in shared if file.startswith(("socket:", "pipe:"))}
        receiver.freeze()
        with pytest.raises(httpx.TimeoutException):
            httpx.post(receiver.url, timeout=0.3)
        receiver.thaw()
        services.until(lambda: len(receiver.requests()) == 1, what="the request that was sent to a frozen one")
        receiver.kill()
        assert other.running


def files(pid: int) -> set[str]:
    """What a process has open."""
    found = set()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself is closed
            found.add(str(each.readlink()))
    return found


def test_a_proxy_in_a_process_of_its_own_hurts_and_heals(receiver: services.Receiver) -> None:
    def post(path: str, seconds: float = 30) -> int:
        return httpx.post(f"http://{services.LOOPBACK}:{wire.port}/{path}", timeout=seconds).status_code

    with far_proxies([receiver.port, receiver.port]) as (_, wire):
        assert post("first") == 200
        wire.swallow()
        with pytest.raises(httpx.TimeoutException):
            post("swallowed", 0.5)
        wire.heal()
        wire.hold_next()
        with pytest.raises(httpx.TimeoutException):
            post("held", 0.5)
        assert post("passes") == 200
        wire.release()
        services.until(lambda: len(receiver.requests()) == 3)
        wire.drip(0.01)
        assert post("dripped") == 200
    assert [request.path for request in receiver.requests()] == ["/first", "/passes", "/held", "/dripped"]
    with pytest.raises(httpx.ConnectError):
        post("gone")


def test_the_receiver_takes_chunked_bodies_and_refuses_bad_framing(receiver: services.Receiver) -> None:
    import socket

    assert httpx.post(receiver.url, content=iter([b"one", b"two"])).status_code == 200
    assert receiver.bodies() == [b"onetwo"]
    with socket.create_connection(("127.0.0.1", receiver.port), timeout=5) as raw:
        raw.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: no\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 400")
    assert len(receiver.requests()) == 1


def test_the_receiver_demands_a_client_certificate(certificates: services.Certificates) -> None:
    with services.receiver(client_cert=True) as server:
        trust = ssl.create_default_context(cafile=str(certificates.ca))
        with httpx.Client(verify=trust) as stranger, pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            stranger.post(server.url)
        trust.load_cert_chain(certificates.client_cert, certificates.client_key)
        with httpx.Client(verify=trust) as known:
            assert known.post(server.url, content=b"x").status_code == 200
        assert [(request.body, request.subject) for request in server.requests()] == [(b"x", "client")]


ORPHAN = """
import os, sys, time
from tests import services
started = [services.redis(), services.postgres()]
fork = os.fork()
if not fork:
    time.sleep(60)  # a worker that does not notice its parent's end
    sys.exit()
print(*(server.pid for server in started), fork, started[0].folder.parent, flush=True)
sys.stdin.read()
"""


@pytest.mark.nightly(
    "a process that is killed: the process that ends them sees no difference", when=lambda how: how is None
)
@pytest.mark.parametrize("how", [signal.SIGKILL, None])
def test_servers_end_with_the_process_that_started_them(how: signal.Signals | None) -> None:
    argv = [sys.executable, "-W", "error", "-c", ORPHAN]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TOP) as parent:
        try:
            assert parent.stdin is not None
            assert parent.stdout is not None
            *pids, fork, folder = parent.stdout.readline().split()
            families = (reaper.family(int(pid)) for pid in pids)
            started = [process for family in families for process in family if reaper.alive(process)]
            assert len(started) > 2
            parent.stdin.close() if how is None else os.kill(parent.pid, how)
            assert parent.wait(20) == (0 if how is None else -how)
        finally:
            parent.kill()
    try:
        services.until(lambda: not any(reaper.alive(process) for process in started), what="the servers to end")
        services.until(lambda: not Path(folder).exists(), what="their folder to go")
    finally:
        os.kill(int(fork), signal.SIGKILL)


CHECK = """
def check():
    for server in started:
        server.ping()
    assert "signal 9" not in started[1].log.read_text(), "PostgreSQL lost a process of its own"
"""


@NIGHTLY
def test_a_forked_child_that_ends_leaves_its_parents_servers_alone() -> None:
    script = ORPHAN.replace("time.sleep(60)", "pass").replace("sys.stdin.read()", "os.waitpid(fork, 0); check()")
    script = f"{CHECK}{script}"
    argv = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(
        argv, cwd=TOP, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


class _Former(psutil.Process):
    """A process that has ended, and whose number means another one by now."""

    def is_running(self) -> bool:
        return False


def test_what_has_taken_the_number_of_a_process_that_ended_is_none_of_its_family() -> None:
    assert os.getpid() in {process.pid for process in reaper.family(psutil.Process())}
    assert reaper.family(_Former()) == []


def test_a_process_is_forked_for_tests_that_have_many_files_open(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(1_100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        server = forking._Server("", ())
        assert int(server.child.args[3]) >= 1_024  # type: ignore[index]  # the number of its socket
        with contextlib.closing(server):
            assert server.start(["platform"], dict(os.environ), tmp_path / "log").wait(30) == 0
    assert "Linux" in (tmp_path / "log").read_text()


def test_a_process_is_alive_until_its_last_thread_has_ended() -> None:
    code = (
        "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
        "ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as started:
        process = psutil.Process(started.pid)
        services.until(lambda: process.status() == psutil.STATUS_ZOMBIE, 30, what="the end of the main thread")
        assert reaper.alive(process)
        started.kill()
        services.until(lambda: not reaper.alive(process), 30, what="the end of the thread")
