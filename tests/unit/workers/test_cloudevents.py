"""Events as CloudEvents: what they say, that the SDK reads them, and that our own API makes the same events of them."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.config import target_settings
from app.events.minio_json import encode_key
from app.events.model import Event
from app.events.normalize import event_of
from app.events.parsing import parse
from tests.support import cloud_events, sample_events
from workers.targets import messages, payloads
from workers.targets.messages import entry_format, message_format

NOW = 1_795_000_000_000
BINDINGS = {name: getattr(messages, name) for name in ("HTTP", "NATS", "KAFKA", "AMQP", "MQTT")}
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
ODD = TEXTS.filter(lambda text: text.strip() == text and text != "")


def recorded(key: str = "a.txt", bucket: str = "images", name: str = sample_events.PUT, **members: Any) -> Event:
    """An event as the API makes it of a record."""
    thing = {"key": encode_key(key), "sequencer": "18E9E833E5D35CED"}
    record = {"eventSource": "minio:s3", "awsRegion": "", "eventTime": "2026-11-21T00:33:56.082Z", "eventName": name}
    return event_of(record | {"s3": {"bucket": {"name": bucket}, "object": thing}} | members, NOW, 32)


def test_the_attributes_are_those_of_the_adapter_for_s3_but_for_the_id() -> None:
    event = recorded("photos/ä b.jpg", awsRegion="us-east-1")
    assert messages.attributes(event) == {
        "specversion": "1.0",
        "id": event.id,
        "source": "minio:s3.us-east-1.images",
        "type": "com.amazonaws.s3.ObjectCreated:Put",
        "time": "2026-11-21T00:33:56.082Z",
        "subject": "photos/ä b.jpg",
        "sequencer": "18E9E833E5D35CED",
    }


@pytest.mark.parametrize(
    ("key", "subject"),
    [
        ("a", "a"),
        (" a%2F+é ", " a%2F+é "),
        ("k" * 1024, "k" * 1024),
        ("k" * 1025, None),
        ("é" * 513, None),
        ("line\nbreak", None),
        ("tab\t", None),
        ("\x7f", None),
        ("\x85", None),
        ("\ufdd0", None),
        ("\uffff", None),
        ("\U0001fffe", None),
        ("\ufffd\U0001f600", "\ufffd\U0001f600"),
    ],
)
def test_the_subject_is_exactly_the_key_or_left_out(key: str, subject: str | None) -> None:
    found = cloud_events.structured(messages.structured(recorded(key)))
    assert found.get_subject() == subject
    data: Any = found.get_data()
    assert data["Key"] == f"images/{key}"


def test_an_event_of_a_bucket_has_no_subject() -> None:
    event = recorded("", name="s3:BucketCreated:*")
    assert "subject" not in messages.attributes(event)
    assert messages.attributes(event)["type"] == "com.amazonaws.s3.BucketCreated:*"


@pytest.mark.parametrize(
    ("members", "source"),
    [
        ({}, "minio:s3..images"),
        ({"eventSource": "aws:s3", "awsRegion": "eu-central-1"}, "aws:s3.eu-central-1.images"),
        ({"eventSource": "custom"}, "custom..images"),
        ({"eventSource": "1:a"}, "1%3Aa..images"),
        ({"eventSource": "//host/ä"}, "%2F%2Fhost%2F%C3%A4..images"),
        ({"eventSource": ""}, "bucketwire:s3..images"),
        ({"eventSource": None, "awsRegion": 7}, "bucketwire:s3..images"),
        ({"eventSource": {"a": []}, "awsRegion": []}, "bucketwire:s3..images"),
        ({"eventSource": "x" * 65, "awsRegion": "y" * 65}, "bucketwire:s3..images"),
        ({"awsRegion": "a b:c"}, "minio:s3.a%20b%3Ac.images"),
    ],
)
def test_the_source_is_a_uri_reference_whatever_the_record_says(members: dict[str, Any], source: str) -> None:
    event = recorded(**members)
    assert messages.attributes(event)["source"] == source
    cloud_events.structured(messages.structured(event))


def test_a_bucket_of_any_name_is_escaped_in_the_source() -> None:
    assert messages.attributes(recorded(bucket="tenant:ä/b"))["source"] == "minio:s3..tenant%3A%C3%A4%2Fb"


@pytest.mark.parametrize(("sequencer", "kept"), [("18E9", True), ("18e9", True), ("", False), ("later", False)])
def test_a_sequencer_that_orders_nothing_is_left_out(sequencer: str, kept: bool) -> None:
    event = recorded()._replace(sequencer=sequencer)
    assert messages.attributes(event).get("sequencer") == (sequencer if kept else None)


def test_a_name_with_characters_that_no_attribute_can_have_is_mended() -> None:
    event = recorded(name="s3:New\r\nKind\uffff")
    assert messages.attributes(event)["type"] == "com.amazonaws.s3.New\ufffd\ufffdKind\ufffd"
    data: Any = cloud_events.structured(messages.structured(event)).get_data()
    assert data["EventName"] == event.name


@pytest.mark.parametrize(("line", "event"), list(sample_events.captured()))
def test_what_a_real_minio_sent_is_read_by_the_sdk_with_minios_message_as_data(line: str, event: Event) -> None:
    text = messages.structured(event)
    assert text.endswith(f',"data":{line}}}')
    cloud_events.assert_is(cloud_events.structured(text), event)


@given(key=ODD, bucket=ODD, name=ODD, sender=TEXTS, region=TEXTS, traced=st.booleans())
def test_whatever_an_event_says_its_cloud_event_is_valid_and_always_the_same(
    key: str, bucket: str, name: str, sender: str, region: str, traced: bool
) -> None:
    event = recorded(key, bucket, name, eventSource=sender, awsRegion=region)
    event = sample_events.traced(event) if traced else event
    text = messages.structured(event)
    assert text == messages.structured(event)
    attributes = messages.attributes(event)
    read = {name: value for name, value in json.loads(text).items() if name not in ("data", "datacontenttype")}
    assert read == attributes
    cloud_events.structured(text)
    cloud_events.of_attributes(attributes, payloads.log(event))
    for binding in (messages.HTTP, messages.NATS):
        headers = dict(messages.binary_headers(event, binding))
        assert all(re.fullmatch(r"[\x21-\x7e]+", value) and '"' not in value for value in headers.values())
        decoded = {name[3:]: unquote(value, errors="strict") for name, value in headers.items() if name[:3] == "ce-"}
        decoded.pop("datacontenttype", None)
        assert decoded == attributes
    for binding in (messages.KAFKA, messages.AMQP, messages.MQTT):
        plain = {binding.prefix + name: value for name, value in attributes.items()}
        assert dict(messages.binary_headers(event, binding)).items() >= plain.items()


@given(key=ODD, bucket=ODD, traced=st.booleans())
def test_another_bucketwire_records_the_same_event_of_each_mode(key: str, bucket: str, traced: bool) -> None:
    event = recorded(key, bucket)
    event = event._replace(trace=f'{sample_events.TRACEPARENT} a=%41 "1') if traced else event
    single, many = {"Content-Type": messages.STRUCTURED}, {"Content-Type": messages.BATCH}
    assert parse(messages.structured(event).encode(), single, now_ms=0).events == [event]
    assert parse(messages.batch([event, event]).encode(), many, now_ms=0).events == [event, event]
    headers = dict(messages.binary_headers(event, messages.HTTP))
    assert parse(payloads.log(event).encode(), headers, now_ms=0).events == [event]


def settings(type_name: str, **values: str) -> Any:
    places = {
        "nsq": {"nsqd_address": "h", "topic": "t"},
        "nats": {"address": "h", "subject": "s"},
        "redis": {"address": "h", "key": "k", "format": "access"},
    }
    return target_settings.load(type_name, places[type_name] | values)


def test_minios_messages_are_written_by_the_same_functions_as_ever_and_have_no_headers() -> None:
    for type_name, binding in (("nsq", None), ("nats", messages.NATS)):
        made = message_format(settings(type_name), *filter(None, [binding]))
        assert made.body is payloads.log
        assert made.headers is None
        assert made.content_type == "application/json"
    assert entry_format(settings("redis"), payloads.records) is payloads.records


@pytest.mark.parametrize("name", BINDINGS)
def test_binary_mode_adds_headers_to_minios_message_and_nothing_else(name: str) -> None:
    event = sample_events.traced(recorded())
    made = message_format(settings("nats", payload="cloudevents-binary"), BINDINGS[name])
    assert made.body is payloads.log
    assert made.content_type == "application/json"
    headers = made.all_headers(event)
    assert headers.items() >= sample_events.TRACE.items()  # as the protocol has it, too
    assert headers[BINDINGS[name].prefix + "traceparent"] == sample_events.TRACEPARENT


@pytest.mark.parametrize("name", BINDINGS)
def test_structured_mode_names_its_format_where_there_is_a_header_for_it(name: str) -> None:
    made = message_format(settings("nats", payload="cloudevents"), BINDINGS[name])
    assert made.content_type == messages.STRUCTURED
    header = BINDINGS[name].content_type
    assert made.all_headers(recorded()) == ({header: messages.STRUCTURED} if header else {})
