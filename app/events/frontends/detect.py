"""Detect the format of each record in a body (§14.1), whatever messages it is wrapped in."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from app.events.errors import BadRecord, excerpt
from app.events.frontends import azure, b2, envelopes, eventbridge, gcs, oci, r2, seaweedfs, tigris, unsupported
from app.events.frontends.envelopes import Traced
from app.events.frontends.frontend import Frontend, Normalized
from app.events.frontends.json_path import optional_text
from app.events.frontends.registry import MINIO, is_own, recognize, recognize_relayed
from app.events.limits import Allowance

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
    (azure.matches, azure.AZURE),
    (b2.matches, b2.B2),
    (r2.matches, r2.R2),
    (tigris.matches, tigris.TIGRIS),
    (oci.matches, oci.OCI),
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
    elif isinstance(messages := value.get(member := envelopes.list_member(value)), list):
        if not _CONTENT.isdisjoint(value):
            yield _refused(_ambiguous(member, value), location)
            return
        context.allowance.check_records(len(messages))
        for index, message in enumerate(messages):
            yield from _element(message, context, ((location, member), index), levels_left)
    elif envelopes.is_access_entry(value):
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
    text = ""
    for step in reversed(steps):
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{step}"
    return text


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
        elif envelopes.is_test(record):
            yield _IGNORED, record, (location, index)
        else:
            yield from _passed_on(record, context, (location, index), levels_left)


def _passed_on(record: dict[str, Any], context: Context, location: Location, levels_left: int) -> Iterator[Item]:
    try:
        carried = envelopes.passed_on(record, context.allowance)
    except BadRecord as problem:
        yield _refused(problem, location)
        return
    if carried is None:
        service = unsupported.service(record)
        missing = BadRecord("s3", "is missing; it must be an object with bucket and object")
        yield _refused(BadRecord("it", f"{service}; it must be {_SHAPES}") if service else missing, location)
    else:
        yield from _inner(carried, context, location, levels_left)


def _message(value: dict[str, Any], context: Context, location: Location, levels_left: int) -> Iterator[Item]:
    service = unsupported.service(value)
    if service and not envelopes.is_event_grid_validation(value):
        yield _refused(BadRecord("it", f"{service}; it must be {_SHAPES}"), location)
        return
    try:
        item = _of_its_own(value, context)
        carried = _carried(value, context) if item is None else None
    except BadRecord as problem:
        yield _refused(problem, location)
        return
    trace = envelopes.cloud_event_trace(value) if envelopes.is_cloud_event(value) else ""
    if carried is not None:
        inner = _inner(carried, context, location, levels_left)
        yield from _traced(inner, trace) if trace else inner
        return
    sender, thing = item or (_of_no_event(value), value)
    yield _with_trace(sender, trace) if trace else sender, thing, location


def _of_its_own(value: dict[str, Any], context: Context) -> tuple[Frontend, Any] | None:
    """Return the sender of a message of its own form, and what it normalises; None for another. Raises `BadRecord`."""
    if envelopes.is_event_grid_validation(value):
        return _VALIDATION, value
    if (notification := _of_gcs(value, context)) is not None:
        return gcs.GCS, notification
    return next(((sender, value) for matches, sender in _OWN_FORMS if matches(value)), None)


def _carried(value: dict[str, Any], context: Context) -> tuple[str, Any] | None:
    """Return the content of an envelope, with its member; None for another object. Raises `BadRecord`."""
    if envelopes.sns_type(value) == "Notification":
        return "Message", envelopes.sns_message(value, context.allowance)
    if envelopes.is_pub_sub(value):
        return envelopes.pub_sub_data(value, context.allowance)
    if envelopes.is_cloud_event(value):
        return envelopes.cloud_event_data(value, context.allowance)
    return envelopes.passed_on(value, context.allowance)


def _of_no_event(value: dict[str, Any]) -> Frontend:
    kind = envelopes.sns_type(value)
    if kind == "SubscriptionConfirmation":
        return _CONFIRMATION
    if kind is not None or envelopes.is_test(value):
        return _IGNORED
    return _UNKNOWN


def _of_gcs(value: dict[str, Any], context: Context) -> gcs.Notification | None:
    """Return the notification of Cloud Storage in a message of Google's; None if it is none. Raises `BadRecord`."""
    if envelopes.is_pub_sub(value):
        attributes = value["message"].get("attributes")
        if not gcs.is_event(attributes):
            return None
        has_resource = bool(optional_text(value, "message", "data"))
        resource = envelopes.pub_sub_data(value, context.allowance)[1] if has_resource else {}
        return gcs.Notification(attributes, resource)
    if gcs.is_cloud_event(value) and envelopes.is_cloud_event(value):
        attributes = {"eventType": value["type"], "eventTime": optional_text(value, "time")}
        return gcs.Notification(attributes, envelopes.cloud_event_data(value, context.allowance)[1])
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


# Not senders, but what becomes of a value that is no record.
REFUSED = Frontend("", _refuse)
_UNKNOWN = Frontend("", _refuse_shape)
_IGNORED = Frontend("", _ignore)
_CONFIRMATION = Frontend("", envelopes.sns_confirmation)
_VALIDATION = Frontend("", envelopes.event_grid_validation)
