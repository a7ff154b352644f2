"""What is SQS's own: entries of a batch, groups, deduplication, signatures, and bodies as S3 sends them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.config import target_settings
from app.config.errors import BadSettings
from tests import services
from tests.contract.probes import fixtures
from tests.contract.probes.base import attempt, unavailable
from tests.contract.probes.sqs import Fifo, Standard
from tests.services.elasticmq import Gateway
from tests.support import sample_events
from tests.support.doc_consumers import consumers, output
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, NotAttempted, Rejected, Unavailable
from workers.systems.sqs.client import SqsClient
from workers.systems.sqs.target import SqsTarget, _outcome
from workers.targets import messages
from workers.targets.base import NO_LEASE, TargetUnavailable

WINDOWS = pytest.mark.parametrize("window", [1, 100])

running = fixtures.running(Standard)
queue = fixtures.renewed()


@pytest.fixture
def fifo(queue: Standard) -> Fifo:
    """The same server, with a FIFO queue."""
    probe = Fifo.__new__(Fifo)
    probe.server, probe._gateways = queue.server, queue._gateways
    probe.renew()
    return probe


@pytest.fixture
def gateway(queue: Standard) -> Iterator[Gateway]:
    with closing(Gateway(queue.server)) as gateway:
        yield gateway


def sent(gateway: Gateway) -> list[list[str]]:
    """The paths of the messages of each request."""
    found = [request["Entries"] for request in gateway.requests if "Entries" in request]
    return [[json.loads(entry["MessageBody"])["Records"][0]["s3"]["object"]["key"] for entry in each] for each in found]


# --- messages


def test_the_body_is_what_s3_sends(queue: Standard) -> None:
    event = sample_events.put("photos/a b+c.jpg")
    assert queue.delivered([event]) == [DELIVERED]
    (message,) = queue.server.messages()
    (record,) = json.loads(message["Body"])["Records"]
    assert json.loads(message["Body"]).keys() == {"Records"}
    assert (record["eventSource"], record["eventName"]) == ("aws:s3", "ObjectCreated:Put")
    ours = json.loads(event.record)
    assert record == ours | {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put"}
    assert record["s3"]["object"]["key"] == "photos%2Fa+b%2Bc.jpg"


@pytest.mark.parametrize("shape", ["minio", "guide"])
def test_the_body_may_be_minios(queue: Standard, shape: str) -> None:
    assert queue.delivered([sample_events.put("a")], body_shape=shape) == [DELIVERED]
    (message,) = queue.server.messages()
    body = json.loads(message["Body"])
    assert body["Key"] == "images/a"
    assert ("EventType" in body) == (shape == "guide")
    assert body["Records"][0]["eventName"] == "s3:ObjectCreated:Put"


def test_attributes_name_the_event_and_its_trace_context(queue: Standard) -> None:
    event = sample_events.traced(sample_events.put("a"))
    assert queue.delivered([event]) == [DELIVERED]
    (message,) = queue.server.messages()
    found = {name: each["StringValue"] for name, each in message["MessageAttributes"].items()}
    named = {"bucket": "images", "event": "s3:ObjectCreated:Put", "id": event.id}
    assert found == named | sample_events.TRACE


def test_a_cloud_event_is_the_body(queue: Standard) -> None:
    event = sample_events.put("a")
    assert queue.delivered([event], payload="cloudevents") == [DELIVERED]
    (message,) = queue.server.messages()
    assert message["Body"] == messages.structured(event)


def test_a_fifo_queue_gets_a_group_for_each_object_and_the_events_id(fifo: Fifo) -> None:
    made = [sample_events.put("a"), sample_events.put("b"), sample_events.put("a")]
    for _ in range(2):  # the second time they are dropped
        assert fifo.delivered(made, 100) == [DELIVERED] * 3
    found = [each["Attributes"] for each in fifo.server.messages()]
    assert len(found) == 3
    assert {(each["MessageGroupId"], each["MessageDeduplicationId"]) for each in found} == {
        (hashlib.sha256(event.path.encode()).hexdigest(), event.id) for event in made
    }


# --- requests


def test_a_request_has_ten_messages_and_in_sync_mode_one(queue: Standard, gateway: Gateway) -> None:
    made = [sample_events.put(f"object-{number}") for number in range(25)]
    for window, sizes in ((100, [10, 10, 5]), (1, [1] * 25)):
        gateway.requests.clear()
        assert queue.delivered(made, window, queue.at_port(gateway.port)) == [DELIVERED] * 25
        assert sorted(map(len, sent(gateway)), reverse=True) == sizes


def test_an_object_is_in_a_request_only_once(queue: Standard, gateway: Gateway) -> None:
    made = [sample_events.put(f"object-{number % 3}", number=number + 1) for number in range(9)]
    assert queue.delivered(made, 100, queue.at_port(gateway.port)) == [DELIVERED] * 9
    assert [sorted(keys) for keys in sent(gateway)] == [["object-0", "object-1", "object-2"]] * 3


def test_a_request_has_no_more_bytes_than_a_queue_takes(queue: Standard, gateway: Gateway) -> None:
    made = [sample_events.put(f"object-{number}", metadata="x" * 100_000) for number in range(8)]
    assert queue.delivered(made, 100, queue.at_port(gateway.port)) == [DELIVERED] * 8
    assert max(map(len, sent(gateway))) == 2


@WINDOWS
def test_a_message_that_is_refused_is_rejected_alone(queue: Standard, window: int) -> None:
    made = [sample_events.put("a"), sample_events.put("b", metadata="x" * 300_000), sample_events.put("c")]
    first, refused, last = queue.delivered(made, window)
    assert (first, last) == (DELIVERED, DELIVERED)
    assert isinstance(refused, Rejected)
    assert "MessageTooLong" in refused.reason


def test_each_answer_to_an_entry_has_its_outcome() -> None:
    for code, sender, kind in (
        ("InvalidMessageContents", True, Rejected), ("InvalidParameterValue", True, Rejected),
        ("InternalError", False, Failed), ("InvalidParameterValue", False, Failed),
        ("ThrottlingException", True, Unavailable), ("OverLimit", True, Unavailable), ("Unknown", True, Failed),
        ("AccessDenied", True, Unavailable), ("KmsAccessDenied", True, Unavailable),
        ("KMS.DisabledException", True, Unavailable), ("AWS.SimpleQueueService.NonExistentQueue", True, Unavailable),
    ):  # fmt: skip
        assert isinstance(_outcome(code, "because", sender=sender), kind), code


def test_a_message_that_the_queue_has_stored_as_another_one_is_not_delivered(queue: Standard) -> None:
    def changed(answer: bytes) -> bytes:
        return re.sub(rb'("MD5OfMessageBody":\s*)"[0-9a-f]{32}"', rb'\g<1>"%032d"' % 0, answer, count=1)

    with services.proxy(queue.server.port, changed) as proxy:
        outcomes = queue.delivered([sample_events.put(key) for key in ("a", "b", "c")], 100, queue.at_port(proxy.port))
    refused, *others = sorted(outcomes, key=lambda one: one == DELIVERED)
    assert isinstance(refused, Failed)
    assert "digest" in refused.reason
    assert others == [DELIVERED] * 2


def test_what_was_confirmed_before_the_server_went_away_is_delivered(
    queue: Standard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outcomes of a call that became unavailable in its middle are kept, in either mode."""
    usual = SqsClient.ask
    for window in (1, 100):
        asked = []

        def ask(self: SqsClient, *words: object) -> object:
            asked.append(words)  # noqa: B023 (called within this turn)
            if len(asked) == 3:  # noqa: B023
                raise TargetUnavailable("away")
            return usual(self, *words)  # type: ignore[arg-type]  # as it was called

        made = [sample_events.put("a", number=number + 1) for number in range(5)]
        with queue.opened() as target:
            monkeypatch.setattr(SqsClient, "ask", ask)
            outcomes = list(target.deliver(made, window, NO_LEASE))
            monkeypatch.setattr(SqsClient, "ask", usual)
        assert outcomes[:2] == [DELIVERED] * 2
        assert isinstance(outcomes[2], Unavailable)
        assert outcomes[3:] == [NOT_ATTEMPTED] * 2


