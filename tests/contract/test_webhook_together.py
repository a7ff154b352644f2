"""Several events in one POST, against a real receiver: what it gets, and what becomes of each event."""

from __future__ import annotations

import json

import pytest
from standardwebhooks.webhooks import Webhook

from app.events.model import Event
from app.events.parsing import parse
from tests.contract.probes.base import opened
from tests.contract.probes.webhook import SECRETS, webhook
from tests.services import Answer, Receiver
from tests.support import cloud_events, sample_events
from workers.delivery.outcomes import DELIVERED, NOT_ATTEMPTED, Failed, NotAttempted, Outcome, Rejected, Unavailable
from workers.targets import payloads

WINDOWS = pytest.mark.parametrize("window", [1, 100])


def delivered(receiver: Receiver, batch: list[Event], window: int, **changes: str) -> list[Outcome]:
    with opened(webhook(receiver.url, **({"events_per_post": "10"} | changes))) as target:
        return list(target.deliver(batch, window))


def numbers(receiver: Receiver, status: int = 200) -> dict[str, list[int]]:
    """For each key the numbers of its events in the order in which the receiver took them."""
    found: dict[str, list[int]] = {}
    for request in receiver.requests():
        for record in request.json()["Records"] if request.status == status else ():
            found.setdefault(record["s3"]["object"]["key"], []).append(record["s3"]["object"]["size"])
    return found


@WINDOWS
def test_requests_are_filled_and_hold_each_record_as_it_is(receiver: Receiver, window: int) -> None:
    batch = [sample_events.put(f"k{number}") for number in range(25)]
    assert set(delivered(receiver, batch, window)) == {DELIVERED}
    bodies = sorted(receiver.bodies(), key=len)
    assert [len(json.loads(body)["Records"]) for body in bodies] == [5, 10, 10]
    assert all(set(json.loads(body)) == {"Records"} for body in bodies)
    text = b"".join(bodies).decode()
    assert all(event.record in text for event in batch)


def test_an_event_that_is_alone_comes_in_minios_own_body(receiver: Receiver) -> None:
    batch = [sample_events.put(f"k{number}") for number in range(11)]
    assert set(delivered(receiver, batch, 1)) == {DELIVERED}
    assert receiver.bodies()[1] == payloads.log(batch[10]).encode()


@WINDOWS
def test_events_of_an_object_stay_in_their_order_across_requests(receiver: Receiver, window: int) -> None:
    batch = [sample_events.put(f"k{number % 3}", number=number + 1) for number in range(60)]
    assert set(delivered(receiver, batch, window, events_per_post="7")) == {DELIVERED}
    assert numbers(receiver) == {f"k{each}": list(range(each + 1, 61, 3)) for each in range(3)}


@WINDOWS
@pytest.mark.parametrize(("status", "kind"), [(422, Rejected), (500, Failed), (413, Rejected)])
def test_a_refused_request_blames_only_the_event_that_is_refused_alone(
    receiver: Receiver, window: int, status: int, kind: type[Outcome]
) -> None:
    receiver.set(Answer(status=status, containing="poison"))
    batch = [sample_events.put(f"k{number}", number=number + 1) for number in range(30)]
    batch[13] = sample_events.put("k13", metadata="poison")
    outcomes = delivered(receiver, batch, window)
    assert isinstance(outcomes[13], kind)
    assert set(outcomes[:13] + outcomes[14:]) == {DELIVERED}
    assert numbers(receiver) == {f"k{each}": [each + 1] for each in range(30) if each != 13}
    assert len(receiver.requests()) == 3 + 10


@WINDOWS
def test_what_follows_a_failed_event_of_its_object_is_held_back(receiver: Receiver, window: int) -> None:
    receiver.set(Answer(status=500, containing="poison"))
    batch = [
        sample_events.put("a", metadata="poison"),
        *(sample_events.put("a") for _ in range(24)),
        sample_events.put("b", number=7),
    ]
    outcomes = delivered(receiver, batch, window)
    assert isinstance(outcomes[0], Failed)
    assert outcomes[1:25] == [NOT_ATTEMPTED] * 24
    assert outcomes[25] == DELIVERED
    assert numbers(receiver) == {"b": [7]}


