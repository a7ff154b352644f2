"""One envelope, everywhere: what AWS passes on of an event is that event, alone, in a list, inside another, parsed."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest

from app.events.limits import Limits
from app.events.parsing import BadEvents, Message, parse, read_message
from tests.support.frontend_records import aws, eventbridge, sns

NOW = 1_800_000_000_123
PAYLOAD = {"Records": [aws(key="a+b"), aws(key="c")]}
KEYS = ["a b", "c"]


def encoded(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def sqs_record(body: Any) -> dict[str, Any]:
    """What a Lambda and a pipe get of SQS."""
    return {
        "messageId": "19dd0b57", "receiptHandle": "h", "body": body, "attributes": {"ApproximateReceiveCount": "1"},
        "messageAttributes": {}, "md5OfBody": "e4e6", "eventSource": "aws:sqs", "awsRegion": "us-east-1",
        "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:q",
    }  # fmt: skip


def received(body: Any) -> dict[str, Any]:
    """What a client of SQS gets."""
    return {"MessageId": "1", "ReceiptHandle": "h", "MD5OfBody": "m", "Body": body}


def sns_record(message: Any) -> dict[str, Any]:
    return {"EventSource": "aws:sns", "EventVersion": "1.0", "Sns": {"Type": "Notification", "Message": message}}


WRAPPED: dict[str, Callable[[Any], Any]] = {
    "an SQS record": lambda value: sqs_record(json.dumps(value)),
    "an SQS record, parsed by a pipe": sqs_record,
    "a message of receive-message": lambda value: received(json.dumps(value)),
    "a message of receive-message, parsed": received,
    "an SNS record": lambda value: sns_record(json.dumps(value)),
    "an SNS record, parsed": sns_record,
    "a notification of SNS": sns,
    "a failed call of a Lambda": lambda value: {
        "version": "1.0", "timestamp": "2026-11-20T10:00:00.000Z", "requestPayload": value,
        "requestContext": {"requestId": "1", "condition": "RetriesExhausted", "approximateInvokeCount": 3},
        "responseContext": {"statusCode": 200}, "responsePayload": {"errorMessage": "no"},
    },
    "a record of Kinesis": lambda value: {"eventSource": "aws:kinesis", "kinesis": {"data": encoded(value)}},
    "a record of Kinesis, by a pipe": lambda value: {
        "eventSource": "aws:kinesis", "data": encoded(value), "partitionKey": "1",
    },
    "an event of Logstash": lambda value: {
        "@version": "1", "@timestamp": "2026-11-20T10:00:00.000Z", "message": json.dumps(value), "host": "h",
    },
    "an event of Vector": lambda value: {
        "message": json.dumps(value), "source_type": "kafka", "topic": "t", "timestamp": "2026-11-20T10:00:00.000Z",
    },
    "a text of Kafka Connect with its schema": lambda value: {
        "schema": {"type": "string", "optional": False}, "payload": json.dumps(value),
    },
    "a line of NooBaa's log": lambda value: {"meta": {"connect": "c.json", "name": "n"}, "notif": value},
    "a message of Pub/Sub that was pulled": lambda value: {"ackId": "a", "message": {"data": encoded(value)}},
    "a CloudEvent": lambda value: {"specversion": "1.0", "type": "t", "source": "s", "id": "1", "data": value},
}  # fmt: skip
NOT_IN_RECORDS = (  # where nobody writes them
    "a notification of SNS", "a CloudEvent", "a failed call of a Lambda", "a message of Pub/Sub that was pulled",
)  # fmt: skip
LISTED: dict[str, Callable[[Any], Any]] = {
    "alone": lambda one: one,
    "in an array": lambda one: [one],
    "in Records": lambda one: {"Records": [one]},
    "in an SQS record": lambda one: {"Records": [sqs_record(json.dumps(one))]},
    "in an array in an SQS record": lambda one: {"Records": [sqs_record([one])]},
}


@pytest.mark.parametrize("listed", LISTED)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_payload_is_the_same_in_every_envelope_and_every_list(wrapped: str, listed: str) -> None:
    body = LISTED[listed](WRAPPED[wrapped](PAYLOAD))
    if wrapped in NOT_IN_RECORDS and listed == "in Records":
        body = LISTED["in an array"](WRAPPED[wrapped](PAYLOAD))
    parsed = parse(json.dumps(body).encode(), {}, now_ms=NOW)
    assert [event.key for event in parsed.events] == KEYS
    assert parsed.events == parse(json.dumps(PAYLOAD).encode(), {}, now_ms=NOW).events


@pytest.mark.parametrize(
    "body",
    [
        {"Messages": [received(json.dumps({"Records": [record]})) for record in PAYLOAD["Records"]]},
        {"Messages": [received(sns({"Records": [record]})) for record in PAYLOAD["Records"]], "ResponseMetadata": {}},
        {"requestId": "1", "timestamp": 1, "records": [{"data": encoded(record)} for record in PAYLOAD["Records"]]},
        {
            "invocationId": "1", "deliveryStreamArn": "arn:aws:firehose:x", "region": "us-east-1",
            "records": [{"recordId": "4", "approximateArrivalTimestamp": 1, "data": encoded(PAYLOAD)}],
        },
    ],
)  # fmt: skip
def test_what_a_client_of_sqs_or_firehose_has_is_unwrapped(body: Any) -> None:
    assert [event.key for event in parse(json.dumps(body).encode(), {}, now_ms=NOW).events] == KEYS


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (sqs_record("no"), "body is not JSON"),
        (sqs_record(None), "body is missing"),
        (received(7), "Body is 7"),
        ({"Messages": [received("{}")]}, "at Messages[0].Body: it is an object of unknown shape"),
        ({"requestId": "1", "records": [{"data": "%"}]}, "at records[0]: data is not base64"),
        ({"Messages": 1}, "it is an object of unknown shape"),
    ],
)
def test_a_fault_in_an_envelope_is_told_with_its_place(body: Any, words: str) -> None:
    with pytest.raises(BadEvents) as caught:
        parse(json.dumps(body).encode(), {}, now_ms=NOW)
    assert words in caught.value.problem


def test_the_records_of_lists_count_and_the_wrapping_has_an_end() -> None:
    many = {"Messages": [received({"Records": [aws()]})] * 11}
    with pytest.raises(BadEvents, match="more than 10 records"):
        parse(json.dumps(many).encode(), {}, now_ms=NOW, limits=Limits(records=10))
    body: Any = PAYLOAD
    for _ in range(10):
        body = received(body)
    with pytest.raises(BadEvents, match="wrapped more than 8 times"):
        parse(json.dumps(body).encode(), {}, now_ms=NOW)


def test_an_event_of_a_replay_of_eventbridge_is_the_same_event_again() -> None:
    [first] = parse(json.dumps(eventbridge()).encode(), {}, now_ms=NOW).events
    replayed = eventbridge() | {"replay-name": "of-friday"}
    assert parse(json.dumps(replayed).encode(), {}, now_ms=NOW).events == [first]
    [other] = parse(json.dumps(eventbridge() | {"id": "another"}).encode(), {}, now_ms=NOW).events
    assert other.id != first.id


BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_skipped_wherever_a_text_begins() -> None:
    text = json.dumps(PAYLOAD).encode()
    one, other = (json.dumps(record).encode() for record in PAYLOAD["Records"])
    bodies = {
        BOM + text: {}, BOM + one + b"\n" + other + b"\n": {}, BOM + one + b"\r\n" + BOM + other: {},
        one + b"\n" + BOM + other: {"content-type": "application/x-ndjson"},
        json.dumps(sns(BOM.decode() + text.decode())).encode(): {},
    }  # fmt: skip
    for body, headers in bodies.items():
        assert [event.key for event in parse(body, headers, now_ms=NOW).events] == KEYS, body
    with pytest.raises(BadEvents, match="at byte 6") as caught:
        parse(BOM + b"{\n}}", {}, now_ms=NOW)
    assert caught.value.offset == 6


# ---------------------------------------------------------------- compressed messages of a queue


def test_a_message_is_decompressed_whatever_its_headers_are() -> None:
    text = json.dumps(PAYLOAD).encode()
    for body in (gzip.compress(text), gzip.compress(text[:9]) + gzip.compress(text[9:]), text):
        for headers in ({}, {"content-encoding": "gzip"}, {"content-encoding": "GZIP", "content-type": "text/plain"}):
            read = read_message(Message(body, headers=headers), Limits(), None)
            assert [event.key for event in read.events] == KEYS, read.problem


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (gzip.compress(b"{}", mtime=0)[:-3], "is truncated"),
        (b"\x1f\x8bno", "cannot be unpacked"),
        (gzip.compress(b" " * 5000, mtime=0), "unpacks to more than 1,000 bytes: send it in parts"),
        (gzip.compress(b"{}", mtime=0) + b"rest", "cannot be unpacked"),
    ],
    ids=["cut off", "no gzip", "too large", "with a rest"],  # gzip writes the time
)
def test_a_message_that_cannot_be_decompressed_is_rejected_with_the_reason(body: bytes, words: str) -> None:
    read = read_message(Message(body), Limits(written_bytes=1000), None)
    assert (read.events, words in read.problem) == ((), True), read.problem


def test_an_encoding_that_is_not_read_is_named() -> None:
    read = read_message(Message(b"\x78\x9c\x00", headers={"content-encoding": "deflate"}), Limits(), None)
    assert "Its content encoding is 'deflate'; send gzip, or no encoding." in read.problem
    assert "encoding" not in read_message(Message(b"{", headers={"content-encoding": "utf-8"}), Limits(), None).problem
