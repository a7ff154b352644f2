"""What is AMQP's own as a source: one consumer, acknowledgements, properties, and what RabbitMQ does to a consumer."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pika
import pytest
from amqp import Message as AmqpMessage
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError, UnroutableError

from app.config.fields.fields import parse
from app.config.sources.amqp import AmqpSourceSettings
from app.events.model import Event
from app.events.parsing import Message
from app.outbox.engine.database import Database
from tests.contract.probes.amqp import QUEUE
from tests.contract.source_probes.amqp import Queue
from tests.services import until
from tests.support.builders import body
from tests.support.pulled_events import (
    KEYS,
    Sources,
    by_key,
    check_minio,
    messages,
    numbered,
    pull,
    recorded,
    recorded_by_key,
    running,
    wait_for,
)
from workers.sources.base import Opened, SourceUnavailable
from workers.systems.amqp.source import AmqpSource

# The server is that of the contracts of source and target.
pytestmark = pytest.mark.parametrize("served", ["amqp"], indirect=True)

KINDS: dict[str, dict[str, Any]] = {
    "classic": {},
    "quorum": {"x-queue-type": "quorum"},
    "one-active": {"x-queue-type": "quorum", "x-single-active-consumer": True},
}


@pytest.fixture
def queue(served: Queue) -> Queue:
    served.renew()
    return served


def source_of(values: Mapping[str, Any], **more: str) -> AmqpSource:
    """A source, not opened yet."""
    return AmqpSource(parse(AmqpSourceSettings, {**values, **more}))


def bodies(pulled: Sequence[Message]) -> list[bytes]:
    return [message.body for message in pulled]


@pytest.mark.parametrize("kind", KINDS)
def test_a_queue_has_one_consumer_and_the_next_one_goes_on_where_it_ended(queue: Queue, kind: str) -> None:
    with queue.target.channel() as channel:
        channel.queue_delete(kind)
        channel.queue_declare(kind, durable=True, arguments=KINDS[kind])
        channel.confirm_delivery()
        texts = [str(number).encode() for number in range(50)]
        for text in texts:
            channel.basic_publish("", kind, text, pika.BasicProperties(delivery_mode=2))
    values = {**queue.values(), "queue": kind, "batch_size": "10"}
    with closing(source_of(values)) as first, closing(source_of(values)) as second:
        first.open({})
        pulled = pull(first, 10, 10)
        assert first.lag() == 50
        with pytest.raises(SourceUnavailable, match="another consumer"):
            second.open({})
        first.commit(pulled[:4])
        first.close()
        until(lambda: opens(second), what="the second consumer")
        assert bodies(pull(second, 20, 10)) == texts[4:24]
        assert second.lag() == 46


def opens(source: AmqpSource) -> bool:
    try:
        source.open({})
    except SourceUnavailable:
        return False
    return True


DROPPED = "dropped"  # the queue that gets what another one drops
DROPPING: dict[str, tuple[dict[str, Any], slice]] = {  # and what stays of ten messages
    "lazy": ({"x-queue-mode": "lazy"}, slice(0, 10)),
    "drop-head": ({"x-max-length": 4, "x-overflow": "drop-head"}, slice(6, 10)),
    "drop-head of a quorum queue": ({"x-queue-type": "quorum", "x-max-length": 4}, slice(6, 10)),
    "expired": ({"x-message-ttl": 0}, slice(0, 0)),
}


def declare(channel: BlockingChannel, arguments: Mapping[str, Any]) -> None:
    """Make the queue anew; what it drops goes to another one."""
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": DROPPED}
    for name, given in ((DROPPED, {}), (QUEUE, {**letters, **arguments})):
        channel.queue_delete(name)
        channel.queue_declare(name, durable=True, arguments=given)
    channel.confirm_delivery()


def publish(channel: BlockingChannel, sent: Sequence[Event], priority: int | None = None) -> list[Event]:
    """Publish, and return what the server has not confirmed."""
    refused = []
    for one in sent:
        try:
            channel.basic_publish("", QUEUE, body(one), pika.BasicProperties(delivery_mode=2, priority=priority))
        except NackError:
            refused.append(one)
    return refused


@pytest.mark.promise
@pytest.mark.parametrize("kind", DROPPING)
def test_what_a_queue_keeps_is_recorded_once_and_in_order_and_what_it_drops_by_a_source_of_its_own(
    queue: Queue, database: Database, kind: str
) -> None:
    sources, events = Sources(database), numbered(10)
    arguments, kept = DROPPING[kind]
    with queue.target.channel() as channel:
        declare(channel, arguments)
        assert publish(channel, events) == []
    source = sources.put("amqp", queue.values())
    with running(database):
        wait_for(database, events[kept])
        until(lambda: sources.stored(source).lag == 0, what="no lag")
        assert recorded(database) == [one.id for one in events[kept]]
        sources.put("amqp", {**queue.values(), "queue": DROPPED}, name="dropped")
        wait_for(database, events)
    assert sources.stored(source).messages == len(events[kept])
    assert len(recorded(database)) == len(events)


@pytest.mark.promise
def test_what_a_full_queue_refuses_is_recorded_when_the_sender_sends_it_again(queue: Queue, database: Database) -> None:
    sources, events = Sources(database), numbered(10)
    with queue.target.channel() as channel:
        declare(channel, {"x-max-length": 4, "x-overflow": "reject-publish"})
        left = publish(channel, events)
        assert left == events[4:]
        sources.put("amqp", queue.values())
        with running(database):
            while left:
                left = publish(channel, left[:1]) + left[1:]
            wait_for(database, events)
    assert recorded(database) == [one.id for one in events]


@pytest.mark.promise
def test_a_queue_with_priorities_keeps_the_order_of_each_object_that_has_one(queue: Queue, database: Database) -> None:
    sources, events = Sources(database), numbered(60)
    priorities = {one.key: number % 3 for number, one in enumerate(events[:KEYS])}
    with queue.target.channel() as channel:
        declare(channel, {"x-max-priority": 5})
        for one in events:
            assert publish(channel, [one], priorities[one.key]) == []
    sources.put("amqp", {**queue.values(), "batch_size": "4"})
    with running(database):
        wait_for(database, events)
    assert recorded_by_key(database) == by_key(events)
    assert recorded(database) != [one.id for one in events]


@pytest.mark.promise
def test_a_queue_that_nobody_used_and_is_gone_is_named_and_pulled_from_when_it_is_there_again(
    queue: Queue, database: Database
) -> None:
    sources, events = Sources(database), numbered(2)
    with queue.target.channel() as channel:
        declare(channel, {"x-expires": 1000})
        publish(channel, events[:1])
        source = sources.put("amqp", queue.values())
        with running(database):
            wait_for(database, events[:1])
        until(lambda: not is_there(channel), what="a queue that is gone")
        with running(database):
            until(lambda: sources.state(source) == "failing", what="a failing source")
            assert "no queue 'bucketevents'" in sources.stored(source).error
            declare(channel, {})
            publish(channel, events[1:])
            wait_for(database, events)


def is_there(channel: BlockingChannel) -> bool:
    """Whether there is such a queue. To ask for it would be a use of it; a message is none."""
    try:
        channel.basic_publish("", QUEUE, b"", mandatory=True)
    except UnroutableError:
        return False
    return True


def test_a_quorum_queue_drops_what_it_had_to_deliver_too_often(queue: Queue, database: Database) -> None:
    sources, events = Sources(database), numbered(2)
    with queue.target.channel() as channel:
        declare(channel, {"x-queue-type": "quorum", "x-single-active-consumer": True, "x-delivery-limit": 2})
        publish(channel, events)
        pulls = 0
        while dropped(channel) < len(events):
            with closing(source_of(queue.values())) as source:
                until(lambda: opens(source), what="the only consumer")
                pulls += bool(source.pull(10, 1.0))
    assert pulls == 3
    source = sources.put("amqp", {**queue.values(), "queue": DROPPED})
    with running(database):
        wait_for(database, events)
    assert recorded(database) == [one.id for one in events]


def dropped(channel: BlockingChannel) -> int:
    """How many messages the queue has dropped."""
    return int(channel.queue_declare(DROPPED, passive=True).method.message_count)


STREAM = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": 8000, "x-max-length-bytes": 20_000}


@pytest.fixture
def stream(queue: Queue) -> Iterator[BlockingChannel]:
    """The channel of a sender; the queue is an empty stream, which keeps some 20 kB in segments of 8 kB."""
    with queue.target.channel() as channel:
        channel.queue_delete(QUEUE)
        channel.queue_declare(QUEUE, durable=True, arguments=STREAM)
        channel.confirm_delivery()
        yield channel


def read_whole(source: AmqpSource, positions: Mapping[str, str]) -> tuple[Opened, Sequence[Message]]:
    """What a source that is opened at these positions says, and all messages that it gets."""
    opened = source.open(positions)
    pulled: list[Message] = []
    until(lambda: (pulled.extend(source.pull(1000, 0.5)), source.lag() == 0)[1], what="the end of the stream")
    source.commit(pulled)
    source.close()
    return opened, pulled


@pytest.mark.promise
def test_a_stream_is_read_from_its_first_message_and_on_from_its_position(
    queue: Queue, stream: BlockingChannel
) -> None:
    forged = pika.BasicProperties(headers={"x-stream-offset": 10**9})
    unreadable = pika.BasicProperties(timestamp=2**63)
    texts = [str(number).encode() for number in range(9)]
    for text, properties in zip(texts, [None, forged, unreadable] * 3, strict=True):
        stream.basic_publish("", QUEUE, text, properties)
    with closing(source_of(queue.values())) as source:
        opened, pulled = read_whole(source, {})
        assert (opened, bodies(pulled)) == (Opened(), texts)
        assert {message.share for message in pulled[::3]} == {"stream"}
        opened, again = read_whole(source, {"stream": pulled[3].position})
        assert (opened, bodies(again)) == (Opened(), texts[4:])


@pytest.mark.promise
@pytest.mark.parametrize("sent", [1, 30], ids=["shorter", "longer"])
def test_a_stream_that_was_made_again_is_read_from_its_first_message(
    queue: Queue, stream: BlockingChannel, sent: int
) -> None:
    for number in range(10):
        stream.basic_publish("", QUEUE, b"old %d" % number)
    with closing(source_of(queue.values(), timeout="2s")) as source:
        _, pulled = read_whole(source, {})
        stored = {"stream": pulled[-1].position}
        stream.queue_delete(QUEUE)
        stream.queue_declare(QUEUE, durable=True, arguments=STREAM)
        with pytest.raises(SourceUnavailable, match="read as soon as it has a message"):
            source.open(stored)
        texts = [b"new %d" % number for number in range(sent)]
        for text in texts:
            stream.basic_publish("", QUEUE, text)
        opened, pulled = read_whole(source, stored)
        assert opened.moved == {"stream": "-1:"}
        assert "made again" in opened.lost[0]
        assert bodies(pulled) == texts
        assert read_whole(source, {**opened.moved, "stream": pulled[-1].position}) == (Opened(), [])


@pytest.mark.promise
def test_messages_that_a_stream_has_dropped_before_they_were_read_are_told(
    queue: Queue, stream: BlockingChannel
) -> None:
    stream.basic_publish("", QUEUE, b"first")
    with closing(source_of(queue.values())) as source:
        _, pulled = read_whole(source, {})
        for number in range(2000):
            stream.basic_publish("", QUEUE, b"%d" % number * 50)
        opened, kept = read_whole(source, {"stream": pulled[-1].position})
        [lost] = opened.lost
        assert re.search(r"begins at \d+ now, and was read up to 0", lost)
        assert not opened.moved
        assert kept[-1].body == b"1999" * 50


def test_a_source_that_waits_longer_than_the_heartbeat_keeps_its_connection(queue: Queue) -> None:
    queue.send([b"one", b"two"])
    with closing(source_of({**queue.values(), "url": f"{queue.server.url}?heartbeat=1"})) as source:
        source.open({})
        pulled = pull(source, 2)
        sent = {source._connection.last_heartbeat_sent}

        def four_heartbeats() -> bool:
            source.commit([])
            sent.add(source._connection.last_heartbeat_sent)
            return len(sent) > 8

        until(four_heartbeats, what="heartbeats")
        source.commit(pulled)
        until(lambda: source.lag() == 0, what="no messages")


def test_no_more_is_read_than_there_is_room_for(queue: Queue) -> None:
    sent = [bytes([number]) * (1 << 20) for number in range(100)]
    queue.send(sent)
    with closing(source_of(queue.values())) as source:
        source.open({})
        got: list[bytes] = []
        most = 0

        def complete() -> bool:
            pulled = source.pull(1000, 0.5)
            nonlocal most
            most = max(most, source._arrived_bytes)
            assert sum(map(len, bodies(pulled))) <= 1 << 24
            source.commit(pulled)
            got.extend(bodies(pulled))
            return len(got) == len(sent)

        until(complete, 120, what="every message")
        assert got == sent
        assert most <= (1 << 26) + (1 << 20)


def test_a_queue_that_is_missing_or_deleted_is_named_and_pulled_from_when_it_is_there(
    queue: Queue, database: Database
) -> None:
    sources, events = Sources(database), numbered(2)
    with queue.target.channel() as channel:
        channel.queue_delete(QUEUE)
    source = sources.put("amqp", queue.values())
    with running(database):
        until(lambda: sources.state(source) == "failing", what="a failing source")
        assert "no queue 'bucketevents'" in sources.stored(source).error
        assert "create the queue" in sources.stored(source).error
        queue.renew()
        queue.send(messages(events[:1]))
        wait_for(database, events[:1])
        until(lambda: sources.state(source) == "running", what="a running source")
        with queue.target.channel() as channel:
            channel.queue_delete(QUEUE)
        until(lambda: sources.state(source) == "failing", what="a failing source")
        queue.renew()
        queue.send(messages(events[1:]))
        wait_for(database, events)


@pytest.mark.promise
def test_a_queue_that_is_purged_is_pulled_on(queue: Queue, database: Database) -> None:
    sources, events = Sources(database), numbered(500)
    source = sources.put("amqp", {**queue.values(), "batch_size": "5"})
    queue.send(messages(events[:400]))
    with running(database):
        until(lambda: len(recorded(database)) > 20, what="progress")
        with queue.target.channel() as channel:
            channel.queue_purge(QUEUE)
        queue.send(messages(events[400:]))
        wait_for(database, events[400:])
        until(lambda: sources.stored(source).lag == 0, what="no lag")
    before = recorded(database)[:-100]
    assert recorded(database) == [*(one.id for one in events[: len(before)]), *(one.id for one in events[400:])]


@pytest.mark.promise
def test_properties_that_cannot_be_read_stop_nothing(queue: Queue, database: Database) -> None:
    events = numbered(7)
    hostile = [
        pika.BasicProperties(timestamp=2**63),
        pika.BasicProperties(headers={"n": 10**12, "b": b"\xff\xfe", "t": {"u": [None, True]}}),
        pika.BasicProperties(content_encoding="utf-16"),
        pika.BasicProperties(headers=nested(1500)),
    ]
    with queue.target.channel() as channel, deep_recursion():
        channel.confirm_delivery()
        for body, properties in zip(messages(events[:-1]), [None, *hostile, None], strict=True):
            channel.basic_publish("", QUEUE, body, properties)
    with queue.server.connection() as connection:
        latin = Latin("é")
        channel = connection.channel()
        for text in (b"", b"{"):
            channel.basic_publish(AmqpMessage(text, content_type=latin, message_id=latin), routing_key=QUEUE)
        surrogate = {"a\ud800": "b\ud800"}
        rejected = AmqpMessage(b"[", content_type="c\ud800", application_headers=surrogate)
        channel.basic_publish(rejected, routing_key=QUEUE)
        channel.exchange_declare("every", "fanout")
        channel.queue_bind(QUEUE, "every")
        channel.basic_publish(AmqpMessage(messages(events[-1:])[0]), exchange="every", routing_key=latin)
        channel.exchange_delete("every")
    sources = Sources(database)
    source = sources.put("amqp", queue.values())
    with running(database):
        wait_for(database, events)
        until(lambda: sources.stored(source).rejected == 2, what="the rejected messages")
        assert sources.stored(source).messages == 10
    assert recorded(database) == [one.id for one in events]


def nested(depth: int) -> dict[str, Any]:
    """Tables in each other."""
    table: dict[str, Any] = {}
    for _ in range(depth):
        table = {"": table}
    return table


@contextmanager
def deep_recursion() -> Iterator[None]:
    """Let the client write what a server takes and a reader may not expect."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


class Latin(str):
    """A text as clients write it that do not look at its bytes."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return super().encode("latin-1")


def test_what_a_real_minio_publishes_is_recorded(queue: Queue, database: Database) -> None:
    with queue.target.channel() as channel:
        channel.exchange_declare("frontend", "fanout", durable=True)
        channel.queue_bind(QUEUE, "frontend")
    settings = {"EXCHANGE": "frontend", "EXCHANGE_TYPE": "fanout", "DURABLE": "on", "DELIVERY_MODE": "2"}
    settings |= {"URL": queue.server.url, "PUBLISHING_CONFIRMS": "on"}
    check_minio(database, "amqp", queue.values(), "amqp", **settings)
