"""Detect the format of each record in a body (§14.1), whatever messages it is wrapped in."""

from collections.abc import Callable, Iterator
from typing import Any

from app.events.errors import BadRecord, excerpt
from app.events.frontends import envelopes, eventbridge, seaweedfs
from app.events.frontends.envelopes import SnsConfirmation, Traced
from app.events.frontends.s3 import form_of
from app.events.limits import Allowance

Normalized = dict[str, Any] | tuple[dict[str, Any], ...] | SnsConfirmation | Traced
Location = tuple[Any, str | int] | None  # the path from the body to a value: (outer location, member or index)
Item = tuple[Callable[[Any], Normalized], Any, Location]  # the function that normalises it, the value, its location

_MAX_NESTING = 8
_SHAPES = (
    "an S3 record or an object with `Records`, an event of EventBridge, SNS, CloudEvents or SeaweedFS,"
    " or an array or lines of these"
)


def items(
    value: Any, allowance: Allowance, location: Location = None, levels_left: int = _MAX_NESTING
) -> Iterator[Item]:
    """Yield every record in the value, in order, with the function that normalises it and may raise `BadRecord`.

    An unknown value becomes an item whose function raises, so that it does not affect its neighbours. The items are
    produced one at a time. Raises `BadEvents` only if the `allowance` is exceeded.
    """
    if isinstance(value, list):
        allowance.check_records(len(value))
        for index, each in enumerate(value):
            yield from _element(each, allowance, (location, index), levels_left)
    elif not isinstance(value, dict):
        yield _refused(BadRecord("it", f"is {excerpt(value)}; it must be {_SHAPES}"), location)
    elif "Records" in value:
        yield from _records(value["Records"], allowance, (location, "Records"), levels_left)
    elif "s3" in value:
        yield form_of(value), value, location
    else:
        yield from _message(value, allowance, location, levels_left)


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


def _element(value: Any, allowance: Allowance, location: Location, levels_left: int) -> Iterator[Item]:
    if isinstance(value, list):
        yield _refused(BadRecord("it", f"is an array in an array; it must be {_SHAPES}"), location)
    else:
        yield from items(value, allowance, location, levels_left)


def _records(found: Any, allowance: Allowance, location: Location, levels_left: int) -> Iterator[Item]:
    if not isinstance(found, list):
        yield _refused(BadRecord("it", f"is {excerpt(found)}; it must be an array of records"), location)
        return
    allowance.check_records(len(found))
    for index, record in enumerate(found):
        if not isinstance(record, dict):
            yield _refused(BadRecord("it", f"is {excerpt(record)}; it must be an object"), (location, index))
        elif "s3" in record:
            yield form_of(record), record, (location, index)
        else:
            yield from _passed_on(record, allowance, (location, index), levels_left)


def _passed_on(record: dict[str, Any], allowance: Allowance, location: Location, levels_left: int) -> Iterator[Item]:
    try:
        carried = envelopes.passed_on(record, allowance)
    except BadRecord as problem:
        yield _refused(problem, location)
        return
    if carried is None:
        yield _refused(BadRecord("s3", "is missing; it must be an object with bucket and object"), location)
    else:
        yield from _inner(carried, allowance, location, levels_left)


def _message(value: dict[str, Any], allowance: Allowance, location: Location, levels_left: int) -> Iterator[Item]:
    kind = envelopes.sns_type(value)
    carried: tuple[str, Any] | None = None
    trace = ""
    try:
        if kind == "Notification":
            carried = "Message", envelopes.sns_message(value, allowance)
        elif envelopes.is_cloud_event(value):
            carried = envelopes.cloud_event_data(value, allowance)
            trace = envelopes.cloud_event_trace(value)
    except BadRecord as problem:
        yield _refused(problem, location)
        return
    if carried is not None:
        inner = _inner(carried, allowance, location, levels_left)
        yield from _traced(inner, trace) if trace else inner
        return
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
        yield _refused(BadRecord("it", f"is an object of unknown shape; it must be {_SHAPES}"), location)
        return
    yield form, value, location


def _inner(carried: tuple[str, Any], allowance: Allowance, location: Location, levels_left: int) -> Iterator[Item]:
    member, value = carried
    if levels_left:
        yield from items(value, allowance, (location, member), levels_left - 1)
    else:
        yield _refused(BadRecord("it", f"is wrapped more than {_MAX_NESTING} times"), (location, member))


def _traced(found: Iterator[Item], trace: str) -> Iterator[Item]:
    for normalize, thing, location in found:
        yield _with_trace(normalize, trace), thing, location


def _with_trace(normalize: Callable[[Any], Normalized], trace: str) -> Callable[[Any], Normalized]:
    return lambda thing: Traced(normalize(thing), trace)


def _ignored(_: Any) -> Normalized:
    return ()


def _refused(problem: BadRecord, location: Location) -> Item:
    return _refuse, problem, location


def _refuse(problem: BadRecord) -> Normalized:
    raise problem