# --- logins


def test_requests_are_signed(queue: Standard, gateway: Gateway) -> None:
    assert queue.delivered([sample_events.put("é")], 1, queue.at_port(gateway.port)) == [DELIVERED]
    wrong = queue.at_port(gateway.port) | {"access_key": "mallory"}
    with pytest.raises(TargetUnavailable, match="403: InvalidClientTokenId"):
        queue.delivered([sample_events.put("a")], 1, wrong)
    other_region = queue.at_port(gateway.port) | {"region": "eu-central-1"}
    with pytest.raises(TargetUnavailable, match="403"):
        queue.delivered([sample_events.put("a")], 1, other_region)


def test_a_machine_without_a_role_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service's own credentials, which are for the storage, are not taken in its place."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOURS")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret-of-ours")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    values = {"queue_url": "https://sqs.eu-central-1.amazonaws.com/1/q", "instance_role": "on"}
    target = SqsTarget(target_settings.load("sqs", values))  # type: ignore[arg-type]  # it is of this type
    with pytest.raises(TargetUnavailable, match="this machine has no role"):
        target.open()


def test_a_role_that_cannot_be_taken_is_unavailable(
    receiver: services.Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A pod whose token is missing or refused costs its events no attempts, as any target that is down."""
    receiver.set(status=403, body="<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/events")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", receiver.url)
    token = tmp_path / "token"
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token))
    values = {"queue_url": "https://sqs.eu-central-1.amazonaws.com/1/q", "instance_role": "on", "timeout": "1s"}
    target = SqsTarget(target_settings.load("sqs", values))  # type: ignore[arg-type]  # it is of this type
    with pytest.raises(TargetUnavailable, match=r"instance_role: .*No such file"):
        target.open()
    token.write_text("a-token-of-the-pod")
    with pytest.raises(TargetUnavailable, match=r"instance_role: .*AccessDenied"):
        target.open()
    receiver.set(delay=30)
    with pytest.raises(TargetUnavailable, match=r"instance_role: .*timeout"):
        target.open()
    assert len(receiver.requests()) == 2


def test_the_region_is_that_of_the_queue() -> None:
    login = {"access_key": "a", "secret_key": "b"}
    for url, region in (
        ("https://sqs.eu-central-1.amazonaws.com/1/q", "eu-central-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "cn-north-1"),
        ("https://vpce-1.sqs.us-west-2.vpce.amazonaws.com/1/q", "us-west-2"),
        ("http://localhost:9324/0/q", "us-east-1"),
    ):
        assert target_settings.load("sqs", login | {"queue_url": url}).signed_region == region  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"access_key": ""}, "access_key"),
        ({"secret_key": ""}, "secret_key"),
        ({"access_key": "", "secret_key": ""}, "access_key"),
        ({"access_key": "", "secret_key": "", "session_token": "t", "instance_role": "on"}, "session_token"),
        ({"instance_role": "on"}, "instance_role"),
        ({"access_key": "", "secret_key": "", "instance_role": "on", "endpoint": "http://h/"}, "instance_role"),
        (
            {
                "access_key": "",
                "secret_key": "",
                "instance_role": "on",
                "queue_url": "http://sqs.us-east-1.amazonaws.com/1/q",
            },
            "instance_role",
        ),
        (
            {
                "access_key": "",
                "secret_key": "",
                "instance_role": "on",
                "endpoint": "http://sqs.us-east-1.amazonaws.com/",
            },
            "instance_role",
        ),
        ({"queue_url": "https://h/"}, "queue_url"),
        ({"queue_url": "https://me:pw@h/q"}, "queue_url"),
        ({"endpoint": "https://h/?a=b"}, "endpoint"),
        ({"region": "Frankfurt!"}, "region"),
        ({"payload": "cloudevents-binary"}, "payload"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(values: dict[str, str], key: str) -> None:
    usable = {"queue_url": "https://sqs.us-east-1.amazonaws.com/1/q", "access_key": "a", "secret_key": "b"}
    with pytest.raises(BadSettings) as refused:
        target_settings.load("sqs", usable | values)
    assert {problem.key for problem in refused.value.problems} == {key}


# --- the queue


@WINDOWS
def test_a_queue_that_does_not_exist_is_unavailable(queue: Standard, window: int) -> None:
    with queue.opened() as target:
        queue.server.ask("DeleteQueue", QueueUrl=queue.server.url_of_queue)
        made = [sample_events.put("a"), sample_events.put("a")]
        outcomes = attempt(target, made, window)
        assert "QueueDoesNotExist" in unavailable(outcomes[0])
        assert isinstance(outcomes[1], NotAttempted)
    with pytest.raises(TargetUnavailable, match="QueueDoesNotExist"):
        queue.target().open()


def test_something_else_at_the_address_is_named_so(receiver: services.Receiver) -> None:
    for status, body, words in ((200, "hello", "is not SQS"), (404, "", "404"), (503, "{}", "503")):
        receiver.set(status=status, body=body)
        values = {"queue_url": f"{receiver.url}0/q", "access_key": "a", "secret_key": "hunter2x"}
        target = SqsTarget(target_settings.load("sqs", values))  # type: ignore[arg-type]  # it is of this type
        with pytest.raises(TargetUnavailable, match=words) as caught:
            target.open()
        assert "hunter2x" not in caught.value.reason


def test_the_consumer_of_the_page_reads_a_queue(queue: Standard) -> None:
    made = [sample_events.put("cat.jpg", number=77), sample_events.delete("dog.jpg")]
    assert queue.delivered(made) == [DELIVERED] * 2
    (program,) = consumers("sqs", **{"http://localhost:9324/000000000000/bucketevents": queue.server.url_of_queue})
    assert sorted(output(program)) == ["ObjectCreated:Put images cat.jpg", "ObjectRemoved:Delete images dog.jpg"]
    assert output(program) == []
