"""Wake-ups of the drain: few, understood by Celery, and never waited for, whatever the broker does."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from amqp.exceptions import AccessRefused, PreconditionFailed, RecoverableConnectionError
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from kombu import Connection, Consumer, Producer
from redis import RedisError

import workers.broker_consumer  # noqa: F401 - as a worker loads it
from app import broker as broker_module
from app import wakeups
from app.api.admin.wsgi_app import encrypt
from app.broker import POLICY as BROKER_POLICY
from app.broker import (
    SERVICE_QUEUE,
    Broker,
    BrokerUnavailable,
    check_broker,
    queue_name,
    transport_options,
    waiting,
)
from app.config.arn import TargetId
from app.config.settings import Settings
from app.outbox.delivery.availability import open_breaker
from app.outbox.delivery.due_work import DueWork
from app.outbox.delivery.leases import Lease
from app.outbox.delivery.ready_targets import HARD_LIMIT_SECONDS, ReadyTargets
from app.outbox.engine.database import Database, now_ms
from app.outbox.log.spool import Spool, SpoolFeeder
from app.server.application import create_app
from app.wakeups import Due, Ready, WakeUps
from tests import services
from tests.services import until
from tests.support.builders import add_target, event, migrated, registry
from tests.support.forking import in_a_child
from tests.support.tuning import tune
from workers.celery import app as celery
from workers.celery import queue
from workers.delivery.redelivery_requests import RedeliveryRequests


def connected(url: str) -> Connection:
    """A connection to the broker as the product has them."""
    return Connection(url, transport_options=transport_options(url))


@pytest.fixture
def redis_url(redis_server: services.Redis) -> Iterator[str]:
    """A database of the shared Redis for the service queue."""
    with connected(url := f"redis://{services.LOOPBACK}:{redis_server.port}/7") as connection:
        connection.channel().client.flushdb()
        yield url


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest) -> str:
    """A broker on which a worker has declared the service queue, which is empty."""
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    url: str = request.getfixturevalue("rabbitmq_server").url
    with connected(url) as connection:
        declared(connection, SERVICE_QUEUE)
    return url


def declared(connection: Connection, name: str) -> Any:
    """A queue as workers declare it, empty."""
    served = queue(name)
    if connection.transport.driver_type == "amqp":
        served.queue_arguments = {"x-queue-type": "quorum"}
    bound = served(connection.channel())
    bound.declare()
    bound.purge()
    return bound


TARGET = TargetId("webhook", "one")


@contextlib.contextmanager
def waker(url: str, ready: Mapping[TargetId, Ready] | None = None) -> Iterator[WakeUps]:
    made = WakeUps(url, lambda due: {target: each for target, each in (ready or {}).items() if target in due})
    try:
        yield made
    finally:
        made.close()


def count(url: str) -> int:
    with connected(url) as connection:
        return waiting(connection.channel(), SERVICE_QUEUE)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A broker that accepts connections and never answers."""
    with socket.create_server((services.LOOPBACK, 0)) as listening:
        yield listening


def test_a_wakeup_is_the_message_that_celery_would_send(broker_url: str) -> None:
    with waker(broker_url) as made, connected(broker_url) as connection:
        made.request()
        until(lambda: count(broker_url), 30, what="a wake-up")
        taken = queue(SERVICE_QUEUE)(connection.channel()).get(no_ack=True)
    own = celery.amqp.as_task_v2(taken.headers["id"], "drain")
    assert taken.payload == [list(own.body[0]), own.body[1], own.body[2]]
    assert taken.content_type == "application/json"
    headers = {name: value for name, value in taken.headers.items() if name != "x-delivery-count"}  # RabbitMQ adds it
    assert {name: own.headers[name] for name in headers} == headers
    assert taken.properties["correlation_id"] == taken.headers["id"]


