"""Detect the format of each record in a body (§14.1), and unwrap the messages that it comes in.

These are SNS, SQS and what AWS passes on of both, CloudEvents, MinIO's lists (§1.8, §13, §14.1).
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from app.events import minio_json
from app.events.errors import BadRecord, excerpt
from app.events.frontends import clouds, eventbridge, gcs, seaweedfs
from app.events.frontends.frontend import (
    EventGridValidation,
    Frontend,
    Normalized,
    SnsConfirmation,
    Traced,
    find,
    optional_text,
    text,
)
from app.events.frontends.registry import MINIO, is_own, recognize, recognize_relayed, unsupported_service
from app.events.limits import Allowance
from app.events.model import trace_of

Location = tuple[Any, str | int] | None  # the path from the body to a value: (outer location, member or index)
Recognizer = Callable[[dict[str, Any]], Frontend]  # returns the sender of a record of S3's form
Item = tuple[Frontend, Any, Location]  # the sender, the value, its location

_MAX_NESTING = 8
_CONTENT = frozenset(("s3", "Message", "data", "data_base64", "detail"))  # what holds an event in another form
_SHAPES = (
    "an S3 record or an object with `Records`, an event of EventBridge, SNS, CloudEvents or SeaweedFS,"
    " or an array or lines of these"
)
# Senders of messages of their own, and how these are recognised.
_OWN_FORMS = (
    (clouds.is_azure, clouds.AZURE),
    (clouds.is_b2, clouds.B2),
    (clouds.is_r2, clouds.R2),
    (clouds.is_tigris, clouds.TIGRIS),
    (clouds.is_oci, clouds.OCI),
    (eventbridge.matches, eventbridge.EVENTBRIDGE),
    (seaweedfs.matches, seaweedfs.SEAWEEDFS),
)


class Context(NamedTuple):
    """What is the same for all values of a body: what is left of its limits, how a record's sender is found.

    `headers` are those of the request or message.
    """

    allowance: Allowance
    recognize: Recognizer
    headers: Mapping[str, str]


def context_of(allowance: Allowance, sender: Frontend | None, headers: Mapping[str, str]) -> Context:
    """Return the context of a body, whose records of S3's form are those of `sender` if the caller knows it."""
    return Context(allowance, recognize if sender is None else _recognizer(sender), headers)


def items(value: Any, context: Context, location: Location = None) -> Iterator[Item]:
    """Yield every record in the value, in order, with its frontend, which normalises it and may raise `BadRecord`.

    An unknown value becomes an item whose frontend raises, so that it does not affect its neighbours. The items are
    produced one at a time. Raises `BadEvents` only if the allowance is exceeded.
    """
    return _values(value, context, location, _MAX_NESTING)


def _recognizer(sender: Frontend) -> Recognizer:
    return lambda record: MINIO if is_own(record) else sender


def _in_minios_form(context: Context) -> Context:
    """Return the context of an envelope of MinIO: also the key in its records has MinIO's form."""
    return context._replace(recognize=recognize_relayed) if context.recognize is recognize else context


def _values(value: Any, context: Context, location: Location, levels_left: int) -> Iterator[Item]:
    if isinstance(value, list):
        context.allowance.check_records(len(value))
        for index, element in enumerate(value):
            value[index] = None  # the event that is made of it takes as much memory
            yield from _element(element, context, (location, index), levels_left)
    elif not isinstance(value, dict):
        yield _refused(BadRecord("it", f"is {excerpt(value)}; it must be {_SHAPES}"), location)
    elif "Records" in value:
        if not _CONTENT.isdisjoint(value):
            yield _refused(_ambiguous("Records", value), location)
            return
        if "Key" in value and "EventName" in value:
            context = _in_minios_form(context)
        yield from _records(value["Records"], context, (location, "Records"), levels_left)
    elif "s3" in value:
        yield context.recognize(value), value, location
    elif isinstance(messages := value.get(member := list_member(value)), list):
        if not _CONTENT.isdisjoint(value):
            yield _refused(_ambiguous(member, value), location)
            return
        context.allowance.check_records(len(messages))
        for index, message in enumerate(messages):
            yield from _element(message, context, ((location, member), index), levels_left)
    elif is_access_entry(value):
        yield from _records(value["Event"], _in_minios_form(context), (location, "Event"), levels_left)
    else:
        yield from _message(value, context, location, levels_left)


