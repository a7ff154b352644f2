"""Unwrap messages: SNS, what a Lambda passes on of SQS and SNS, CloudEvents, MinIO's lists (§1.8, §13, §14.1)."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends.json_path import text
from app.events.limits import Allowance
from app.events.trace import trace_of

_MAX_FORM_FIELDS = 50
_SNS_TYPES = frozenset(("Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation"))


@dataclass(frozen=True, slots=True)
class SnsConfirmation:
    """SNS asks whether the topic's owner may send here: GET `subscribe_url` once to agree, for allowed topics only.

    Nothing in it has been verified. `message` is the complete message: the signature covers several members (§14.3).
    """

    topic_arn: str
    token: str
    subscribe_url: str
    message: Mapping[str, Any]


def sns_type(value: Mapping[str, Any]) -> str | None:
    """Return the type of an SNS message, None for other objects."""
    type_name = value.get("Type")
    return type_name if isinstance(type_name, str) and type_name in _SNS_TYPES and "Message" in value else None


def sns_confirmation(value: Mapping[str, Any]) -> SnsConfirmation:
    """Return the content of a `SubscriptionConfirmation`. Raises `BadRecord`."""
    return SnsConfirmation(text(value, "TopicArn"), text(value, "Token"), text(value, "SubscribeURL"), value)


def is_test(value: Mapping[str, Any]) -> bool:
    """Return whether AWS sent this to test a new configuration; it contains no records (§13)."""
    return value.get("Event") == "s3:TestEvent" and "Service" in value


def is_access_entry(value: Mapping[str, Any]) -> bool:
    """Return whether the object is what MinIO appends to a list of Redis with `format=access` (§1.8)."""
    return isinstance(value.get("Event"), list) and "EventTime" in value


def is_cloud_event(value: Mapping[str, Any]) -> bool:
    """Return whether the object is a CloudEvent in structured mode."""
    return "specversion" in value and ("data" in value or "data_base64" in value)


def cloud_event_data(value: Mapping[str, Any], allowance: Allowance) -> tuple[str, Any]:
    """Return the member that holds a CloudEvent's data, and the data. Raises `BadRecord`."""
    if "data" in value:
        data = value["data"]
        return ("data", nested(data, "data", allowance)) if isinstance(data, str) else ("data", data)
    try:
        decoded = base64.b64decode(text(value, "data_base64"), validate=True)
    except (binascii.Error, ValueError) as problem:
        if isinstance(problem, BadRecord):
            raise
        raise BadRecord("data_base64", f"is not base64: {problem}") from None
    return "data_base64", nested(decoded, "data_base64", allowance)


@dataclass(frozen=True, slots=True)
class Traced:
    """The content of a message (`made`), and the message's own trace context."""

    made: Any
    trace: str


def cloud_event_trace(value: Mapping[str, Any]) -> str:
    """Return the trace context in a CloudEvent's Distributed Tracing attributes; "" without a valid one."""
    return trace_of(value.get("traceparent"), value.get("tracestate"))


def passed_on(record: Mapping[str, Any], allowance: Allowance) -> tuple[str, Any] | None:
    """Return the content of an SQS or SNS record, with its member; None for other records. Raises `BadRecord`."""
    source = record.get("eventSource") or record.get("EventSource")
    if source == "aws:sqs":
        return "body", nested(text(record, "body"), "body", allowance)
    if source == "aws:sns":
        return "Sns.Message", nested(text(record, "Sns", "Message"), "Sns.Message", allowance)
    return None


def sns_message(value: Mapping[str, Any], allowance: Allowance) -> Any:
    """Return the content of a `Notification`. Raises `BadRecord`."""
    return nested(text(value, "Message"), "Message", allowance)


def form_message(body: bytes, allowance: Allowance) -> Any:
    """Return the message of a call of SNS's action `Publish`, as StorageGRID sends it. Raises `BadRecord`."""
    try:
        members = dict(parse_qsl(body.decode("ascii"), max_num_fields=_MAX_FORM_FIELDS))
    except ValueError:
        raise BadRecord("it", "is no form; SNS's action Publish has Action, Message and TopicArn") from None
    if members.get("Action") != "Publish":
        raise BadRecord("Action", f'is {excerpt(members.get("Action"))}; it must be "Publish"')
    return sns_message(members, allowance)


def nested(inner: str | bytes, member: str, allowance: Allowance) -> Any:
    """Return the value of a member's JSON text. Raises `BadRecord`, and `BadEvents` beyond the allowance."""
    raw = inner.encode() if isinstance(inner, str) else inner
    allowance.check_text(raw)
    try:
        return minio_json.load(raw)
    except minio_json.BadJson as problem:
        shown = excerpt(inner) if isinstance(inner, str) else "its content"
        said = f"is not JSON at its byte {problem.offset}: {problem}; it is {shown}"
        raise BadRecord(member, said, problem.offset) from None
