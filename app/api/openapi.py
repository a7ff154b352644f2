"""Generate the API's OpenAPI 3.1 description from the routes and the YAML in their docstrings."""

from functools import cache
from importlib.metadata import version
from typing import Any

from apispec import APISpec
from apispec_webframeworks.flask import FlaskPlugin
from flask import Blueprint, Flask, Response, current_app

from app.api.auth import PUBLIC, needs
from app.api.errors import PROBLEM_TYPES
from app.api.serialization import MAX_TEXT_LENGTH, json_response
from app.config.fields.fields import fields_of
from app.config.settings import SCOPES
from app.config.targets.registry import TYPES
from app.events.names import AGGREGATES, EVERY, KNOWN
from app.manifest.document import schema as document_schema
from app.outbox.reconcile.runs import COUNTS

routes = Blueprint("description", __name__)

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_FLAG = {"type": "boolean"}
_TARGET = {
    **_TEXT,
    "pattern": rf"^({'|'.join(TYPES)}):[A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}$"
    rf"|^arn:minio:sqs:[A-Za-z0-9_-]{{0,64}}:[A-Za-z0-9_][A-Za-z0-9_.-]{{0,63}}:({'|'.join(TYPES)})$",
    "description": "an ARN or type:name",
}
_TIME = {"type": ["string", "null"], "format": "date-time"}
_COUNTS = {"type": "object", "additionalProperties": _NUMBER, "description": "by ARN"}
_COUNTERS = ("matched", "recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _with(required: str, described: dict[str, Any]) -> dict[str, Any]:
    return described | {"required": required.split()}


def _list(of: str) -> dict[str, Any]:
    return {"type": "array", "items": {"$ref": f"#/components/schemas/{of}"}}


_FILTER: dict[str, Any] = {
    "ids": {"type": "array", "items": _NUMBER},
    "target": _TARGET,
    "bucket": _TEXT,
    "prefix": _TEXT,
    "reason": {**_TEXT, "description": "a part of the reason"},
    "since": {**_TEXT, "format": "date-time"},
    "before": {**_TEXT, "format": "date-time"},
    "all": {**_FLAG, "description": "required if no filter is given"},
}
_RULE: dict[str, Any] = {
    "bucket": {**_TEXT, "minLength": 1, "maxLength": 255, "description": "the bucket's name; * for every bucket"},
    "events": {
        "type": "array",
        "items": {**_TEXT, "enum": [EVERY, *sorted(AGGREGATES), *sorted(KNOWN)]},
        "minItems": 1,
        "uniqueItems": True,
        "description": '["*"] for every event, known or not',
    },
    "prefix": _TEXT,
    "suffix": _TEXT,
    "target": _TARGET,
    "rule_id": _TEXT,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "Problem": _object(
        type={**_TEXT, "enum": [f"urn:bucketwire:problem:{kind}" for kind in PROBLEM_TYPES]},
        title=_TEXT,
        status=_NUMBER,
        detail=_TEXT,
        field={**_TEXT, "description": "the invalid parameter or member"},
        offset={**_NUMBER, "description": "the byte at which the JSON is invalid"},
        index={**_NUMBER, "description": "the invalid record, from 0"},
        errors={"type": "array", "items": _object(field=_TEXT, value=_TEXT, problem=_TEXT, hint=_TEXT)},
        targets={"type": "array", "items": _TEXT},
        id={**_TEXT, "description": "the id of an unexpected error in the API's log"},
    ),
    "Receipt": _object(
        recorded=_NUMBER,
        repeated={**_NUMBER, "description": "recorded before"},
        ignored={**_NUMBER, "description": "records that are no events: a sender's test messages, folders"},
        matched=_COUNTS,
        discarded={**_COUNTS, "description": "not recorded for a target because its queue is full, by ARN"},
        refused={"type": "array", "items": _object(index=_NUMBER, field=_TEXT, problem=_TEXT)},
        more_refused={**_NUMBER, "description": "invalid records that `refused` does not list"},
        spooled={**_NUMBER, "description": "events kept in the spool folder; then the other counts are not known yet"},
    ),
    "History": _object(
        bucket=_TEXT,
        key=_TEXT,
        events={
            "type": "array",
            "items": _object(
                id=_TEXT, seq=_NUMBER, name=_TEXT, version=_TEXT, time=_TIME, received_at=_TIME,
                delivery_states={
                    "type": "array",
                    "items": _object(
                        target=_TEXT,
                        state={**_TEXT, "enum": ["pending", "parked", "dead", "settled"]},
                        reason=_TEXT,
                    ),
                },
                traceparent={**_TEXT, "description": "W3C Trace Context, if the event had one"},
                tracestate=_TEXT,
                record={"type": "object"},
            ),
        },
    ),
    "Text": {**_TEXT, "maxLength": MAX_TEXT_LENGTH, "pattern": "^[^\\u0000]*$"},
    "Settings": {"type": "object", "additionalProperties": True, "description": "the settings of the type, by name"},
    "Target": _object(
        arn=_TEXT, type={**_TEXT, "enum": list(TYPES)}, name=_TEXT,
        state={**_TEXT, "enum": ["running", "paused", "disabled", "unavailable", "broken"]},
        reason=_TEXT, resume_at=_TIME,
        mode={**_TEXT, "enum": ["sync", "async"]},
        origin={**_TEXT, "enum": ["environment", "stored", "sample"]},
        settings={"type": "object", "additionalProperties": _TEXT, "description": "secrets are *redacted*"},
        events=_object(**dict.fromkeys(_COUNTERS, _NUMBER)),
        oldest_age={
            "type": ["number", "null"],
            "description": "seconds since its oldest undelivered event was recorded; null: there is none",
        },
    ),
    "ApiSettings": _object(
        sync_events={
            "enum": ["on", "off", "", "true", "false", "1", "0", True, False, 1, 0, None],
            "description": "empty or null: the default; `MINIO_API_SYNC_EVENTS` overrides it",
        }
    ) | {"additionalProperties": False},
    "EffectiveApiSettings": _object(
        sync_events=_object(
            value={**_TEXT, "enum": ["on", "off"]},
            origin={**_TEXT, "enum": ["environment", "stored", "default"]},
        )
    ),
    "TargetTest": _object(
        target=_TEXT,
        ids={"type": "array", "items": _TEXT, "description": "of the test's events"},
        bucket=_TEXT,
        key=_TEXT,
        history={**_TEXT, "description": "the address of their delivery state"},
    ),
    "Targets": _object(targets=_list("Target")),
    "Reason": _object(reason=_TEXT) | {"additionalProperties": False},
    "Nothing": _object() | {"additionalProperties": False},
    "Empty": _object(),
    "NewRule": _with("bucket events target", _object(**_RULE)) | {"additionalProperties": False},
    "Rule": _object(number=_NUMBER, **_RULE),
    "Rules": _object(rules=_list("Rule")),
    "Declaration": document_schema(),
    "Plan": _object(
        dry_run=_FLAG,
        targets={"type": "array", "items": _object(
            target=_TEXT, new=_FLAG,
            changes={"type": "array", "items": _TEXT, "description": "`-` a setting's old value, `+` its new one"},
            warnings={"type": "array", "items": _TEXT, "description": "settings that have no effect"},
        )},
        rules_added={"type": "array", "items": _object(**_RULE)},
        rules_removed={"type": "array", "items": _object(number=_NUMBER, **_RULE)},
        api={"type": "array", "items": _TEXT, "description": "the changes of the section `api`"},
        targets_removed={"type": "array", "items": _TEXT},
        not_declared=_object(targets={"type": "array", "items": _TEXT}, rules=_NUMBER),
    ),
    "DeadLetterFilter": _object(**_FILTER) | {"additionalProperties": False, "minProperties": 1},
    "DeadLetter": _object(
        id=_NUMBER, target=_TEXT, event_id=_TEXT, name=_TEXT, bucket=_TEXT, key=_TEXT, reason=_TEXT,
        attempts=_NUMBER, first_tried=_TIME, last_tried=_TIME,
        history={"type": "array", "items": _object(at=_TIME, reason=_TEXT)}, record={"type": "object"},
    ),
    "DeadLetters": _object(
        dead_letters=_list("DeadLetter"),
        next={"type": ["integer", "null"], "description": "the `after` of the next page; null: there is none"},
    ),
    "Replayed": _object(replayed=_NUMBER),
    "Purged": _object(purged=_NUMBER),
    "Removed": _object(
        lost={"type": "array", "items": _TEXT, "description": "what was deleted with it, such as `2 rule(s) name it`"}
    ),
    "NewReplay": _with("target", _object(
        **{name: _FILTER[name] for name in ("target", "since", "before", "bucket", "prefix", "all")},
        events={
            "type": ["array", "null"], "maxItems": 1000, "items": _RULE["events"]["items"],
            "description": "event names, with wildcards such as `s3:ObjectCreated:*`; none: every event",
        },
    )),
    "Replay": _object(
        id=_NUMBER, target=_TEXT, since=_TIME, before=_TIME, bucket=_TEXT, prefix=_TEXT,
        events={"type": "array", "items": _TEXT}, created_at=_TIME,
        replayed={**_NUMBER, "description": "events delivered, superseded, parked or made dead letters so far"},
        progress={
            "type": "number", "minimum": 0, "maximum": 1,
            "description": "the share of the log that it has passed",
        },
        finished={**_FLAG, "description": "true also for a cancelled replay"},
        cancelled_at=_TIME,
    ),
    "Replays": _object(replays=_list("Replay")),
    "RepairReceipt": _object(
        recorded=_NUMBER,
        repeated={**_NUMBER, "description": "recorded before"},
        overtaken={**_NUMBER, "description": "events left out because their objects changed after `after`"},
        refused={
            **_NUMBER,
            "description": "events left out because the database refuses them; the API's log has its reasons",
        },
    ),
    "Reconciliation": _object(
        run=_TEXT,
        target=_TARGET,
        bucket=_TEXT,
        job={**_TEXT, "enum": ["reconcile", "scan"]},
        state={
            **_TEXT,
            "enum": [
                "waiting", "running", "clean", "drift", "repaired", "failed", "backfilling", "backfilled", "unfinished",
            ],
        },
        started_at=_TIME,
        finished_at=_TIME,
        **dict.fromkeys(COUNTS, _NUMBER),
        report={**_TEXT, "description": "the folder with the findings, on the host of the job"},
        problem=_TEXT,
    ),
    "Reconciliations": _object(reconciliations=_list("Reconciliation")),
    "Alive": _object(status=_TEXT),
    "Readiness": _object(
        ready=_FLAG,
        checks={"type": "object", "additionalProperties": _object(ok=_FLAG, reason=_TEXT)},
    ),
}  # fmt: skip


@routes.get("/openapi.json")
@needs(PUBLIC)
def openapi() -> Response:
    """Describe the API.
    ---
    get:
      summary: Return this description
      responses:
        200: {description: the OpenAPI 3.1 document, content: {application/json: {schema: Empty}}}
    """
    return json_response(described(current_app._get_current_object()))  # type: ignore[attr-defined] # the app behind the proxy


@cache
def described(app: Flask) -> dict[str, Any]:
    """Return the complete description of an app."""
    spec = APISpec(
        title="Bucketwire",
        version=version("bucketwire"),
        openapi_version="3.1.0",
        info={"description": "Records S3 bucket events and delivers them at least once, in order per object."},
        plugins=[FlaskPlugin()],
    )
    for name, schema in SCHEMAS.items():
        spec.components.schema(name, schema)
    spec.components.response(
        "Problem",
        {
            "description": "a problem (RFC 9457): `type` names its kind, `detail` says what to do",
            "content": {"application/problem+json": {"schema": "Problem"}},
        },
    )
    for name, place, schema, text in (
        ("target_type", "type_name", {"enum": list(TYPES)}, "the target's type"),
        ("target_name", "name", {"pattern": "^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$"}, "its name; _ is the unnamed one"),
    ):
        spec.components.parameter(
            name, "path", {"name": place, "required": True, "schema": _TEXT | schema, "description": text}
        )
    spec.components.security_scheme(
        "token",
        {
            "type": "http",
            "scheme": "bearer",
            "description": f"a token with the route's scope: {', '.join(SCOPES)}; admin includes the others",
        },
    )
    with app.test_request_context():
        for endpoint, view in app.view_functions.items():
            if endpoint != "static":
                spec.path(view=view, app=app)
    found: dict[str, Any] = spec.to_dict()
    found["components"]["schemas"]["Settings"]["x-settings"] = {
        kind: {
            name: {"kind": key.kind.label, "required": key.required, "default": key.default, "secret": key.secret,
                   "about": key.about}
            for name, key in fields_of(cls).items()
        }
        for kind, cls in TYPES.items()
    }  # fmt: skip
    return found
