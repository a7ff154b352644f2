"""What is SQS's own as a source: messages that are hidden for a time, groups, and the bodies that AWS sends."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from app.config.fields.fields import parse
from app.config.sources.sqs import SqsSourceSettings
from app.events.parsing import Message
from app.outbox.engine.database import Database
from tests import services
from tests.contract.probes.sqs import Fifo
from tests.contract.source_probes.sqs import Unordered
from tests.contract.source_probes.sqs_fifo import Groups
from tests.services import until
from tests.services.speed import slowness
from tests.support.frontend_records import TEST_EVENT, aws, eventbridge, sns
from tests.support.pulled_events import Sources, messages, numbered, pull, recorded, running, wait_for
from workers.sources.base import SourceUnavailable
from workers.systems.sqs.source import SqsSource

# The server is that of the contracts of source and target.
pytestmark = pytest.mark.parametrize("served", ["sqs"], indirect=True)


@pytest.fixture
def queue(served: Unordered) -> Unordered:
    served.renew()
    return served


@pytest.fixture
def groups(served: Unordered) -> Groups:
    """A FIFO queue of the same server."""
    target = Fifo.__new__(Fifo)
    target.server, target._gateways = served.target.server, served.target._gateways
    probe = Groups(target)
    probe.renew()
    return probe


def source_of(values: Mapping[str, Any], *, visibility: float = 30.0) -> SqsSource:
    """A source, not opened yet."""
    return SqsSource(replace(parse(SqsSourceSettings, values), visibility=visibility))


def texts(pulled: Sequence[Message]) -> list[str]:
    return [message.body.decode() for message in pulled]


def test_what_aws_sends_is_recorded(queue: Unordered, database: Database) -> None:
    bodies = [
        {"Records": [aws(key="by/s3.txt")]},
        sns(json.dumps({"Records": [aws(key="by/sns.txt")]})),
        eventbridge(key="by/eventbridge.txt"),
        TEST_EVENT,
        sns(json.dumps(TEST_EVENT)),
    ]
    queue.send([json.dumps(body).encode() for body in bodies])
    sources = Sources(database)
    source = sources.put("sqs", queue.values())
    with running(database):
        until(lambda: sources.stored(source).messages == len(bodies), what="every message")
        until(lambda: sources.stored(source).lag == 0, what="an empty queue")
    assert (sources.stored(source).recorded, sources.stored(source).rejected) == (3, 0)


def test_a_message_that_waits_stays_hidden_and_comes_again_when_nobody_has_it(queue: Unordered) -> None:
    queue.send([b"one"])
    seconds = 5 * slowness()  # it is extended after half of that, when two looks of a second each are over
    with closing(source_of(queue.values(), visibility=seconds)) as holder, closing(source_of(queue.values())) as other:
        holder.open({})
        other.open({})
        assert texts(pull(holder, 1)) == ["one"]
        hidden_until = set(holder._hidden.values())

        def extended_twice() -> bool:
            holder.commit([])
            hidden_until.update(holder._hidden.values())
            assert other.pull(1, 0.1) == []
            return len(hidden_until) > 2

        until(extended_twice, 30, what="a message that is hidden for longer than it was pulled for")
        assert texts(pull(other, 1)) == ["one"]  # nobody extends it any more


def test_what_is_not_recorded_is_given_back_when_the_source_is_closed(queue: Unordered) -> None:
    queue.send([str(number).encode() for number in range(95)])
    with closing(source_of(queue.values(), visibility=600)) as first, closing(source_of(queue.values())) as second:
        first.open({})
        pulled = first.pull(1000, 0.5)
        assert len(pulled) == 95  # by several requests
        assert first.lag() == 95
        first.commit(pulled[:40])
        first.close()
        second.open({})
        assert sorted(texts(pull(second, 55))) == sorted(texts(pulled[40:]))


def test_a_group_is_with_one_worker_at_a_time_in_order(groups: Groups) -> None:
    groups.send([b"one", b"two", b"three"])  # a group
    with closing(source_of(groups.values())) as first, closing(source_of(groups.values())) as second:
        first.open({})
        second.open({})
        pulled = first.pull(2, 0.5)
        assert texts(pulled) == ["one", "two"]
        assert second.pull(2, 0.5) == []
        first.commit(pulled[:1])
        first.close()
        assert texts(pull(second, 2)) == ["two", "three"]


def test_a_queue_gives_up_what_was_received_too_often_which_is_named(queue: Unordered, database: Database) -> None:
    sources, events = Sources(database), numbered(3)
    server = queue.server
    dead = server.create(f"{server.queue}-dead")
    [arn] = server.ask("GetQueueAttributes", QueueUrl=dead, AttributeNames=["QueueArn"])["Attributes"].values()
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
    asked = {"QueueName": f"{server.queue}-redrive", "Attributes": {"RedrivePolicy": policy}}
    server.url_of_queue = server.ask("CreateQueue", **asked)["QueueUrl"]
    queue.send(messages(events))
    for _ in range(2):
        with closing(source_of(queue.values())) as source:
            [risk] = source.open({}).risks
            assert "maxReceiveCount=2" in risk
            assert len(pull(source, 3)) == 3
    stopped = sources.put("sqs", queue.values())
    with running(database):
        until(lambda: "maxReceiveCount=2" in sources.stored(stopped).reason, what="a warning")
        until(lambda: sources.stored(stopped).lag == 0, what="an empty queue")
        assert recorded(database) == []
        sources.put("sqs", {**queue.values(), "queue_url": dead}, name="dead")
        wait_for(database, events)
    assert len(recorded(database)) == 3


def test_attributes_are_headers_and_the_time_is_the_queues(queue: Unordered) -> None:
    attributes = {
        "TraceParent": {"DataType": "String", "StringValue": "00-1"},
        "n": {"DataType": "Number", "StringValue": "7"},
        "b": {"DataType": "Binary", "BinaryValue": "AA=="},
    }
    asked = {"QueueUrl": queue.server.url_of_queue, "MessageBody": "x", "MessageAttributes": attributes}
    queue.server.ask("SendMessage", **asked)
    with closing(source_of(queue.values())) as source:
        source.open({})
        [message] = pull(source, 1)
    assert message.headers == {"traceparent": "00-1", "n": "7"}
    assert message.sent_at > 1_700_000_000_000


def test_a_message_that_is_not_what_was_sent_to_the_queue_is_rejected(queue: Unordered) -> None:
    queue.send([b'{"Records":[1]}', b"two"])

    def changed(answer: bytes) -> bytes:
        return answer.replace(rb"Records\":[1]", rb"Records\":[2]")

    with (
        services.proxy(queue.server.port, changed) as proxy,
        closing(source_of(queue.values() | {"endpoint": f"http://{services.LOOPBACK}:{proxy.port}/"})) as source,
    ):
        source.open({})
        pulled = {message.body: message.problem for message in pull(source, 2)}
    assert pulled.keys() == {b'{"Records":[2]}', b"two"}
    assert not pulled[b"two"]
    assert "digest" in pulled[b'{"Records":[2]}']


def test_a_queue_that_is_missing_and_a_login_that_is_refused_are_named(queue: Unordered, database: Database) -> None:
    values = dict(queue.values())
    missing = source_of(values | {"queue_url": f"{values['queue_url']}-not"})
    with closing(missing), pytest.raises(SourceUnavailable, match=r"NonExistentQueue|QueueDoesNotExist"):
        missing.open({})
    port = queue.target.gateway().port
    stranger = {"endpoint": f"http://{services.LOOPBACK}:{port}/"}
    refused = source_of(values | stranger | {"secret_key": "wrong"})
    with closing(refused), pytest.raises(SourceUnavailable, match="InvalidClientTokenId"):
        refused.open({})
    events = numbered(30)
    queue.send(messages(events))
    Sources(database).put("sqs", values | stranger)  # each request is signed as AWS checks it
    with running(database):
        wait_for(database, events)
    assert len(recorded(database)) == len(events)