def test_a_wakeup_of_a_worker_is_the_message_that_celery_would_send(broker_url: str) -> None:
    name = queue_name(TARGET)
    with waker(broker_url, {TARGET: Ready("the:arn", 400, is_free=True)}) as made, connected(broker_url) as connection:
        served = declared(connection, name)
        made.request_delivery({TARGET: {11, 3, 4}})
        until(lambda: waiting(connection.channel(), name), 30, what="a wake-up")
        taken = served.get(no_ack=True)
    own = celery.amqp.as_task_v2(taken.headers["id"], "deliver", ("the:arn",), time_limit=400)
    assert taken.payload == [list(own.body[0]), own.body[1], own.body[2]]
    headers = {name: value for name, value in taken.headers.items() if name != "x-delivery-count"}
    assert {name: own.headers[name] for name in headers} == headers
    assert count(broker_url) == 0, "the drain is not needed"


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_where_enough_messages_wait_for_the_workers_nobody_is_woken(broker_url: str) -> None:
    """One that waits finds what is due by then."""
    name, other = queue_name(TARGET), TargetId("webhook", "other")
    ready = {target: Ready("the:arn", 400, is_free=True) for target in (TARGET, other)}
    with waker(broker_url, ready) as made, connected(broker_url) as connection:
        for number in range(BROKER_POLICY.max_direct_wake_ups):
            made.request_delivery({TARGET: {number}})
            until(lambda: waiting(connection.channel(), name) == number + 1, 30, what="a wake-up of a worker")  # noqa: B023
        made.request_delivery({TARGET: {4}, other: {1}})
        until(lambda: waiting(connection.channel(), queue_name(other)), 30, what="a wake-up of the other's worker")
        assert waiting(connection.channel(), name) == BROKER_POLICY.max_direct_wake_ups
        assert count(broker_url) == 0


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_of_many_targets_the_drain_is_woken(broker_url: str) -> None:
    targets = [TargetId("webhook", f"t{number}") for number in range(5)]
    with waker(broker_url, {each: Ready("the:arn", 400, is_free=True) for each in targets}) as made:
        made.request_delivery({each: {1} for each in targets})
        until(lambda: count(broker_url), 30, what="a wake-up of the drain")
    with connected(broker_url) as connection:
        assert not any(waiting(connection.channel(), queue_name(each)) for each in targets)


def test_a_flow_of_requests_wakes_a_few_workers_and_no_drain(broker_url: str) -> None:
    """While wake-ups wait for busy workers, further ones would find nothing else."""
    asked: list[Due] = []

    def ready(due: Due) -> Mapping[TargetId, Ready]:
        asked.append(due)
        return {TARGET: Ready("the:arn", 400, is_free=True)}

    with contextlib.closing(WakeUps(broker_url, ready)) as made, connected(broker_url) as connection:
        declared(connection, queue_name(TARGET))
        began = time.monotonic()
        for number in range(400):
            made.request_delivery({TARGET: {number % 16}})
            time.sleep(wakeups.POLICY.worker_pause_seconds / 10)
        until(lambda: made._sender.get()._requested.number == 0, 30, what="the sender to have taken all requests")
        took = time.monotonic() - began
        assert waiting(connection.channel(), queue_name(TARGET)) == BROKER_POLICY.max_direct_wake_ups
        assert count(broker_url) == 0
    assert len(asked) <= 2 + BROKER_POLICY.max_direct_wake_ups + took / wakeups.POLICY.max_pause_seconds


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_events_for_a_target_that_is_down_wake_the_drain_once_a_second_and_nobody_else(broker_url: str) -> None:
    up = TargetId("webhook", "up")
    with waker(broker_url, {up: Ready("the:arn", 400, is_free=True)}) as made, connected(broker_url) as connection:
        served, service = (declared(connection, name) for name in (queue_name(up), SERVICE_QUEUE))
        woken, drains, began = list[Any](), list[Any](), time.monotonic()

        def came() -> bool:
            known = len(woken) + len(drains)
            for taken, messages in ((woken, served), (drains, service)):
                taken += [message for message in [messages.get(no_ack=True)] if message]
            return len(woken) + len(drains) > known

        for _ in range(10):
            made.request_delivery({TARGET: {3}, up: {5}})
            until(came, 30, what="the wake-up of the other target's worker, or of a drain that is due just then")
        until(lambda: (came(), drains)[1], 30, what="a wake-up of the drain")
        assert woken
        assert len(drains) <= 2 + (time.monotonic() - began)
        assert waiting(connection.channel(), queue_name(TARGET)) == 0


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_a_target_without_a_queue_keeps_no_other_target_waiting(broker_url: str) -> None:
    new, other = TargetId("webhook", "without-a-queue"), TargetId("webhook", "other")
    ready = {new: Ready("the:arn", 400, is_free=True), other: Ready("another:arn", 400, is_free=True)}
    with waker(broker_url, ready) as made, connected(broker_url) as connection:
        served = declared(connection, queue_name(other))
        made.request_delivery({new: {3}, other: {5}})
        until(lambda: served.get(no_ack=True), 30, what="the wake-up of the other target's worker")
        until(lambda: count(broker_url), 30, what="a wake-up of the drain, which creates the queue")


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_nobody_is_woken_for_partitions_that_workers_have(broker_url: str) -> None:
    other = TargetId("webhook", "other")
    ready = {TARGET: Ready("the:arn", 400, is_free=False), other: Ready("another:arn", 400, is_free=True)}
    with waker(broker_url, ready) as made, connected(broker_url) as connection:
        for number in range(100):
            made.request_delivery({TARGET: {number}})
        until(lambda: made._sender.get()._requested.number == 0, 30, what="the sender to have taken all requests")
        made.request_delivery({other: {5}})
        until(lambda: waiting(connection.channel(), queue_name(other)), 30, what="a wake-up of the other's worker")
        assert waiting(connection.channel(), queue_name(TARGET)) == 0
        assert count(broker_url) == 0


