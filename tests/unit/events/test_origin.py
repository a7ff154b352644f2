"""By what an event came, as a text and read again."""

from __future__ import annotations

import pytest

from app.events.frontends import S3_FRONTENDS
from app.events.limits import Limits
from app.events.model import UNKNOWN_ORIGIN, Origin, by_listing, by_request, by_source, origin_of
from app.events.parsing import Message, parse, read_message
from app.resources.event import describe_origin
from tests.support import sample_events

RECORD = sample_events.put("a").record.encode()
BODY = b'{"Records":[%s]}' % RECORD


@pytest.mark.parametrize(
    "origin",
    [
        Origin("request", "", "minio"),
        Origin("request", "minio-1", "aws"),
        Origin("source", "kafka:minio", "minio", "3", "1235"),
        Origin("source", "nats:x", "ceph", "a share with spaces", "7"),
        Origin("source", "redis:x", "minio", "", "1526919030474-55"),
        Origin("source", "amqp:x", "minio"),
    ],
)
def test_an_origin_is_read_as_it_was_written(origin: Origin) -> None:
    assert origin_of(origin.text(origin.frontend)) == origin


def test_a_text_fits_its_column_whatever_a_queue_calls_its_shares() -> None:
    text = by_source("kafka:x", "s" * 5000, "12").text("minio")
    assert len(text) == 600
    assert origin_of(text).position == "12"


@pytest.mark.parametrize("text", ["", "request", "request x", "other x minio", "source x y z", "\0", " " * 9])
def test_a_text_of_another_version_is_no_origin(text: str) -> None:
    assert origin_of(text) == UNKNOWN_ORIGIN


def test_each_event_of_a_body_has_the_sender_that_it_was_recognised_as() -> None:
    aws = sample_events.put("b").record.encode().replace(b'"minio:s3"', b'"aws:s3"').replace(b'"s3:Ob', b'"Ob')
    parsed = parse(b"[%s,%s]" % (RECORD, aws), {}, now_ms=0, origin=by_request("t"))
    assert [origin_of(event.origin) for event in parsed.events] == [
        Origin("request", "t", "minio"), Origin("request", "t", "aws"),
    ]  # fmt: skip
    named = parse(b"[%s]" % aws, {}, now_ms=0, sender=S3_FRONTENDS["ceph"], origin=by_request("t"))
    assert [origin_of(event.origin).frontend for event in named.events] == ["ceph"]
    assert [event.origin for event in parse(BODY, {}, now_ms=0).events] == [""]
    assert parsed.events[0].id == parse(BODY, {}, now_ms=0).events[0].id, "it is not part of the event"


def test_a_pulled_event_has_the_position_of_its_message() -> None:
    read = read_message(Message(BODY, "3", "1235"), Limits(), None, "kafka:minio")
    assert [origin_of(event.origin) for event in read.events] == [Origin("source", "kafka:minio", "minio", "3", "1235")]


def test_an_origin_says_in_words_that_a_key_is_a_guess() -> None:
    assert describe_origin({"kind": "request", "token": "t", "frontend": "minio"}) == "request, token t, sender minio"
    guess = describe_origin({"kind": "request", "frontend": "unknown-encoding"})
    assert guess == "request, sender unknown, whose key can be read in two ways and was decoded: name the sender"


def test_the_origin_of_what_a_listing_has_found_names_source_and_time() -> None:
    text = by_listing("bucket:photos", "2026-11-30T01:02:03.000Z")
    origin = origin_of(text)
    assert origin == Origin("source", "bucket:photos", "listing", "listing", "2026-11-30T01:02:03.000Z")
    shown = {"kind": "source", "source": origin.name, "frontend": origin.frontend, "position": origin.position}
    assert describe_origin(shown) == "source bucket:photos, found by listing at 2026-11-30T01:02:03.000Z"
    assert describe_origin({"kind": "source", "frontend": "listing"}) == "source, found by listing"
