"""Read messages as CloudEvents with the SDK of the CloudEvents project, and check what the SDK does not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from cloudevents.core.bindings import amqp, http, kafka
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from app.events.model import Event

JSON = JSONFormat()
# The type String excludes control characters; a URI reference has few characters besides escaped ones (RFC 3986).
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_PATH = r"[A-Za-z0-9._~!$&'()*+,;=@/-]|%[0-9A-F]{2}"
_SOURCE = re.compile(rf"[A-Za-z][A-Za-z0-9+.-]*:(?:{_PATH}|:)+|(?:{_PATH})+")


def structured(body: str | bytes) -> CloudEvent:
    """The CloudEvent in a body in the JSON format."""
    return _checked(JSON.read(CloudEvent, body))


def batch(body: str | bytes) -> list[CloudEvent]:
    """The CloudEvents in a body in the JSON batch format."""
    return [structured(json.dumps(each)) for each in json.loads(body)]


def of_http(headers: Mapping[str, str], body: bytes) -> CloudEvent:
    """The CloudEvent of a request in either mode."""
    return _checked(http.from_http(http.HTTPMessage(dict(headers), body), JSON))


def of_kafka(headers: Mapping[str, bytes], value: bytes) -> CloudEvent:
    """The CloudEvent of a Kafka message in either mode; without its key, which the SDK makes an attribute."""
    return _checked(kafka.from_kafka(kafka.KafkaMessage(dict(headers), None, value), JSON))


def of_amqp(content_type: str, headers: Mapping[str, Any], body: bytes) -> CloudEvent:
    """The CloudEvent of an AMQP message in either mode, as an AMQP 1.0 client of RabbitMQ sees it."""
    return _checked(amqp.from_amqp(amqp.AMQPMessage({"content-type": content_type}, dict(headers), body), JSON))


def of_attributes(attributes: Mapping[str, str], data: bytes | str) -> CloudEvent:
    """The CloudEvent of these attributes, for protocols that the SDK has no binding for."""
    time = datetime.fromisoformat(attributes["time"])
    return _checked(CloudEvent({**attributes, "time": time}, json.loads(data)))


def assert_is(found: CloudEvent, event: Event) -> None:
    """The CloudEvent is that of the event; its subject is the key, or missing where it cannot be."""
    attributes = found.get_attributes()
    assert attributes["id"] == event.id
    assert attributes["source"].endswith(event.bucket)
    assert attributes["type"] == "com.amazonaws.s3." + event.name.removeprefix("s3:")
    assert round(attributes["time"].timestamp() * 1000) == event.time
    assert attributes.get("subject", "") == (event.key if _can_be_subject(event.key) else "")
    assert attributes.get("sequencer", "") == event.sequencer
    assert attributes["datacontenttype"] == "application/json"
    trace = " ".join(filter(None, (attributes.get(name) for name in ("traceparent", "tracestate"))))
    assert trace == event.trace
    data = found.get_data()
    assert isinstance(data, dict)
    assert data == {"EventName": event.name, "Key": event.path, "Records": [json.loads(event.record)]}


def _can_be_subject(key: str) -> bool:
    noncharacters = any(0xFDD0 <= ord(each) <= 0xFDEF or ord(each) & 0xFFFE == 0xFFFE for each in key)
    return len(key.encode()) <= 1024 and not _CONTROL.search(key) and not noncharacters


def _checked(found: Any) -> CloudEvent:
    for name, value in found.get_attributes().items():
        assert isinstance(value, datetime) or not _CONTROL.search(value), (name, value)
    assert _SOURCE.fullmatch(found.get_attributes()["source"])
    return found