def test_while_workers_have_the_partitions_the_database_is_asked_for_them_less_often() -> None:
    asked: list[Mapping[TargetId, Collection[int]]] = []

    def ready(due: Mapping[TargetId, Collection[int]]) -> Mapping[TargetId, Ready]:
        asked.append({target: set(partitions) for target, partitions in due.items()})
        return {TARGET: Ready("the:arn", 400, is_free=False)}

    with contextlib.closing(WakeUps("memory://", ready)) as made:
        began = time.monotonic()
        for number in range(40):
            made.request_delivery({TARGET: {number}})
            time.sleep(wakeups.POLICY.worker_pause_seconds * 1.3)
        until(lambda: set().union(*(each[TARGET] for each in asked)) == set(range(40)), 30, what="all to be asked for")
        assert len(asked) <= 2 + (time.monotonic() - began) / wakeups.POLICY.max_pause_seconds


@pytest.mark.parametrize("broker_url", ["redis"], indirect=True)
def test_for_a_target_that_waits_for_tokens_the_drain_is_woken_when_there_are_some(broker_url: str) -> None:
    with (
        waker(broker_url, {TARGET: Ready("the:arn", 400, is_free=False, wait=0.3)}) as made,
        connected(broker_url) as connection,
    ):
        began = time.monotonic()
        made.request_delivery({TARGET: {3}})
        until(lambda: count(broker_url), 30, what="a wake-up of the drain")
        assert time.monotonic() - began >= 0.3
        assert waiting(connection.channel(), queue_name(TARGET)) == 0


