"""Write JSON responses, and parse values of bodies and queries for which a `Query` declares too little."""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson
from flask import Response

from app.api.errors import ApiProblem
from app.config.arn import TargetId
from app.config.targets.registry import settings_type
from app.resources.declaration import (
    Resource,
    parse_flag,
    parse_number,
    parse_target_name,
    parse_text,
    parse_time,
)

_encode = msgspec.json.Encoder().encode


def json_response(content: Mapping[str, Any] | Resource, status: int = 200) -> Response:
    """Return a JSON response."""
    if isinstance(content, Resource):
        return Response(_encode(content), status, mimetype="application/json")
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), status, mimetype="application/json")


def parsed_time(field: str, value: object, default: int) -> int:
    """Parse a time to milliseconds since 1970; the default without a value. Raises `BadMember`."""
    return default if value in (None, "") else parse_time(field, value)


def parsed_number(field: str, value: object, default: int, *, least: int, most: int) -> int:
    """Parse an integer from `least` to `most`; the default without a value. Raises `BadMember`."""
    return default if value is None else parse_number(field, value, least, most)


def parsed_flag(field: str, value: object) -> bool:
    """Parse `true` or `false`; false without a value. Raises `BadMember`."""
    return value not in (None, "") and parse_flag(field, value)


def parsed_text(field: str, value: object) -> str:
    """Parse a text that every database can search for; "" without a value. Raises `BadMember`."""
    return "" if value is None else parse_text(field, value)


def parsed_target(field: str, value: object) -> TargetId:
    """Parse an ARN or `type:name` as a target. Raises `BadMember`."""
    return parse_target_name(field, "" if value is None else value)


def target_of(type_name: str, name: str) -> TargetId:
    """Return the target that a path names. Raises `BadSettings` for an unknown type."""
    settings_type(type_name)
    return TargetId(type_name, name)


def bad_value(field: str, problem: str, hint: str) -> ApiProblem:
    """Return the problem for a field with an invalid value; `hint` describes a valid one."""
    return ApiProblem("bad-value", f"{field} {problem}; {hint}", {"field": field})
