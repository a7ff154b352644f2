"""Say of each thing in a body what it is (§14.1), down to single records, whatever they are wrapped in."""

from collections.abc import Callable
from typing import Any

from app.events.frontends import eventbridge, seaweedfs, wrappings
from app.events.frontends.s3 import form_of
from app.events.frontends.wrappings import SnsConfirmation, Traced
from app.events.problems import BadRecord, excerpt

Normalised = dict[str, Any] | tuple[dict[str, Any], ...] | SnsConfirmation | Traced
Where = tuple[Any, str | int] | None  # the way to a thing from the body inwards: (outer, member or index)
Item = tuple[Callable[[Any], Normalised], Any, Where]  # how to normalise, what, where it stands

_MOST_WRAPPINGS = 8
_SHAPES = (
    "an S3 record or an object with `Records`, an event of EventBridge, SNS, CloudEvents or SeaweedFS,"
    " or an array or lines of these"
)


def items(value: Any, where: Where = None, wrappings_left: int = _MOST_WRAPPINGS) -> list[Item]:
    """Every record in the value, in order, with the function that normalises it; that function raises `BadRecord`.

    Never raises itself: what cannot be recognised becomes an item whose function says so, so that its neighbours are
    not held up.
    """
    if isinstance(value, list):
        return [item for index, each in enumerate(value) for item in _element(each, (where, index), wrappings_left)]
    if not isinstance(value, dict):
        return [_refused(BadRecord("it", f"is {excerpt(value)}; it must be {_SHAPES}"), where)]
    if "Records" in value:
        return _records(value["Records"], (where, "Records"), wrappings_left)
    if "s3" in value:
        return [(form_of(value), value, where)]
    return _message(value, where, wrappings_left)


def place(where: Where) -> str:
    """The way to a thing as text: `Records[3]`, `line 7`, `[2].Message.Records[0]`; "" for the body itself."""
    steps: list[str | int] = []
    while where is not None:
        where, step = where
        steps.append(step)
    text = ""
    for step in reversed(steps):
        text += f"[{step}]" if isinstance(step, int) else f"{'.' if text else ''}{step}"
    return text


def _element(value: Any, where: Where, wrappings_left: int) -> list[Item]:
    if isinstance(value, list):
        return [_refused(BadRecord("it", f"is an array in an array; it must be {_SHAPES}"), where)]
    return items(value, where, wrappings_left)


def _records(found: Any, where: Where, wrappings_left: int) -> list[Item]:
    if not isinstance(found, list):
        return [_refused(BadRecord("it", f"is {excerpt(found)}; it must be an array of records"), where)]
    listed: list[Item] = []
    for index, record in enumerate(found):
        if not isinstance(record, dict):
            listed.append(_refused(BadRecord("it", f"is {excerpt(record)}; it must be an object"), (where, index)))
        elif "s3" in record:
            listed.append((form_of(record), record, (where, index)))
        else:
            listed += _passed_on(record, (where, index), wrappings_left)
    return listed


def _passed_on(record: dict[str, Any], where: Where, wrappings_left: int) -> list[Item]:
    try:
        carried = wrappings.passed_on(record)
    except BadRecord as problem:
        return [_refused(problem, where)]
    if carried is None:
        return [_refused(BadRecord("s3", "is missing; it must be an object with bucket and object"), where)]
    return _inner(carried, where, wrappings_left)


def _message(value: dict[str, Any], where: Where, wrappings_left: int) -> list[Item]:
    kind = wrappings.sns_type(value)
    try:
        if kind == "Notification":
            return _inner(("Message", wrappings.sns_message(value)), where, wrappings_left)
        if wrappings.is_cloud_event(value):
            found = _inner(wrappings.cloud_event_data(value), where, wrappings_left)
            return _traced(found, trace) if (trace := wrappings.cloud_event_trace(value)) else found
    except BadRecord as problem:
        return [_refused(problem, where)]
    form: Callable[[Any], Normalised]
    if kind == "SubscriptionConfirmation":
        form = wrappings.sns_confirmation
    elif kind is not None or wrappings.is_test(value):
        form = _ignored
    elif eventbridge.recognised(value):
        form = eventbridge.record
    elif seaweedfs.recognised(value):
        form = seaweedfs.records
    else:
        return [_refused(BadRecord("it", f"is an object of unknown shape; it must be {_SHAPES}"), where)]
    return [(form, value, where)]


def _inner(carried: tuple[str, Any], where: Where, wrappings_left: int) -> list[Item]:
    member, value = carried
    if not wrappings_left:
        return [_refused(BadRecord("it", f"is wrapped more than {_MOST_WRAPPINGS} times"), (where, member))]
    return items(value, (where, member), wrappings_left - 1)


def _traced(found: list[Item], trace: str) -> list[Item]:
    return [(_with_trace(normalise, trace), thing, where) for normalise, thing, where in found]


def _with_trace(normalise: Callable[[Any], Normalised], trace: str) -> Callable[[Any], Normalised]:
    return lambda thing: Traced(normalise(thing), trace)


def _ignored(_: Any) -> Normalised:
    return ()


def _refused(problem: BadRecord, where: Where) -> Item:
    return _refuse, problem, where


def _refuse(problem: BadRecord) -> Normalised:
    raise problem
