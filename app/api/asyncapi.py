"""Generate the AsyncAPI 3 description of what targets receive: JSON Schemas of payloads, by the declared settings."""

import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

import orjson
from flask import Blueprint, Response

from app.api.auth import PUBLIC, needs
from app.api.description import answers
from app.config.declared_types import TYPES
from app.config.errors import BadSettings
from app.config.fields.field_types import Choice
from app.config.fields.fields import Field, fields_of
from app.config.target_settings import load
from app.config.targets.base import MessageSettings, NamespaceSettings, TargetSettings

routes = Blueprint("asyncapi", __name__)

_CHOICES = ("format", "payload", "body_shape", "access_shape", "version")  # the settings that decide what a target gets
_SEVERAL = "events_per_post"  # as well, if it is more than 1
_TEXT: Mapping[str, Any] = {"type": "string"}
_TIME = {**_TEXT, "format": "date-time", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$"}
_RECORD = {"$ref": "#/components/schemas/Record"}
_ONE_RECORD = {"type": "array", "items": _RECORD, "minItems": 1, "maxItems": 1}


def _exactly(**members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has these members and no other."""
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


def _with(*required: str, **members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object that has these members, of which some are required, and may have others."""
    return {"type": "object", "properties": members, "required": list(required)}


_NAME = {**_TEXT, "description": "what happened, such as s3:ObjectCreated:Put"}
_PATH = {**_TEXT, "description": "bucket/key, not encoded"}
_ENVELOPE = _exactly(EventName=_NAME, Key=_PATH, Records=_ONE_RECORD)
_CLOUD_EVENT = {
    **_with(
        "specversion", "id", "source", "type", "time", "datacontenttype", "data",
        specversion={"const": "1.0"},
        id={**_TEXT, "pattern": "^[0-9a-f]{32}$", "description": "the same at every attempt and target"},
        source={**_TEXT, "minLength": 1},
        type={**_TEXT, "pattern": r"^com\.amazonaws\.s3\."},
        time=_TIME,
        subject={**_TEXT, "minLength": 1, "description": "the key, decoded, where CloudEvents can have it"},
        sequencer=_TEXT,
        traceparent=_TEXT,
        tracestate=_TEXT,
        datacontenttype={"const": "application/json"},
        data={"$ref": "#/components/schemas/Envelope"},
    ),
    "additionalProperties": False,
}  # fmt: skip
SCHEMAS: Mapping[str, dict[str, Any]] = {
    "Record": {
        **_with(
            "eventName", "eventTime", "s3",
            eventName=_NAME,
            eventTime=_TEXT,
            s3=_with(
                "bucket", "object",
                bucket=_with("name", name=_TEXT),
                object=_with(
                    "key",
                    key={**_TEXT, "description": "form-encoded"},
                    size={"type": "integer"},
                    eTag=_TEXT, contentType=_TEXT, versionId=_TEXT, sequencer=_TEXT,
                    userMetadata={"type": ["object", "null"]},
                ),
            ),
        ),
        "description": "the event's record as the frontend sent it, or with MinIO's members",
    },
    "Envelope": {**_ENVELOPE, "description": "one event, as MinIO posts it"},
    "GuideEnvelope": {
        **_exactly(
            EventType=_NAME, Key=_PATH, Records=_ONE_RECORD, level={"const": "info"}, msg={"const": ""},
            time={**_TEXT, "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$"},
        ),
        "description": "one event, as in MinIO's guides of 2016 to 2020",
    },
    "RecordEnvelope": {**_exactly(Records=_ONE_RECORD), "description": "an object's newest event, or one event"},
    "RecordsEnvelope": {
        **_exactly(Records={"type": "array", "items": _RECORD, "minItems": 2}),
        "description": "several events in one request, as AWS sends them",
    },
    "CloudEvent": {**_CLOUD_EVENT, "description": "one event as a CloudEvent 1.0 in JSON"},
    "CloudEventBatch": {
        "type": "array", "items": {"$ref": "#/components/schemas/CloudEvent"}, "minItems": 1,
        "description": "events as CloudEvents in JSON's batch format",
    },
    "RedisEntry": {
        "type": "array", "items": _exactly(Event=_ONE_RECORD, EventTime=_TIME), "minItems": 1, "maxItems": 1,
        "description": "an element of the list of events, as MinIO writes it",
    },
    "RedisGuideEntry": {
        "type": "array", "items": [_TIME, _RECORD], "additionalItems": False, "minItems": 2,
        "description": "an element of the list of events, as in MinIO's guides",
    },
    "ElasticsearchGuideEntry": {
        **_exactly(**{"@timestamp": _TIME}, Records=_ONE_RECORD),
        "description": "a document of the index of events, as in MinIO's guides",
    },
}  # fmt: skip
_MEDIA_TYPES = {
    "CloudEvent": "application/cloudevents+json",
    "CloudEventBatch": "application/cloudevents-batch+json",
}


def schemas_of(settings: TargetSettings) -> Iterator[str]:
    """Yield the names of the schemas of what a target with these settings receives."""
    if isinstance(settings, NamespaceSettings):
        shape = getattr(settings, "access_shape", "minio")
        if settings.payload == "cloudevents":
            yield "CloudEvent"
        else:
            yield settings.entry_schemas.get((settings.format, shape), "RecordEnvelope")
    elif isinstance(settings, MessageSettings):
        several = getattr(settings, _SEVERAL, 1) > 1
        if settings.payload == "cloudevents":
            yield "CloudEventBatch" if several else "CloudEvent"
        else:
            yield {"guide": "GuideEnvelope", "s3": "RecordEnvelope"}.get(settings.body_shape, "Envelope")
            if several:
                yield "RecordsEnvelope"


def combinations(type_name: str) -> Iterator[tuple[Mapping[str, str], TargetSettings]]:
    """Yield every accepted combination of the settings that decide what a target of the type gets, defaults first.

    Each is the settings that are not the default, and a target that has them.
    """
    cls = TYPES[type_name]
    fields = {name: field for name, field in fields_of(cls).items() if words_of(name, field)}
    chosen = [
        {name: word for name, word in zip(fields, words, strict=True) if word != fields[name].default}
        for words in itertools.product(*(words_of(name, field) for name, field in fields.items()))
    ]
    for values in sorted(chosen, key=len):
        try:
            yield values, load(type_name, {**cls.example, **values})
        except BadSettings:
            continue  # such as what needs headers in a protocol that has none


def words_of(name: str, field: Field) -> tuple[str, ...]:
    """Return the values of a setting that decides what a target gets; none for other settings."""
    if name == _SEVERAL:
        return (str(field.default), "1000")
    return field.kind.words if name in _CHOICES and isinstance(field.kind, Choice) else ()


@routes.get("/asyncapi.json")
@needs(PUBLIC)
@answers(None, "the AsyncAPI 3 document", media_type="application/json")
def asyncapi() -> Response:
    """Return the description of what targets receive."""
    return Response(_document(), mimetype="application/json")


@cache
def _document() -> bytes:
    """Return the description as JSON: anybody may ask for it, so that costs nothing."""
    return orjson.dumps(described(), option=orjson.OPT_NON_STR_KEYS)


@cache
def described() -> dict[str, Any]:
    """Return the complete description of what each type of target receives."""
    channels, operations = {}, {}
    for type_name, cls in TYPES.items():
        asked: dict[str, list[Mapping[str, str]]] = {}
        for values, settings in combinations(type_name):
            for name in schemas_of(settings):
                asked.setdefault(name, []).append(values)
        messages = {
            name: {
                "payload": {"$ref": f"#/components/schemas/{name}"},
                "contentType": _MEDIA_TYPES.get(name, "application/json"),
                "summary": SCHEMAS[name]["description"],
                "x-settings": settings,
            }
            for name, settings in asked.items()
        }
        about = "what a target of this type receives; `x-settings` of a message: the settings that ask for it"
        channels[type_name] = {"address": None, "title": cls.title, "description": about, "messages": messages}
        operations[f"deliver-{type_name}"] = {"action": "send", "channel": {"$ref": f"#/channels/{type_name}"}}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Bucketwire: what targets receive",
            "version": version("bucketwire"),
            "description": "Each event is delivered at least once, and in order per object.",
        },
        "defaultContentType": "application/json",
        "channels": channels,
        "operations": operations,
        "components": {"schemas": SCHEMAS},
    }
