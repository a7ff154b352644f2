"""Write values in responses and parse them from queries: JSON, times, numbers, names of targets."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from flask import Response

from app.api.errors import ApiProblem
from app.config.arn import TargetId, parse_target
from app.config.errors import BadValue

MAX_TEXT_LENGTH = 4096  # characters: an object's key has at most as many bytes
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_FIRST = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def json_response(content: Mapping[str, Any], status: int = 200) -> Response:
    """Return a JSON response."""
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), status, mimetype="application/json")


def format_time(at: int) -> str | None:
    """Format milliseconds since 1970 as RFC 3339 in UTC, in the years 1 to 9999; null for no time."""
    if not at:
        return None
    time = _EPOCH + timedelta(milliseconds=min(max(at, _FIRST), _LAST))
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parsed_time(field: str, value: object, default: int) -> int:
    """Parse RFC 3339, or milliseconds since 1970, to milliseconds since 1970. Raises `ApiProblem`.

    A time is in the years 1 to 9999, so that `format_time` can write it.
    """
    if value is None or value == "":
        return default
    at = _milliseconds(value)
    if at is None or not _FIRST <= at <= _LAST:
        raise bad_value(field, "is not a time", "write it as 2026-11-21T00:33:56Z, or in milliseconds since 1970")
    return at


def _milliseconds(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    try:
        if value.isascii() and value.isdigit():
            return int(value)  # raises ValueError for more digits than Python converts
        time = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // _MILLISECOND


def parsed_number(field: str, value: object, default: int, *, least: int, most: int) -> int:
    """Parse an integer from `least` to `most`, both included. Raises `ApiProblem`."""
    if value is None:
        return default
    try:
        number = int(value) if isinstance(value, int | str) and not isinstance(value, bool) else least - 1
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise bad_value(field, "is not in range", f"give a whole number from {least} to {most}")
    return number


def parsed_flag(field: str, value: object) -> bool:
    """Parse `true` or `false`; false without a value. Raises `ApiProblem`."""
    known = {None: False, "": False, "true": True, "1": True, "false": False, "0": False, True: True, False: False}
    if not isinstance(value, str | bool | None) or value not in known:
        raise bad_value(field, "is neither true nor false", "write true or false")
    return known[value]


def parsed_text(field: str, value: object) -> str:
    """Parse a text that every database can search for; "" without a value. Raises `ApiProblem`."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_value(field, "is not a string", "put it in quotes")
    if len(value) > MAX_TEXT_LENGTH:
        raise bad_value(field, f"has {len(value)} characters", f"give at most {MAX_TEXT_LENGTH}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise bad_value(field, "has an unpaired surrogate", "write it as UTF-8") from None
    if "\0" in value:
        raise bad_value(field, "contains U+0000", "remove it: no name, key or reason has it")
    return value


def parsed_target(field: str, value: object) -> TargetId:
    """Parse an ARN or `type:name` as a target. Raises `ApiProblem`."""
    try:
        return parse_target(parsed_text(field, value))
    except BadValue as error:
        raise bad_value(field, error.problem, error.hint) from None


def refuse_unknown(members: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Raise `ApiProblem` for unknown members: a misspelt filter must not select everything."""
    for name in members:
        if name not in known:
            raise bad_value(name, "is unknown", f"known are {', '.join(known)}")


def parsed_query_filter(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a query's filter in the form of a body's, in which `ids` is a list."""
    filters = dict(arguments)
    if "ids" in filters:
        filters["ids"] = [part.strip() for part in filters["ids"].split(",") if part.strip()]
    return filters


def explicit_filter(filters: Mapping[str, Any], known: tuple[str, ...]) -> dict[str, Any]:
    """Return the members of a change's filter that are set; none if it has `all` instead. Raises `ApiProblem`.

    A change of everything needs `all`, so that a filter is not left out by mistake.
    """
    refuse_unknown(filters, (*known, "all"))
    chosen = {name: value for name, value in filters.items() if name != "all" and value not in (None, "", [])}
    if filters.get("all") is True:
        if chosen:
            raise bad_value("all", "contradicts the filter", "omit one of them")
    elif not chosen:
        raise bad_value("all", "is not set, and no filter is", 'give a filter, or {"all": true}')
    return chosen


def bad_value(field: str, problem: str, hint: str) -> ApiProblem:
    """Return the problem for a field with an invalid value; `hint` describes a valid one."""
    return ApiProblem("bad-value", f"{field} {problem}; {hint}", {"field": field})