def _ambiguous(member: str, value: dict[str, Any]) -> BadRecord:
    other = next(name for name in value if name in _CONTENT)
    return BadRecord(other, f"is beside {member}; of these an event is in one")


def format_location(location: Location) -> str:
    """Return a location as text: `Records[3]`, `line 7`, `[2].Message.Records[0]`; "" for the body itself."""
    steps: list[str | int] = []
    while location is not None:
        location, step = location
        steps.append(step)
    path = ""
    for step in reversed(steps):
        path += f"[{step}]" if isinstance(step, int) else f"{'.' if path else ''}{step}"
    return path


def _element(value: Any, context: Context, location: Location, levels_left: int) -> Iterator[Item]:
    if isinstance(value, list):
        yield _refused(BadRecord("it", f"is an array in an array; it must be {_SHAPES}"), location)
    else:
        yield from _values(value, context, location, levels_left)


def _records(records: Any, context: Context, location: Location, levels_left: int) -> Iterator[Item]:
    if not isinstance(records, list):
        yield _refused(BadRecord("it", f"is {excerpt(records)}; it must be an array of records"), location)
        return
    context.allowance.check_records(len(records))
    for index, record in enumerate(records):
        records[index] = None  # as above
        if not isinstance(record, dict):
            yield _refused(BadRecord("it", f"is {excerpt(record)}; it must be an object"), (location, index))
        elif "s3" in record:
            yield context.recognize(record), record, (location, index)
        elif is_test(record):
            yield _IGNORED, record, (location, index)
        else:
            yield from _passed_on(record, context, (location, index), levels_left)


def _passed_on(record: dict[str, Any], context: Context, location: Location, levels_left: int) -> Iterator[Item]:
    try:
        carried = _carried_content(record, context.allowance)
    except BadRecord as problem:
        yield _refused(problem, location)
        return
    if carried is None:
        service = unsupported_service(record)
        missing = BadRecord("s3", "is missing; it must be an object with bucket and object")
        yield _refused(BadRecord("it", f"{service}; it must be {_SHAPES}") if service else missing, location)
    else:
        yield from _inner(carried, context, location, levels_left)


def _message(value: dict[str, Any], context: Context, location: Location, levels_left: int) -> Iterator[Item]:
    service = unsupported_service(value)
    if service and not is_event_grid_validation(value):
        yield _refused(BadRecord("it", f"{service}; it must be {_SHAPES}"), location)
        return
    try:
        item = _of_its_own(value, context)
        carried = _carried(value, context) if item is None else None
    except BadRecord as problem:
        yield _refused(problem, location)
        return
    trace = cloud_event_trace(value) if is_cloud_event(value) else ""
    if carried is not None:
        inner = _inner(carried, context, location, levels_left)
        yield from _traced(inner, trace) if trace else inner
        return
    sender, thing = item or (_of_no_event(value), value)
    yield _with_trace(sender, trace) if trace else sender, thing, location


def _of_its_own(value: dict[str, Any], context: Context) -> tuple[Frontend, Any] | None:
    """Return the sender of a message of its own form, and what it normalises; None for another. Raises `BadRecord`."""
    if is_event_grid_validation(value):
        return _VALIDATION, value
    if (notification := _of_gcs(value, context)) is not None:
        return gcs.GCS, notification
    return next(((sender, value) for matches, sender in _OWN_FORMS if matches(value)), None)


def _carried(value: dict[str, Any], context: Context) -> tuple[str, Any] | None:
    """Return the content of an envelope, with its member; None for another object. Raises `BadRecord`."""
    if sns_type(value) == "Notification":
        return "Message", sns_message(value, context.allowance)
    if is_pub_sub(value):
        return pub_sub_data(value, context.allowance)
    if is_cloud_event(value):
        return cloud_event_data(value, context.allowance)
    return _carried_content(value, context.allowance)


def _of_no_event(value: dict[str, Any]) -> Frontend:
    kind = sns_type(value)
    if kind == "SubscriptionConfirmation":
        return _CONFIRMATION
    if kind is not None or is_test(value):
        return _IGNORED
    return _UNKNOWN


