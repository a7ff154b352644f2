"""The main job through real processes: in at the API, out at a target, whatever stands between them is."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import amqp
import orjson
import psycopg2
import pytest
import sqlalchemy as sa

from app.config.settings import KEY_PREFIX
from app.events.model import Event
from tests import services
from tests.services import until
from tests.support.builders import body, event, records, some
from tests.support.service_processes import Role, System, drain_worker, start_all, stop_all, system
from tests.support.target_readers import Expected, Record, length, listed, posted

LEASE = 4  # seconds: what a lost wake-up may cost
BROKER_PASSWORD = "br0ker-passw0rd"
API_TOKENS: dict[str, Any] = {scope: f"{scope}-{uuid4().hex}" for scope in ("ingest", "admin")}
SHORT: dict[str, Any] = {"lease_ttl": f"{LEASE}s", "lease_max_work": "3s"}
TOKENS: dict[str, Any] = {"api_tokens": ",".join(f"{scope}:{scope}:{token}" for scope, token in API_TOKENS.items())}


def running(whole: System) -> System:
    """All of its processes run, whatever an earlier test did to them."""
    start_all([role for role in whole.roles if not role.running])
    return whole


@pytest.fixture(scope="module")
def broker() -> Iterator[services.Redis]:
    with services.redis(password=BROKER_PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def over_redis(postgres_server: services.Postgres, broker: services.Redis) -> Iterator[System]:
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    with system(url, broker.url, token=API_TOKENS["admin"], **SHORT, **TOKENS) as whole:
        yield whole


@pytest.fixture(scope="module")
def over_rabbitmq(postgres_server: services.Postgres, rabbitmq_server: services.RabbitMQ) -> Iterator[System]:
    url = postgres_server.create_database(f"outbox_{uuid4().hex[:12]}")
    with system(url, rabbitmq_server.url, **SHORT) as whole:
        yield whole


@pytest.fixture
def whole(over_redis: System) -> System:
    return running(over_redis)


@pytest.fixture
def bucket() -> str:
    """A bucket of the test's own, so that rules of one test say nothing to another's events."""
    return f"bucket-{uuid4().hex[:12]}"


def redis_target(whole: System, server: services.Redis, bucket: str, **settings: Any) -> str:
    """A target that appends to the list called like the bucket; its `type:name`."""
    place = f"{services.LOOPBACK}:{server.port}"
    whole.add_target(f"redis:{bucket}", bucket, address=place, key=bucket, format="access", **settings)
    return f"redis:{bucket}"


def webhook_target(whole: System, receiver: services.Receiver, bucket: str, **settings: Any) -> str:
    whole.add_target(f"webhook:{bucket}", bucket, endpoint=receiver.url, **settings)
    return f"webhook:{bucket}"


def arrives(server: services.Redis, key: str, count: int, timeout: float = 10) -> None:
    """Return when so many events are in the list."""
    until(lambda: length(server, key) >= count, timeout, what=f"{count} events at the target")


def found_of(whole: System, subject: str) -> str:
    """What the doctor says about a target."""
    findings = whole.ask("GET", "/v1/doctor").json()["findings"]
    return "; ".join(finding["text"] for finding in findings if finding["subject"] == subject)


def goes_through(whole: System, server: services.Redis, bucket: str) -> None:
    """An event in at the API, the same event out at a Redis target, once."""
    redis_target(whole, server, bucket)
    sent = event("a b+c.txt", bucket=bucket)
    receipt = whole.post(body(sent))
    assert receipt["recorded"] == 1
    arrives(server, bucket, 1)
    until(whole.settled, 30)
    assert listed(server, bucket) == records(sent)
    assert [entry.difference for entry in whole.audits()] == [0] * len(whole.audits())


@pytest.mark.nightly("whole services over PostgreSQL and SQLite; the outbox on all four databases")
def test_an_event_goes_through_on_every_outbox_database(
    outbox_url: str, redis_server: services.Redis, broker: services.Redis, bucket: str
) -> None:
    with broker.client() as client:
        client.flushall()
    # Another database of the broker's, so that the workers of other tests do not take the tasks of this one.
    with system(outbox_url, broker.url.removesuffix("0") + "1") as whole:
        goes_through(whole, redis_server, bucket)


def test_an_event_goes_through_over_rabbitmq(over_rabbitmq: System, redis_server: services.Redis, bucket: str) -> None:
    goes_through(running(over_rabbitmq), redis_server, bucket)


def test_a_target_gets_the_events_that_pass_the_filters_of_its_rule(
    over_redis: System, redis_server: services.Redis, bucket: str
) -> None:
    whole = running(over_redis)
    redis_target(whole, redis_server, bucket)
    [rule] = whole.ask("GET", "/v1/rules", params={"bucket": bucket}).json()["rules"]
    whole.ask("DELETE", f"/v1/rules/{rule['number']}")
    filters = {"regex": "in/[0-9]+[.]jpg", "tags": {"team": "blue"}, "min_size": "1KiB"}
    whole.ask("POST", "/v1/rules", json={"bucket": bucket, "events": ["*"], "target": f"redis:{bucket}"} | filters)

    def ceph(key: str, size: int, team: str) -> dict[str, Any]:
        thing = {"key": key, "size": size, "eTag": "e", "tags": [{"key": "team", "val": team}]}
        record = {
            "eventSource": "ceph:s3",
            "eventName": "ObjectCreated:Put",
            "eventTime": "2026-11-22T10:00:00.000001Z",
        }
        return record | {"s3": {"bucket": {"name": bucket}, "object": thing}}

    sent = [
        ceph("in/1.jpg", 1024, "blue"), ceph("in/1.jpg", 1023, "blue"), ceph("in/x.jpg", 1024, "blue"),
        ceph("in/2.jpg", 1024, "red"), ceph("in/3.jpg", 5000, "blue"),
    ]  # fmt: skip
    receipt = whole.post(orjson.dumps({"Records": sent}))
    assert (receipt["recorded"], list(receipt["matched"].values())) == (5, [2])
    arrives(redis_server, bucket, 2)
    until(lambda: whole.settled(f"redis:{bucket}"), 30)
    keys = [record["s3"]["object"]["key"] for record in listed(redis_server, bucket)]
    assert sorted(keys) == ["in%2F1.jpg", "in%2F3.jpg"]


def test_a_trace_context_goes_through_with_its_event_alone(
    whole: System, receiver: services.Receiver, bucket: str
) -> None:
    parent = f"00-{uuid4().hex}-00f067aa0ba902b7-01"
    webhook_target(whole, receiver, bucket)
    for key, trace in (("traced", {"traceparent": parent, "tracestate": "a=1"}), ("plain", {})):
        answer = whole.ask("POST", "/v1/events", content=body(event(key, bucket=bucket)), headers=trace)
        assert answer.status_code == 202
    until(lambda: len(receiver.requests()) == 2, 60, what="both events at the endpoint")
    found = {one.json()["Key"].partition("/")[2]: one.headers for one in receiver.requests()}
    assert (found["traced"].get("traceparent"), found["traced"].get("tracestate")) == (parent, "a=1")
    assert not {"traceparent", "tracestate"} & {name.lower() for name in found["plain"]}
    for key, trace in (("traced", parent), ("plain", None)):
        [shown] = whole.ask("GET", f"/v1/events?bucket={bucket}&key={key}").json()["events"]
        assert shown.get("traceparent") == trace


def test_every_queue_on_rabbitmq_is_a_quorum_queue(
    over_rabbitmq: System, rabbitmq_server: services.RabbitMQ, redis_server: services.Redis, bucket: str
) -> None:
    goes_through(running(over_rabbitmq), redis_server, bucket)
    for name in ("bucketwire", f"target.redis.{bucket}"):
        with rabbitmq_server.connection() as connection:
            channel = connection.channel()
            channel.queue_declare(
                name, durable=True, exclusive=False, auto_delete=False, arguments={"x-queue-type": "quorum"}
            )
            with pytest.raises(amqp.PreconditionFailed):
                channel.queue_declare(
                    name, durable=True, exclusive=False, auto_delete=False, arguments={"x-queue-type": "classic"}
                )
    assert "direct exchange" not in over_rabbitmq.logs(), "no task is delayed, so nobody needs to know"


@pytest.mark.nightly("queues that RabbitMQ refuses, in tests/integration/test_wakeups.py")
def test_a_queue_that_rabbitmq_refuses_concerns_its_own_target_alone(
    over_rabbitmq: System, rabbitmq_server: services.RabbitMQ, redis_server: services.Redis, bucket: str
) -> None:
    whole, refused = running(over_rabbitmq), f"{bucket}-refused"
    redis_target(whole, redis_server, bucket)
    sent = some(bucket, 40)
    with rabbitmq_server.connection() as connection:
        # Whoever made it, this service has not: it declares its queues as quorum queues.
        connection.channel().queue_declare(f"target.redis.{refused}", durable=True, auto_delete=False)
        redis_target(whole, redis_server, refused)
        whole.ask("POST", "/v1/rules", json={"bucket": bucket, "events": ["*"], "target": f"redis:{refused}"})
        for number in range(0, 20, 5):
            whole.post(body(*sent[number : number + 5]))
            arrives(redis_server, bucket, number + 5, 30)
        stop_all([whole.drain, *whole.workers])
        whole.post(body(*sent[20:]))
        start_all([whole.drain, *whole.workers])
        arrives(redis_server, bucket, 40, 30)
        assert length(redis_server, refused) == 0
        [worker] = whole.workers
        until(lambda: f"refuses the queue target.redis.{refused}" in worker.said(), 30, what="an error")
        assert "inequivalent arg 'x-queue-type'" in worker.said(), "why it is refused"
        until(
            lambda: "which the broker refuses" in found_of(whole, f"redis:{refused}"), 30, what="the doctor's finding"
        )
        assert found_of(whole, f"redis:{bucket}") == "gets events"
        connection.channel().queue_delete(f"target.redis.{refused}")
    arrives(redis_server, refused, 40, 60)
    until(lambda: found_of(whole, f"redis:{refused}") == "gets events", 30, what="its end")
    for key in (bucket, refused):
        assert Expected.of(records(*sent)).check(listed(redis_server, key), key) == 0


@pytest.mark.nightly("brokers that are emptied, in tests/integration/test_wakeups.py")
def test_a_redis_target_in_the_brokers_own_database_stops_nobody(
    whole: System, broker: services.Redis, redis_server: services.Redis, bucket: str
) -> None:
    redis_target(whole, redis_server, bucket)
    names = ("bucketwire", "spark", f"target.redis.{bucket}", "unacked", "unacked_index", "_kombu.binding.celeryev")
    place = {"address": f"{services.LOOPBACK}:{broker.port}", "password": BROKER_PASSWORD, "format": "access"}
    for number, key in enumerate(names):
        whole.add_target(f"redis:{bucket}-{number}", bucket, key=key, **place)
    sent = some(bucket, 20)
    for number in range(0, 20, 10):
        whole.post(body(*sent[number : number + 10]))
        arrives(redis_server, bucket, number + 10)
        until(lambda: whole.settled(*(f"redis:{bucket}-{place}" for place in range(len(names)))), 30)
    for number, key in enumerate(names):
        assert Expected.of(records(*sent)).check(listed(broker, key), key) == 0
        whole.ask("DELETE", f"/v1/targets/redis/{bucket}-{number}?force=true")
    with broker.client() as client:
        client.delete(*names)


@pytest.mark.nightly("wake-ups of several targets in tests/integration/test_wakeups.py")
def test_a_worker_starts_with_wakeups_of_several_targets_waiting_in_rabbitmq(
    over_rabbitmq: System, rabbitmq_server: services.RabbitMQ, redis_server: services.Redis, bucket: str
) -> None:
    whole = running(over_rabbitmq)
    lists = [f"{bucket}-{number}" for number in range(4)]
    for key in lists:
        goes_through(whole, redis_server, key)  # so that there is a queue
        whole.ask("POST", "/v1/rules", json={"bucket": bucket, "events": ["*"], "target": f"redis:{key}"})
    [worker] = whole.workers
    worker.stop()
    whole.post(body(event(bucket=bucket)))
    with rabbitmq_server.connection() as connection:
        channel = connection.channel()
        for key in lists:
            until(lambda key=key: waiting(channel, f"target.redis.{key}"), 30, what="a wake-up in each queue")  # type: ignore[misc]
        time.sleep(2 * LEASE)
        for key in lists:
            held = [channel.basic_get(f"target.redis.{key}") for _ in range(waiting(channel, f"target.redis.{key}"))]
            tasks = [message.headers["task"] for message in held if message is not None]
            assert {*tasks} == {"deliver"}
            assert len(tasks) <= 2, "the API's and the drain's: one that waits is not repeated"
    worker.start()
    for key in lists:
        arrives(redis_server, key, 1 + 1)


def waiting(channel: amqp.Channel, name: str) -> int:
    """How many messages are ready in a queue that is there."""
    declared: Any = channel.queue_declare(name, passive=True)
    return int(declared.message_count)


def test_wakeups_purged_from_rabbitmq_while_events_wait_lose_nothing(
    over_rabbitmq: System, rabbitmq_server: services.RabbitMQ, redis_server: services.Redis, bucket: str
) -> None:
    whole = running(over_rabbitmq)
    goes_through(whole, redis_server, bucket)  # so that there is a queue
    [worker] = whole.workers
    worker.stop()
    sent = some(bucket, 50)
    whole.post(body(*sent))
    with rabbitmq_server.connection() as connection:
        channel, name = connection.channel(), f"target.redis.{bucket}"
        until(lambda: waiting(channel, name), 30, what="a wake-up in the queue")
        assert channel.queue_purge(name)
        channel.queue_purge("bucketwire")
    worker.start()
    arrives(redis_server, bucket, 1 + 50, LEASE + 5)
    assert Expected.of(records(*sent)).check(listed(redis_server, bucket)[1:], "the list") == 0


def test_a_broker_emptied_while_events_wait_loses_nothing(
    whole: System, broker: services.Redis, redis_server: services.Redis, bucket: str
) -> None:
    redis_target(whole, redis_server, bucket)
    [worker] = whole.workers
    worker.stop()
    sent = some(bucket, 50)
    whole.post(body(*sent))
    until(lambda: length(broker, f"{KEY_PREFIX}target.redis.{bucket}"), 30, what="a wake-up in the queue")
    with broker.client() as client:
        client.flushall()
    worker.start()
    arrives(redis_server, bucket, 50, LEASE + 5)
    assert Expected.of(records(*sent)).check(listed(redis_server, bucket), "the list") == 0


def test_a_broker_emptied_under_running_workers_stops_nobody(
    whole: System, broker: services.Redis, redis_server: services.Redis, bucket: str
) -> None:
    redis_target(whole, redis_server, bucket)
    sent = some(bucket, 30)
    for number in range(3):
        with broker.client() as client:
            client.flushall()
        whole.post(body(*sent[10 * number : 10 * number + 10]))
        arrives(redis_server, bucket, 10 * number + 10, LEASE + 5)
    assert Expected.of(records(*sent)).check(listed(redis_server, bucket), "the list") == 0


@pytest.mark.nightly("two workers that stop and hand over, in test_scale.py")
def test_two_beats_and_two_drains_at_once_harm_nothing(
    whole: System, redis_server: services.Redis, bucket: str
) -> None:
    redis_target(whole, redis_server, bucket)
    more = [Role(["beat"], whole.settings, "is starting."), drain_worker(whole.settings)]
    sent: list[Event] = []
    with ExitStack() as stack:
        stack.callback(stop_all, more)
        start_all(more)
        for number in range(10):
            batch = some(bucket, 200, keys=50, first=200 * number)
            whole.post(body(*batch))
            sent += batch
        arrives(redis_server, bucket, len(sent), 20)
        until(lambda: whole.settled(f"redis:{bucket}"), 30)
    assert Expected.of(records(*sent)).check(listed(redis_server, bucket), "the list") == 0
    assert all(entry.difference == 0 for entry in whole.audits())


def test_a_target_made_while_workers_run_is_served_soon(
    whole: System, redis_server: services.Redis, bucket: str
) -> None:
    redis_target(whole, redis_server, bucket)
    whole.post(body(event(bucket=bucket)))
    arrives(redis_server, bucket, 1, timeout=5)  # workers look for new targets each second


@pytest.mark.nightly(
    "a webhook; each target knows when its server is unavailable, and its breaker opens",
    when=lambda kind: kind == "redis",
)
@pytest.mark.parametrize("kind", ["webhook", "redis"])
def test_a_target_that_is_down_costs_nobody_anything_and_is_served_soon_after_its_return(
    whole: System, redis_server: services.Redis, bucket: str, kind: str
) -> None:
    start: Any = {"webhook": services.receiver, "redis": services.redis}[kind]
    add: Any = {"webhook": webhook_target, "redis": redis_target}[kind]
    with start() as server:
        name = add(whole, server, bucket)

        def arrived() -> list[Record]:
            return posted(server) if kind == "webhook" else listed(server, bucket)

        redis_target(whole, redis_server, f"{bucket}-well")
        whole.ask("POST", "/v1/rules", json={"bucket": bucket, "events": ["*"], "target": f"redis:{bucket}-well"})
        server.kill()
        sent = some(bucket, 200)
        for number in range(5):  # the breaker opens, and probes fail meanwhile
            whole.post(body(*sent[40 * number : 40 * number + 40]))
            began = time.monotonic()
            arrives(redis_server, f"{bucket}-well", 40 * number + 40)
            assert time.monotonic() - began < 5, "others do not wait for it"
            until(lambda: whole.target(name)["state"] == "unavailable", 30)
        counters = whole.counters()[name]
        assert (counters.pending, counters.parked, counters.dead) == (200, 0, 0)

        server.start()
        began = time.monotonic()
        until(lambda: len(arrived()) >= 200, 20, what="the events at the target that is back")
        assert time.monotonic() - began < 10
        assert Expected.of(records(*sent)).check(arrived(), kind) == 0
        until(lambda: whole.target(name)["state"] == "running", 30)
        history = whole.ask("GET", "/v1/events", params={"bucket": bucket, "key": "k0"}).json()["events"]
        states = {delivery["state"] for one in history for delivery in one["delivery_states"]}
        assert states == {"settled"}
        assert whole.counters()[name].parked == whole.counters()[name].dead == 0


@pytest.mark.nightly("two workers that stop and hand over, in test_scale.py")
def test_a_worker_that_is_asked_to_stop_finishes_the_batch_in_hand_and_sends_nothing_twice(
    whole: System, receiver: services.Receiver, bucket: str
) -> None:
    receiver.set(delay=0.05)
    name = webhook_target(whole, receiver, bucket, sync="on", batch_size=50)
    [worker] = whole.workers
    sent = some(bucket, 400, keys=40)
    whole.post(body(*sent))
    receiver.wait(30)
    worker.ask_to_stop()
    until(lambda: not worker.running, 30, what="the end of the worker")
    worker.stop()
    arrived = len(posted(receiver))
    assert 30 <= arrived < 400, "it has to stop in the middle, else this shows nothing"
    assert whole.counters()[name].delivered == arrived
    receiver.set()
    worker.start()
    receiver.wait(400, timeout=LEASE + 10)
    until(lambda: whole.settled(name), 10)
    assert Expected.of(records(*sent)).check(posted(receiver), "the receiver") == 0


def test_messages_carry_ids_and_nothing_else(
    whole: System, broker: services.Redis, redis_server: services.Redis, bucket: str
) -> None:
    name = redis_target(whole, redis_server, bucket)
    stop_all([whole.drain, *whole.workers])
    with broker.client() as client:
        client.delete(f"{KEY_PREFIX}bucketwire", f"{KEY_PREFIX}target.redis.{bucket}")
    whole.post(body(event("telling-key.txt", bucket=bucket)))
    until(lambda: length(broker, f"{KEY_PREFIX}bucketwire"), 30, what="a message of beat's")
    until(lambda: length(broker, f"{KEY_PREFIX}target.redis.{bucket}"), 30, what="a wake-up of the API's")
    whole.drain.start()
    time.sleep(2 * LEASE)
    with broker.client() as client:
        held = client.lrange(f"{KEY_PREFIX}target.redis.{bucket}", 0, -1)
    assert isinstance(held, list)
    # What a queue is asked for a sign of life by waits there, too.
    wakeups = [one for one in held if orjson.loads(one)["headers"]["task"] == "deliver"]
    assert 1 <= len(wakeups) <= 2, "the API's and the drain's"
    for wakeup in wakeups:
        message = orjson.loads(wakeup)
        arguments, named, embedded = orjson.loads(b64decode(message["body"]))
        assert arguments == [whole.target(name)["arn"]]
        assert named == {}
        assert set(embedded.values()) == {None}
        assert b"telling" not in wakeup + b64decode(message["body"])
    assert length(redis_server, bucket) == 0


@pytest.mark.nightly("targets that are opened, in tests/integration/test_target_opening.py")
def test_a_target_is_opened_when_it_is_set_and_a_wrong_address_shows(
    whole: System, postgres_database: str, bucket: str
) -> None:
    """Over the API, the broker and a worker, without an event."""
    url = sa.make_url(postgres_database)
    dsn = f"host={url.host} port={url.port} user={url.username} password={url.password} dbname={url.database}"
    whole.ask("PUT", f"/v1/targets/postgresql/{bucket}", json={"connection_string": dsn, "table": "bucketevents"})
    nowhere = f"{services.LOOPBACK}:{services.free_port()}"
    whole.ask("PUT", f"/v1/targets/redis/{bucket}", json={"address": nowhere, "key": "k"})
    opening = f"postgresql:{bucket}", f"redis:{bucket}"
    until(lambda: all(whole.target(name)["opening"]["at"] for name in opening), 60, what="both tried")
    good, bad = (whole.target(name) for name in opening)
    assert good["opening"]["state"] == "opened"
    assert (bad["opening"]["state"], bad["state"]) == ("failed", "running")
    assert nowhere in bad["opening"]["reason"]
    with psycopg2.connect(dsn) as connection, connection.cursor() as rows:
        rows.execute("SELECT count(*) FROM bucketevents")
        assert rows.fetchone() == (0,)
    until(lambda: f"{bucket}:redis cannot be opened" in whole.logs(), 30, what="it is logged")