@WINDOWS
def test_an_endpoint_that_is_busy_is_not_asked_again_for_each_event(receiver: Receiver, window: int) -> None:
    receiver.set(status=503, headers={"Retry-After": "7"})
    outcomes = delivered(receiver, [sample_events.put(f"k{number}") for number in range(10)], window)
    assert all(isinstance(each, Unavailable) and each.retry_after == 7 for each in outcomes)
    assert len(receiver.requests()) == 1


def test_an_endpoint_that_hangs_is_given_up_after_one_request(receiver: Receiver) -> None:
    receiver.set(delay=30)
    outcomes = delivered(receiver, [sample_events.put(f"k{number}") for number in range(20)], 1, read_timeout="300ms")
    assert [type(each) for each in outcomes] == [*[Unavailable] * 10, *[NotAttempted] * 10]
    assert len(receiver.requests()) == 1


def test_a_request_of_several_is_signed_under_one_id_for_the_same_events(receiver: Receiver) -> None:
    batch = [sample_events.put(f"k{number}") for number in range(3)]
    for _ in range(2):
        assert set(delivered(receiver, batch, 1, signing_secret=SECRETS[0])) == {DELIVERED}
    first, second = receiver.requests()
    Webhook(SECRETS[0]).verify(first.body.decode(), first.headers)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.headers["webhook-id"] not in {event.id for event in batch}


def test_a_request_of_several_has_a_trace_context_only_where_all_came_with_the_same(receiver: Receiver) -> None:
    alike = [sample_events.traced(sample_events.put(f"k{number}")) for number in range(3)]
    mixed = [
        sample_events.put("k3"),
        *(sample_events.traced(sample_events.put(f"k{number}")) for number in range(4, 6)),
    ]
    assert set(delivered(receiver, alike + mixed, 1, events_per_post="3")) == {DELIVERED}
    found = [request.headers.get("traceparent") for request in receiver.requests()]
    assert found == [sample_events.TRACEPARENT, None]


def test_cloud_events_come_in_batches_also_one_alone_and_our_own_api_reads_them(receiver: Receiver) -> None:
    batch = [event for _, event in sample_events.captured()][:11]
    assert set(delivered(receiver, batch, 1, payload="cloudevents")) == {DELIVERED}
    requests = receiver.requests()
    assert {request.headers["content-type"] for request in requests} == {
        "application/cloudevents-batch+json; charset=utf-8"
    }
    found = [each for request in requests for each in cloud_events.batch(request.body)]
    for event, each in zip(batch, found, strict=True):
        cloud_events.assert_is(each, event)
    assert [len(json.loads(request.body)) for request in requests] == [10, 1]
    recorded = [each for request in requests for each in parse(request.body, request.headers, now_ms=0).events]
    assert [each.record for each in recorded] == [event.record for event in batch]


@WINDOWS
def test_a_refused_batch_of_cloud_events_comes_as_batches_of_one(receiver: Receiver, window: int) -> None:
    batch = [sample_events.put(f"k{number}", metadata="poison" if number == 2 else "") for number in range(4)]
    receiver.set(Answer(status=422, containing="poison"))
    outcomes = delivered(receiver, batch, window, payload="cloudevents")
    assert [type(outcome) for outcome in outcomes] == [type(DELIVERED)] * 2 + [Rejected] + [type(DELIVERED)]
    bodies = [cloud_events.batch(body) for body in receiver.bodies()]
    assert [len(each) for each in bodies] == [4, 1, 1, 1, 1]
    assert [each.get_id() for (each,) in bodies[1:]] == [event.id for event in batch]


def test_our_own_api_reads_such_a_request(receiver: Receiver) -> None:
    batch = [event for _, event in sample_events.captured()][:10]
    assert set(delivered(receiver, batch, 1)) == {DELIVERED}
    (request,) = receiver.requests()
    found = parse(request.body, request.headers, now_ms=0).events
    assert [(each.name, each.path, each.version) for each in found] == [
        (each.name, each.path, each.version) for each in batch
    ]
