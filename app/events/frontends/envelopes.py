"""Unwrap messages: SNS, SQS and what AWS passes on of both, CloudEvents, MinIO's lists (§1.8, §13, §14.1)."""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends.json_path import find, text
from app.events.limits import Allowance
from app.events.model import trace_of

_MAX_FORM_FIELDS = 500  # ten messages, each with ten attributes of three fields
_FORM_PIECE = 1 << 16  # bytes
_FORM = re.compile(rb"[A-Za-z]\w*(?:\.\w+)*=")
_CALL, _LATER_CALL = b"Action=", b"&Action="
_BATCH = "PublishBatchRequestEntries.member."
_ENTRY = re.compile(_BATCH.replace(".", r"\.") + r"(\d{1,9})\.", re.ASCII)
_MAX_ENTRIES = 10  # as in SNS
_FIREHOSE_MEMBERS = {"data", "recordId", "approximateArrivalTimestamp", "kinesisRecordMetadata"}
_PASSED_ON: Mapping[str, tuple[str, ...]] = {"aws:sqs": ("body",), "aws:sns": ("Sns", "Message")}
_ENVELOPES = (  # members by which an envelope is known, and the one that has its content
    ({"requestPayload", "requestContext"}, "requestPayload"),  # a Lambda's destination for failed calls
    ({"@timestamp", "message"}, "message"),  # Logstash and Beats
    ({"source_type", "message"}, "message"),  # Vector
    ({"schema", "payload"}, "payload"),  # Kafka Connect's JsonConverter with schemas
    ({"meta", "notif"}, "notif"),  # NooBaa's log of what it has to send
)
_VALIDATION = "Microsoft.EventGrid.SubscriptionValidationEvent"
_MAX_CODE = 1024
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


@dataclass(frozen=True, slots=True)
class EventGridValidation:
    """Event Grid asks whether it may send here: whoever answers with `code` agrees."""

    code: str


def sns_type(value: Mapping[str, Any]) -> str | None:
    """Return the type of an SNS message, None for other objects."""
    type_name = value.get("Type")
    return type_name if isinstance(type_name, str) and type_name in _SNS_TYPES and "Message" in value else None


def sns_confirmation(value: Mapping[str, Any]) -> SnsConfirmation:
    """Return the content of a `SubscriptionConfirmation`. Raises `BadRecord`."""
    return SnsConfirmation(text(value, "TopicArn"), text(value, "Token"), text(value, "SubscribeURL"), value)


def is_event_grid_validation(value: Mapping[str, Any]) -> bool:
    """Return whether the object is Event Grid's handshake, in its own schema or as a CloudEvent."""
    return _VALIDATION in (value.get("eventType"), value.get("type"))


def event_grid_validation(value: Mapping[str, Any]) -> EventGridValidation:
    """Return the content of Event Grid's handshake. Raises `BadRecord`."""
    code = text(value, "data", "validationCode")
    if len(code) > _MAX_CODE:
        raise BadRecord("data.validationCode", f"has {len(code)} characters; it must have at most {_MAX_CODE}")
    return EventGridValidation(code)


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
    if "data" in value and "data_base64" in value:
        raise BadRecord("data_base64", "is beside data; a CloudEvent has one of them")
    if "data" in value:
        if not isinstance(value["data"], str):
            return "data", value["data"]
        return "data", nested(_taken(value, "data"), "data", allowance)
    return "data_base64", _decoded(value, allowance, "data_base64")


def is_pub_sub(value: Mapping[str, Any]) -> bool:
    """Return whether the object is a message of Google Pub/Sub as a pull has it, or a push that wraps."""
    known = isinstance(value.get("subscription"), str) or isinstance(value.get("ackId"), str)
    return known and isinstance(value.get("message"), dict)


def pub_sub_data(value: Mapping[str, Any], allowance: Allowance) -> tuple[str, Any]:
    """Return the content of a message of Pub/Sub, with its member. Raises `BadRecord`."""
    return "message.data", _decoded(value, allowance, "message", "data")


@dataclass(frozen=True, slots=True)
class Traced:
    """The content of a message (`made`), and the message's own trace context."""

    made: Any
    trace: str


def cloud_event_trace(value: Mapping[str, Any]) -> str:
    """Return the trace context in a CloudEvent's Distributed Tracing attributes; "" without a valid one."""
    return trace_of(value.get("traceparent"), value.get("tracestate"))


def passed_on(record: Mapping[str, Any], allowance: Allowance) -> tuple[str, Any] | None:
    """Return the content of a record or message that passes on another one, with its member; None for others.

    These are what a Lambda, a pipe of EventBridge or a client gets of SQS, SNS, Kinesis and Firehose, alone or in a
    list, an event of Argo Events, whose attributes are in `context`, and `_ENVELOPES`. Raises `BadRecord`.
    """
    source = record.get("eventSource") or record.get("EventSource")
    if source == "aws:kinesis":
        # A pipe of EventBridge has the members of `kinesis` at the top.
        path = ("kinesis", "data") if "kinesis" in record else ("data",)
        return ".".join(path), _decoded(record, allowance, *path)
    if isinstance(record.get("data"), str) and record.keys() <= _FIREHOSE_MEMBERS:
        return "data", _decoded(record, allowance, "data")
    inner = _PASSED_ON.get(source, ()) if isinstance(source, str) else ()
    if "Body" in record and ("MessageId" in record or "ReceiptHandle" in record):
        inner = ("Body",)
    elif "data" in record and find(record, "context", "specversion"):
        inner = ("data",)
    elif not inner:
        inner = next(((member,) for members, member in _ENVELOPES if members <= record.keys()), ())
    return (".".join(inner), _content(record, allowance, *inner)) if inner else None


