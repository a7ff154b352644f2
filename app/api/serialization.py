"""Write JSON responses, and name the target of a path."""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson
from flask import Response

from app.config.arn import TargetId
from app.config.targets.registry import settings_type
from app.resources.declaration import Resource

_encode = msgspec.json.Encoder().encode


def json_response(content: Mapping[str, Any] | Resource, status: int = 200) -> Response:
    """Return a JSON response."""
    if isinstance(content, Resource):
        return Response(_encode(content), status, mimetype="application/json")
    return Response(orjson.dumps(content, option=orjson.OPT_NON_STR_KEYS), status, mimetype="application/json")


def target_of(type_name: str, name: str) -> TargetId:
    """Return the target that a path names. Raises `BadSettings` for an unknown type."""
    settings_type(type_name)
    return TargetId(type_name, name)
