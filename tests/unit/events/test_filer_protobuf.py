"""What a real SeaweedFS has written to a real Kafka is read as the webhook's bodies are; anything else is refused."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from app.events.frontends.seaweedfs import is_filer_message, webhook_body
from app.events.limits import Limits
from app.events.parsing import KEY_HEADER, Message, ReadMessage, read_message
from tests.support.properties import times

FIXTURE = Path(__file__).parents[2] / "fixtures" / "seaweedfs_kafka.jsonl"
CAPTURED = [json.loads(line) for line in FIXTURE.read_text(encoding="utf-8").splitlines()]


def read(path: str, body: bytes) -> ReadMessage:
    return read_message(Message(body, headers={KEY_HEADER: path}), Limits(), None)


def test_the_events_are_those_of_the_objects() -> None:
    made = []
    for line in CAPTURED:
        one = read(line["key"], base64.b64decode(line["body"]))
        assert one.problem == ""
        made += [(event.name.removeprefix("s3:"), event.bucket, event.key) for event in one.events]
    assert made == [
        ("ObjectCreated:Put", "images", "a b/ü.txt"),
        ("ObjectCreated:Put", "images", "big"),
        ("ObjectCreated:PutTagging", "images", "big"),
        ("ObjectCreated:Put", "images", "copy"),
        ("ObjectCreated:Put", "images", "big"),
        ("ObjectRemoved:Delete", "images", "a b/ü.txt"),
        ("ObjectCreated:Put", "images", "v"),
        ("ObjectCreated:Put", "images", "v"),
        ("ObjectRemoved:DeleteMarkerCreated", "images", "v"),
    ]


def test_a_record_has_what_the_webhook_tells() -> None:
    [line] = [line for line in CAPTURED if line["key"].endswith("ü.txt") and b"text/plain" in raw(line)][:1]
    [event] = read(line["key"], raw(line)).events
    record = json.loads(event.record)
    thing = record["s3"]["object"]
    assert (thing["size"], thing["eTag"], thing["contentType"]) == (5, "5d41402abc4b2a76b9719d911017c592", "text/plain")
    assert thing["userMetadata"]["X-Amz-Meta-Who"] == "me"
    body = json.loads(webhook_body(line["key"], raw(line)))
    assert thing["sequencer"] == f"{body['message']['new_entry']['commit_ts_ns']:016X}"


def raw(line: dict[str, str]) -> bytes:
    return base64.b64decode(line["body"])


@pytest.mark.slow
def test_a_message_that_is_cut_or_changed_is_refused_or_read_and_never_fails() -> None:
    step = times(4, 1)
    for number, line in enumerate(CAPTURED):  # alike, so that each has a part of the positions
        body = raw(line)
        for end in range(1 + number % step, len(body), step):
            assert "defect" not in read(line["key"], body[:end]).problem
        for index in range(1 + number % step, len(body), step):
            changed = bytes((*body[:index], body[index] ^ 0xFF, *body[index + 1 :]))
            assert "defect" not in read(line["key"], changed).problem


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"\x0a\x05a", "ends within a field"),
        (b"\x0a" + b"\xff" * 11, "a number has no end"),
        (b"\x12\x02\x0b\x00", "the wire type 3"),
        (b"\x12\x02\x08\x01", "should be bytes is a number"),
        (b"\x12\x03\x32\x01a", "should be a number is none"),
        (b"\x12\x03\x0a\x01\xff", "can't decode byte"),
    ],
)
def test_what_is_no_such_message_is_rejected_with_its_reason(body: bytes, problem: str) -> None:
    assert problem in read("/buckets/images/a", body).problem


def test_json_is_never_taken_for_one() -> None:
    for path, body in (
        ("", b"\x0a\x00"),
        ("images/a", b"\x0a\x00"),
        ("/buckets/images/a", b"{}"),
        ("/a", b'\r\n{"a":1}'),
    ):
        assert not is_filer_message(path, body)
    assert is_filer_message("/buckets/images/a", b"\x12\x00")
