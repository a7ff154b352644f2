"""Say of each thing in a body what it is (§14.1), down to single records, whatever they are wrapped in."""

from collections.abc import Callable
from typing import Any

from app.events.errors import BadRecord, excerpt
from app.events.frontends import envelopes, eventbridge, seaweedfs
from app.events.frontends.envelopes import SnsConfirmation, Traced
from app.events.frontends.s3 import form_of

Normalized = dict[str, Any] | tuple[dict[str, Any], ...] | SnsConfirmation | Traced
Location = tuple[Any, str | int] | None  # the way to a thing from the body inwards: (outer, member or index)
Item = tuple[Callable[[Any], Normalized], Any, Location]  # how to normalise, what, where it stands

_MAX_NESTING = 8
_SHAPES = (
    "an S3 record or an object with `Records`, an event of EventBridge, SNS, CloudEvents or SeaweedFS,"
    " or an array or lines of these"
)


def items(value: Any, location: Location = None, levels_left: int = _MAX_NESTING) -> list[Item]:
    """Every record in the value, in order, with the function that normalises it; that function raises `BadRecord`.

    Never raises itself: what cannot be recognised becomes an item whose function says so, so that its neighbours are
    not held up.
    """
    if isinstance(value, list):
        return [item for index, each in enumerate(value) for item in _element(each, (location, index), levels_left)]
    if not isinstance(value, dict):
        return [_refused(BadRecord("it", f"is {excerpt(value)}; it must be {_SHAPES}"), location)]
    if "Records" in value:
        return _records(value["Records"], (location, "Records"), levels_left)
    if "s3" in value:
        return [(form_of(value), value, location)]
    return _message(value, location, levels_left)


def format_location(location: Location) -> str:
    """The way to a thing as text: `Records[3]`, `line 7`, `[2].Message.Records[0]`; "" for the body itself."""
    steps: list[str | int] = []
    while location is not None:
        location, step = location
        steps.append(step)
    text = ""
    for step in reversed(steps):
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{step}"
    return text


def _element(value: Any, location: Location, levels_left: int) -> list[Item]:
    if isinstance(value, list):
        return [_refused(BadRecord("it", f"is an array in an array; it must be {_SHAPES}"), location)]
    return items(value, location, levels_left)


def _records(found: Any, location: Location, levels_left: int) -> list[Item]:
    if not isinstance(found, list):
        return [_refused(BadRecord("it", f"is {excerpt(found)}; it must be an array of records"), location)]
    listed: list[Item] = []
    for index, record in enumerate(found):
        if not isinstance(record, dict):
            listed.append(_refused(BadRecord("it", f"is {excerpt(record)}; it must be an object"), (location, index)))
        elif "s3" in record:
            listed.append((form_of(record), record, (location, index)))
        else:
            listed += _passed_on(record, (location, index), levels_left)
    return listed


def _passed_on(record: dict[str, Any], location: Location, levels_left: int) -> list[Item]:
    try:
        carried = envelopes.passed_on(record)
    except BadRecord as problem:
        return [_refused(problem, location)]
    if carried is None:
        return [_refused(BadRecord("s3", "is missing; it must be an object with bucket and object"), location)]
    return _inner(carried, location, levels_left)


def _message(value: dict[str, Any], location: Location, levels_left: int) -> list[Item]:
    kind = envelopes.sns_type(value)
    try:
        if kind == "Notification":
            return _inner(("Message", envelopes.sns_message(value)), location, levels_left)
        if envelopes.is_cloud_event(value):
            found = _inner(envelopes.cloud_event_data(value), location, levels_left)
            return _traced(found, trace) if (trace := envelopes.cloud_event_trace(value)) else found
    except BadRecord as problem:
        return [_refused(problem, location)]
    form: Callable[[Any], Normalized]
    if kind == "SubscriptionConfirmation":
        form = envelopes.sns_confirmation
    elif kind is not None or envelopes.is_test(value):
        form = _ignored
    elif eventbridge.matches(value):
        form = eventbridge.record
    elif seaweedfs.matches(value):
        form = seaweedfs.records
    else:
        return [_refused(BadRecord("it", f"is an object of unknown shape; it must be {_SHAPES}"), location)]
    return [(form, value, location)]


def _inner(carried: tuple[str, Any], location: Location, levels_left: int) -> list[Item]:
    member, value = carried
    if not levels_left:
        return [_refused(BadRecord("it", f"is wrapped more than {_MAX_NESTING} times"), (location, member))]
    return items(value, (location, member), levels_left - 1)


def _traced(found: list[Item], trace: str) -> list[Item]:
    return [(_with_trace(normalize, trace), thing, location) for normalize, thing, location in found]


def _with_trace(normalize: Callable[[Any], Normalized], trace: str) -> Callable[[Any], Normalized]:
    return lambda thing: Traced(normalize(thing), trace)


def _ignored(_: Any) -> Normalized:
    return ()


def _refused(problem: BadRecord, location: Location) -> Item:
    return _refuse, problem, location


def _refuse(problem: BadRecord) -> Normalized:
    raise problem