def test_targets_are_ready_while_they_can_be_delivered_to(
    outbox: tuple[Database, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, settings = outbox
    targets = registry(database)
    known = ReadyTargets(database, targets, Settings.from_environ(settings))
    running, slow, down, paused = (
        add_target(database, name, values={"endpoint": "http://127.0.0.1:9/", "timeout": timeout})
        for name, timeout in (("running", "5s"), ("slow", "60s"), ("down", "5s"), ("paused", "5s"))
    )
    due = {each: [0] for each in (running, slow, down, paused)}
    targets.pause(paused, "")
    open_breaker(database, targets.target(down).row_id, "no", 1 << 60, probing=False)
    found = known(due)
    assert found.keys() == {running, slow}
    assert found[running] == Ready("arn:minio:sqs::running:webhook", HARD_LIMIT_SECONDS, is_free=True)
    assert found[slow].time_limit > 20 * 60
    targets.resume(paused)
    assert known(due).keys() == {running, slow}, "it is known for a second"
    until(lambda: paused in known(due), 30, what="the resumed target")


def test_a_queue_that_nobody_serves_gets_a_few_wakeups_of_ten_thousand(broker_url: str) -> None:
    sent = []
    with waker(broker_url) as made:
        made.request()
        until(lambda: count(broker_url), 30, what="a wake-up")
        for number in range(10_000):
            made.request()
            if number % 100 == 0:
                time.sleep(0.001)  # longer than they are apart, all in all
        until(
            lambda: sent.append(count(broker_url)) or sent[-1] == BROKER_POLICY.max_drains,
            30,
            what="as many as may wait",
        )
        made.request()
        time.sleep(0.2)
        assert count(broker_url) == BROKER_POLICY.max_drains


def test_a_burst_shares_wakeups_also_while_they_are_taken_at_once(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tune(monkeypatch, wakeups, "POLICY", drain_pause_seconds=0.02)
    taken, over = [], threading.Event()

    def take() -> None:
        with connected(redis_url) as connection:
            bound = queue(SERVICE_QUEUE)(connection.channel())
            while not over.is_set() or count(redis_url):
                message = bound.get(no_ack=True)
                taken.extend([time.monotonic()] if message else [])

    drain = threading.Thread(target=take)
    drain.start()
    with waker(redis_url) as made:
        began = time.monotonic()
        for _ in range(10_000):
            made.request()
        last = time.monotonic()
        until(lambda: taken and taken[-1] >= last, 30, what="a wake-up after the last request")
        took = time.monotonic() - began
    over.set()
    drain.join()
    assert len(taken) <= 2 + took / 0.02


def test_no_wakeup_is_lost_between_the_last_request_and_the_next_pause(redis_url: str) -> None:
    with waker(redis_url) as made, connected(redis_url) as connection:
        bound = queue(SERVICE_QUEUE)(connection.channel())
        for _ in range(20):
            made.request()
            until(lambda: bound.get(no_ack=True), 30, what="the wake-up of this request")


def test_a_request_may_name_a_later_time(redis_url: str) -> None:
    with waker(redis_url) as made:
        made.request(3600)
        made.request(0.2)
        made.request(7200)
        began = time.monotonic()
        until(lambda: count(redis_url), 30, what="the earliest")
        assert time.monotonic() - began >= 0.15
        assert count(redis_url) == 1


def test_a_wakeup_of_workers_leaves_a_drain_due_that_was_asked_for_later(redis_url: str) -> None:
    with waker(redis_url, {TARGET: Ready("the:arn", 300, is_free=False)}) as made:
        made.request(0.3)
        made.request_delivery({TARGET: {0}})
        until(lambda: count(redis_url) == 1, 30, what="the later drain")


def test_requests_do_not_wait_for_a_broker_that_never_answers(silent: socket.socket) -> None:
    with waker(f"redis://{services.LOOPBACK}:{silent.getsockname()[1]}/0") as made:
        made.request()
        accepted, _ = silent.accept()
        with accepted:
            assert accepted.recv(1), "it has asked, and waits"
            for _ in range(1_000):
                made.request()
            accepted.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                assert accepted.recv(65_536), "it still waits, and the requests are through"


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_check_of_a_broker_that_is_down_ends_without_a_pause(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kombu.utils.functional.sleep", lambda _seconds: pytest.fail("it waits"))
    with pytest.raises(BrokerUnavailable, match="refused"):
        check_broker(f"{scheme}://{services.LOOPBACK}:{services.free_port()}//")


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_refuses_is_reported_once_and_tried_again(
    scheme: str, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tune(monkeypatch, wakeups, "BROKER_POLICY", retry_seconds=0.01)
    tune(monkeypatch, broker_module, "POLICY", settled_seconds=0.0)
    tries: list[object] = []
    close = Broker.close
    monkeypatch.setattr(Broker, "close", lambda self: (tries.append(self), close(self)))
    with waker(f"{scheme}://{services.LOOPBACK}:9//") as made, caplog.at_level(logging.INFO, "bucketwire.wakeups"):
        until(lambda: made.request() or tries.count(made._sender.get()._broker) >= 8, 60, what="three tries")
        assert levels(caplog, made) == ["WARNING"]
        made._sender.get()._broker._url = redis_url  # the broker is back
        until(lambda: made.request() or count(redis_url), 60, what="a wake-up")
        until(lambda: len(levels(caplog, made)) > 1, 30, what="the news")
        assert levels(caplog, made) == ["WARNING", "INFO"]


def levels(caplog: pytest.LogCaptureFixture, made: WakeUps) -> list[str]:
    """The levels of the lines of this sender; APIs of other tests in this process have their own."""
    return [record.levelname for record in caplog.records if record.thread == made._sender.get().thread.ident]


def test_a_connection_that_broke_while_it_was_idle_costs_no_wakeup(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with waker(redis_url) as made, connected(redis_url) as connection:
        made.request()
        until(lambda: count(redis_url), 30, what="the first")
        client = connection.channel().client
        client.flushdb()
        for other in client.client_list():
            with contextlib.suppress(Exception):
                client.client_kill_filter(_id=other["id"])
        made.request()
        until(lambda: count(redis_url), 30, what="another")
    assert not caplog.records


def test_a_process_forked_after_the_first_wakeup_sends_its_own(redis_url: str, tmp_path: Path) -> None:
    report = tmp_path / "said"
    with waker(redis_url) as made, connected(redis_url) as connection:
        bound = queue(SERVICE_QUEUE)(connection.channel())
        made.request()
        until(lambda: bound.get(no_ack=True), 30, what="the parent's")

        def child() -> None:
            made.request()
            until(lambda: count(redis_url), 20, what="the child's")
            report.write_text(str(os.getpid()))

        assert in_a_child(child, report) != str(os.getpid())
        assert bound.get(no_ack=True)
        made.request()
        until(lambda: bound.get(no_ack=True), 30, what="the parent's, over the connection that it has kept")


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[tuple[Database, dict[str, str]]]:
    url = f"sqlite:///{tmp_path}/outbox.db"
    database = migrated(url)
    yield database, {"BUCKETWIRE_DATABASE_URL": url, "BUCKETWIRE_DATA_DIR": str(tmp_path)}
    database.close()


def test_the_api_answers_while_its_broker_hangs(outbox: tuple[Database, dict[str, str]], silent: socket.socket) -> None:
    database, settings = outbox
    add_target(database)
    broker = f"amqp://{services.LOOPBACK}:{silent.getsockname()[1]}//"
    api = create_app(Settings.from_environ(settings | {"BUCKETWIRE_BROKER_URL": broker}))
    client = api.test_client()
    assert client.post("/v1/events", data=_body("first")).status_code == 202
    accepted, _ = silent.accept()
    with accepted:
        assert accepted.recv(8) == b"AMQP\x00\x00\x09\x01"
        assert [client.post("/v1/events", data=_body(f"k{number}")).status_code for number in range(3)] == [202] * 3
    api.extensions["bucketwire"].wakeups.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "wakes"),
    [
        ("POST", "/v1/events", None, True),
        ("POST", "/v1/events", b"for no target", False),
        ("POST", "/v1/events", b"no events", False),
        ("POST", "/v1/targets/webhook/x/resume", b"{}", True),
        ("POST", "/v1/replays", b'{"target": "webhook:x", "all": true}', True),
        ("GET", "/v1/targets", None, False),
    ],
)
def test_what_makes_work_due_wakes_the_drain(
    outbox: tuple[Database, dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    path: str,
    body: bytes | None,
    *,
    wakes: bool,
) -> None:
    _, settings = outbox
    asked: list[float] = []
    delivered: list[Due] = []
    monkeypatch.setattr(WakeUps, "request", lambda _, delay=0.0: asked.append(delay))
    monkeypatch.setattr(WakeUps, "request_delivery", lambda _, due: delivered.append(due))
    client = create_app(Settings.from_environ(settings)).test_client()
    assert client.put("/v1/targets/webhook/x", json={"endpoint": "http://127.0.0.1:9/"}).status_code < 300
    assert client.post("/v1/rules", json={"target": "webhook:x", "bucket": "bucket", "events": ["*"]}).status_code < 300
    asked.clear()
    content = {None: _body("k"), b"for no target": _body("k", bucket="other")}.get(body, body)
    answer = client.open(path, method=method, data=content, content_type="application/json")
    assert (answer.status_code < 300) == (body != b"no events"), answer.text
    assert bool(asked or any(delivered)) == wakes
    assert not asked or path != "/v1/events", "the drain has nothing to do"


def test_settings_that_mc_admin_changes_wake_the_drain(
    outbox: tuple[Database, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They close the circuit breaker of a target that was unavailable."""
    _, settings = outbox
    access, secret = "mc-admin", "the/secret+key"
    settings |= {"BUCKETWIRE_ACCESS_KEY": access, "BUCKETWIRE_SECRET_KEY": secret}
    asked: list[float] = []
    monkeypatch.setattr(WakeUps, "request", lambda _, delay=0.0: asked.append(delay))
    path = "/minio/admin/v3/set-config-kv"
    content = encrypt(b"notify_webhook:x endpoint=http://127.0.0.1:9/", secret)
    signed = AWSRequest("PUT", f"http://localhost{path}", data=content)
    S3SigV4Auth(Credentials(access, secret), "s3", "").add_auth(signed)
    client = create_app(Settings.from_environ(settings)).test_client()
    assert client.put(path, data=content, headers=dict(signed.headers)).status_code == 200
    assert asked


def test_spooled_events_and_redeliveries_wake_the_drain_when_they_are_recorded(
    outbox: tuple[Database, dict[str, str]], tmp_path: Path
) -> None:
    database, _ = outbox
    asked: list[str] = []
    spool = Spool(tmp_path / "spool")
    feeder = SpoolFeeder(spool, database, lambda: asked.append("fed"))
    assert feeder.feed() == 0
    assert asked == []
    spool.append([event("spooled")])
    assert feeder.feed() == 1
    assert asked == ["fed"]

    lease = Lease(registry(database).target(add_target(database)).row_id, "gone", {})
    requests = RedeliveryRequests(database, lambda: asked.append("redelivery"))
    requests.add(lease, "arn", {})
    assert asked == ["fed"]
    requests.add(lease, "arn", {(0, 1): 1})
    assert asked == ["fed", "redelivery"]
    requests.close()


def test_the_drain_that_spooled_events_wake_finds_them(outbox: tuple[Database, dict[str, str]], tmp_path: Path) -> None:
    database, _ = outbox
    target, found = add_target(database), list[TargetId]()
    spool = Spool(tmp_path / "spool")
    spool.append([event("spooled")])
    SpoolFeeder(spool, database, lambda: found.extend(due.target for due in DueWork(database).find(now_ms()))).feed()
    assert found == [target]


def _body(key: str, bucket: str = "bucket") -> bytes:
    return b'{"Records":[' + event(key, bucket=bucket).record.encode() + b"]}"


def test_the_messages_of_all_queues_are_counted_over_one_connection(broker_url: str) -> None:
    missing = TargetId("webhook", "missing")
    with connected(broker_url) as connection, contextlib.closing(Broker(broker_url)) as broker:
        queue_of_target = declared(connection, queue_name(TARGET))
        assert broker.publish(queue_of_target.name, "deliver", ("the:arn",))
        until(lambda: waiting(connection.channel(), queue_of_target.name) == 1, 30, what="the message")
        opened = broker._connection
        lengths = [broker.length(queue_name(target)) or 0 for target in (TARGET, missing, TARGET, missing, TARGET)]
        assert lengths == [1, 0, 1, 0, 1]
        assert broker._connection is opened
        queue_of_target.delete()
    assert not opened.connected


def test_a_queue_is_declared_before_a_message_would_be_lost(broker_url: str) -> None:
    name = queue_name(TargetId("webhook", "new"))
    with connected(broker_url) as connection, contextlib.closing(Broker(broker_url)) as broker:
        for number in range(3):
            assert broker.publish(name, "deliver", ("the:arn",), declare=True)
            until(lambda: broker.length(name) == number + 1, 30, what="the message")  # noqa: B023
        queue(name)(connection.channel()).delete()


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_a_queue_that_the_broker_refuses_concerns_no_other_and_is_tried_again(
    broker_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tune(monkeypatch, broker_module, "POLICY", refused_seconds=0.0)
    refused, other = queue_name(TargetId("webhook", "refused")), queue_name(TargetId("webhook", "other"))
    with connected(broker_url) as connection, contextlib.closing(Broker(broker_url)) as broker:
        classic = queue(refused)
        classic.queue_arguments = {"x-queue-type": "classic"}
        bound = classic(connection.channel())
        bound.declare()
        for _ in range(2):
            assert not broker.publish(refused, "deliver", ("the:arn",), declare=True)
            assert broker.publish(other, "deliver", ("another:arn",), declare=True)
        assert [record.levelname for record in caplog.records] == ["ERROR"]
        bound.delete()
        until(lambda: broker.publish(refused, "deliver", ("the:arn",), declare=True), 30, what="the queue, made anew")
        for name in (refused, other):
            queue(name)(connection.channel()).delete()


@pytest.mark.parametrize("broker_url", ["rabbitmq"], indirect=True)
def test_a_message_that_the_broker_does_not_take_concerns_no_other_queue(broker_url: str) -> None:
    """A policy of the broker's operator limits a queue, and has it answer with a negative confirmation."""
    full, other = queue_name(TargetId("webhook", "full")), queue_name(TargetId("webhook", "free"))
    with connected(broker_url) as connection, contextlib.closing(Broker(broker_url)) as broker:
        limited = queue(full)
        limited.queue_arguments = {"x-queue-type": "quorum", "x-max-length": 1, "x-overflow": "reject-publish"}
        bound = limited(connection.channel())
        bound.declare()
        sent = [broker.publish(full, "deliver", ("the:arn",)) for _ in range(20)]
        assert sent[0]
        assert not sent[-1]
        assert broker.publish(other, "deliver", ("another:arn",), declare=True)
        for name in (full, other):
            queue(name)(connection.channel()).delete()


def test_a_queue_that_the_user_may_not_use_need_not_be_deleted(caplog: pytest.LogCaptureFixture) -> None:
    declarations = broker_module.QueueDeclarations()
    declarations.refuse("one", AccessRefused("ACCESS_REFUSED"))
    declarations.refuse("other", PreconditionFailed("PRECONDITION_FAILED"))
    forbidden, different = caplog.messages
    assert "Let the broker's user use it: ACCESS_REFUSED" in forbidden.replace("(0, 0): (403) ", "")
    assert "Delete the queue, and it is created again" in different


@pytest.mark.nightly(
    "each way to be away, with one end of a task: they are two things",
    when=lambda does, away: (does, away) not in {("ack", "server"), ("requeue", "closed")},
)
@pytest.mark.parametrize("does", ["ack", "reject", "requeue"])
@pytest.mark.parametrize("away", ["closed", "server"])
def test_a_task_that_ends_while_the_broker_is_away_frees_its_slot(does: str, away: str) -> None:
    """Its worker has closed the connection already, or does not know yet that the server has gone."""
    with (
        services.redis() as broker,
        Connection(broker.url, transport_options=transport_options(broker.url)) as it,
    ):
        channel = it.channel()
        consumer = Consumer(channel, [queue(SERVICE_QUEUE)], on_message=(taken := []).append)
        Producer(channel).publish({}, routing_key=SERVICE_QUEUE, declare=[queue(SERVICE_QUEUE)])
        with consumer:
            it.drain_events(timeout=5)
        [message] = taken
        assert message.delivery_tag in channel.qos._delivered
        broker.stop()
        if away == "closed":
            it.close()
            channel._disconnect_pools()  # a connection that kombu began anew while it closed the others
        end = {
            "ack": message.ack_log_error,
            "reject": message.reject_log_error,
            "requeue": partial(message.reject_log_error, requeue=True),
        }[does]
        end(logging.getLogger("test"), it.connection_errors + it.channel_errors)
        channel.qos._flush()
        assert message.delivery_tag not in channel.qos._delivered


def test_a_worker_closes_a_channel_of_a_broker_that_was_away_and_is_back() -> None:
    """The transport was closed while the broker was away; kombu's channel finds the broker again, but no address."""
    with (
        services.redis() as broker,
        Connection(broker.url, transport_options=transport_options(broker.url)) as it,
    ):
        channel = it.default_channel
        consumer = Consumer(channel, [queue(SERVICE_QUEUE)], on_message=(taken := []).append)
        Producer(channel).publish({}, routing_key=SERVICE_QUEUE, declare=[queue(SERVICE_QUEUE)])
        consumer.consume()
        it.drain_events(timeout=5)
        it._do_close_transport()
        channel._disconnect_pools()
        it.close()
        assert channel.closed
    assert len(taken) == 1


def test_what_a_worker_had_left_to_do_with_a_lost_connection_is_no_traceback(caplog: pytest.LogCaptureFixture) -> None:
    """The loop of Celery carries out a read of the connection that it has just lost, and logs what that raises."""
    loops = logging.getLogger("celery.worker.loops")
    for error in (RecoverableConnectionError("Socket was disconnected"), RedisError(), OSError(), ValueError("ours")):
        loops.error("Error cleaning up after event loop: %r", error, exc_info=error)
    assert [record.exc_info and record.exc_info[0] for record in caplog.records] == [ValueError]