def list_member(value: Mapping[str, Any]) -> str:
    """Return the member with a list of messages: of a client of SQS or Pub/Sub, Argo Events, Firehose, B2, Tigris."""
    for member in ("Messages", "receivedMessages", "notification"):
        if member in value:
            return member
    if isinstance(events := value.get("events"), list) and events and isinstance(events[0], dict):
        return "events"
    return "records" if "records" in value and ("requestId" in value or "invocationId" in value) else ""


def _content(value: Mapping[str, Any], allowance: Allowance, *path: str) -> Any:
    """Return the value of the JSON text at the path, or the value itself if somebody has parsed it already."""
    member = find(value, *path)
    if isinstance(member, dict | list):
        return member
    return nested(_taken(value, *path), ".".join(path), allowance)


def _decoded(value: Mapping[str, Any], allowance: Allowance, *path: str) -> Any:
    """Return the value of the JSON text at the path that is encoded in base64."""
    name, encoded = ".".join(path), _taken(value, *path)
    try:
        decoded = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise BadRecord(name, f"is not base64: {problem}") from None
    del encoded
    return nested(decoded, name, allowance)


def sns_message(value: Mapping[str, Any], allowance: Allowance) -> Any:
    """Return the content of a `Notification`. Raises `BadRecord`."""
    return _content(value, allowance, "Message")


def begins_as_form(body: minio_json.Encoded) -> bool:
    """Return whether a body, of which this is the beginning, may be a form; JSON never is."""
    return _FORM.match(body) is not None


def is_sns_call(body: minio_json.Encoded) -> bool:
    """Return whether a body is a call of SNS's API: a form, with its fields in any order."""
    return begins_as_form(body) and (body.startswith(_CALL) or _LATER_CALL in body)


def sns_call(body: minio_json.Encoded) -> "SnsCall":
    """Return the call of SNS's API in a form. Raises `BadRecord` unless it publishes."""
    if not body.isascii() or body.count(b"&") >= _MAX_FORM_FIELDS:
        raise BadRecord("it", "is no form; SNS's action Publish has Action, Message and TopicArn")
    fields: dict[str, str] = {}
    for quoted, _, value in (part.partition(b"=") for part in body.split(b"&")):
        if value:
            name = _unquoted(quoted)
            if name in fields:
                raise BadRecord("it", f"has the field {excerpt(name)} twice")
            fields[name] = _unquoted(value)
    action = fields.get("Action")
    entries = sorted({found[1] for name in fields if (found := _ENTRY.match(name))}, key=int)
    if action == "Publish":
        if entries:
            raise BadRecord("it", "has entries, which a call of Publish has not")
        return SnsCall(None, ("Message",), fields)
    if action != "PublishBatch":
        raise BadRecord("Action", f'is {excerpt(action)}; it must be "Publish" or "PublishBatch"')
    if not 1 <= len(entries) <= _MAX_ENTRIES:
        raise BadRecord("it", f"has {len(entries)} entries; a call of PublishBatch has one to {_MAX_ENTRIES}")
    if "Message" in fields:
        raise BadRecord("Message", "is beside the entries; each entry of a call of PublishBatch has its own")
    ids = tuple([text(fields, f"{_BATCH}{entry}.Id") for entry in entries])
    return SnsCall(ids, tuple([f"{_BATCH}{entry}.Message" for entry in entries]), fields)


def _unquoted(quoted: minio_json.Encoded) -> str:
    """Return a text of a form; in pieces, because the library makes two objects of each escape."""
    unquoted, start = bytearray(), 0
    while start < len(quoted):
        end = start + _FORM_PIECE
        escape = quoted.rfind(b"%", end - 2, end)  # one that the end would divide
        end = escape if escape >= 0 else end
        unquoted += unquote_to_bytes(bytes(quoted[start:end]).replace(b"+", b" "))
        start = end
    return unquoted.decode(errors="replace")


class SnsCall(NamedTuple):
    """A call that publishes messages; `batch` has the ids of a batch's entries."""

    batch: tuple[str, ...] | None
    members: tuple[str, ...]
    fields: dict[str, str]

    def message(self, member: str, allowance: Allowance) -> Any:
        """Return the content of a member; HTTP's, if it has one for each protocol. Raises `BadRecord`."""
        content = _content(self.fields, allowance, member)
        if self.fields.get(f"{member}Structure") != "json":
            return content
        chosen = next((name for name in ("https", "http") if isinstance(find(content, name), str)), "default")
        try:
            return _content(content, allowance, chosen)
        except BadRecord as problem:
            raise BadRecord(f"{member}.{problem.field}", problem.problem, problem.offset) from None


def _taken(value: Any, *path: str) -> str:
    """Return the text at the path, which is left out of the message from now on: what is read in it takes as much."""
    member = text(value, *path)
    find(value, *path[:-1])[path[-1]] = ""
    return member


def nested(inner: str | bytes, member: str, allowance: Allowance) -> Any:
    """Return the value of a member's JSON text. Raises `BadRecord`, and `BadEvents` beyond the allowance."""
    raw = inner.encode() if isinstance(inner, str) else inner
    shown = excerpt(inner) if isinstance(inner, str) else "its content"
    del inner
    allowance.check_text(raw)
    try:
        return minio_json.load(raw)
    except minio_json.BadJson as problem:
        said = f"is not JSON at its byte {problem.offset}: {problem}; it is {shown}"
        raise BadRecord(member, said, problem.offset) from None