def _of_gcs(value: dict[str, Any], context: Context) -> gcs.Notification | None:
    """Return the notification of Cloud Storage in a message of Google's; None if it is none. Raises `BadRecord`."""
    if is_pub_sub(value):
        attributes = value["message"].get("attributes")
        if not gcs.is_event(attributes):
            return None
        has_resource = bool(optional_text(value, "message", "data"))
        resource = pub_sub_data(value, context.allowance)[1] if has_resource else {}
        return gcs.Notification(attributes, resource)
    if gcs.is_cloud_event(value) and is_cloud_event(value):
        attributes = {"eventType": value["type"], "eventTime": optional_text(value, "time")}
        return gcs.Notification(attributes, cloud_event_data(value, context.allowance)[1])
    return gcs.unwrapped(value, context.headers) if gcs.is_resource(value) else gcs.of_function(value)


def _inner(carried: tuple[str, Any], context: Context, location: Location, levels_left: int) -> Iterator[Item]:
    member, value = carried
    if levels_left:
        yield from _values(value, context, (location, member), levels_left - 1)
    else:
        yield _refused(BadRecord("it", f"is wrapped more than {_MAX_NESTING} times"), (location, member))


def _traced(items: Iterator[Item], trace: str) -> Iterator[Item]:
    for sender, thing, location in items:
        yield _with_trace(sender, trace), thing, location


def _with_trace(sender: Frontend, trace: str) -> Frontend:
    return replace(sender, normalize=lambda thing: Traced(sender.normalize(thing), trace))


def _ignore(_: Any) -> Normalized:
    return ()


def _refuse_shape(_: Any) -> Normalized:
    raise BadRecord("it", f"is an object of unknown shape; it must be {_SHAPES}")


def _refused(problem: BadRecord, location: Location) -> Item:
    return REFUSED, problem, location


def _refuse(problem: BadRecord) -> Normalized:
    raise problem


_MAX_FORM_FIELDS = 500  # ten messages, each with ten attributes of three fields
_FORM_PIECE = 1 << 16  # bytes
_FORM = re.compile(rb"[A-Za-z]\w*(?:\.\w+)*=")
_FORM_CALL, _LATER_CALL = b"Action=", b"&Action="
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
_VALIDATION_TYPE = "Microsoft.EventGrid.SubscriptionValidationEvent"
_MAX_CODE = 1024
_SNS_TYPES = frozenset(("Notification", "SubscriptionConfirmation", "UnsubscribeConfirmation"))


def sns_type(value: Mapping[str, Any]) -> str | None:
    """Return the type of an SNS message, None for other objects."""
    type_name = value.get("Type")
    return type_name if isinstance(type_name, str) and type_name in _SNS_TYPES and "Message" in value else None


def sns_confirmation(value: Mapping[str, Any]) -> SnsConfirmation:
    """Return the content of a `SubscriptionConfirmation`. Raises `BadRecord`."""
    return SnsConfirmation(text(value, "TopicArn"), text(value, "Token"), text(value, "SubscribeURL"), value)


def is_event_grid_validation(value: Mapping[str, Any]) -> bool:
    """Return whether the object is Event Grid's handshake, in its own schema or as a CloudEvent."""
    return _VALIDATION_TYPE in (value.get("eventType"), value.get("type"))


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


def cloud_event_trace(value: Mapping[str, Any]) -> str:
    """Return the trace context in a CloudEvent's Distributed Tracing attributes; "" without a valid one."""
    return trace_of(value.get("traceparent"), value.get("tracestate"))


def _carried_content(record: Mapping[str, Any], allowance: Allowance) -> tuple[str, Any] | None:
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
    return begins_as_form(body) and (body.startswith(_FORM_CALL) or _LATER_CALL in body)


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


# Not senders, but what becomes of a value that is no record.
REFUSED = Frontend("", _refuse)
_UNKNOWN = Frontend("", _refuse_shape)
_IGNORED = Frontend("", _ignore)
_CONFIRMATION = Frontend("", sns_confirmation)
_VALIDATION = Frontend("", event_grid_validation)
