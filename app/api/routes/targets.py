"""List, change and pause targets."""

from collections.abc import Mapping
from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, is_limited, may_see, needs
from app.api.errors import ApiProblem
from app.api.request_body import json_object
from app.api.serialization import json_response, parsed_flag, parsed_text, target_of
from app.api.services import services
from app.config.api_settings import SyncEvents, is_sync, sync_events
from app.config.arn import TargetId
from app.config.errors import BadSettings, BadValue
from app.config.fields.fields import fields_of, references
from app.config.target_settings import REDACTED, load, merged, redacted, texts
from app.config.targets.base import TargetSettings
from app.config.targets.registry import settings_type
from app.outbox.delivery.counters import TargetCounters, read_status
from app.outbox.engine.database import now_ms
from app.outbox.service_settings import read_api_settings
from app.outbox.targets import StoredTarget, UnknownTarget
from app.resources.declaration import format_time, refuse_unknown

routes = Blueprint("targets", __name__)
_OF_ALL = {"allow_private": True, "queue_full": "reject"}  # values that concern more than their target
_SCHEDULES = ("reconcile", "reconcile_repair", "scan")  # runs over every bucket in the target's events


@routes.get("/v1/targets")
@needs(READ, limited=True)
def ls() -> Response:
    """List the targets.
    ---
    get:
      summary: List every target with its settings, state and counters
      security: [{token: [read]}]
      parameters:
        - {name: brief, in: query, schema: {type: boolean, default: false},
           description: "leave out `events` and `oldest_age`, for which every partition of every target is looked at"}
      responses:
        200: {description: the targets, content: {application/json: {schema: Targets}}}
        default: Problem
    """
    refuse_unknown(request.args, ("brief",))
    brief = parsed_flag("brief", request.args.get("brief"))
    return json_response({"targets": _brief() if brief else _described()})


@routes.get("/v1/targets/<type_name>/<name>")
@needs(READ, limited=True)
def show(type_name: str, name: str) -> Response:
    """Show a target.
    ---
    get:
      summary: Return a target with its settings, state and counters
      security: [{token: [read]}]
      parameters: [target_type, target_name]
      responses:
        200: {description: the target, content: {application/json: {schema: Target}}}
        default: Problem
    """
    return json_response(_one(target_of(type_name, name)))


@routes.put("/v1/targets/<type_name>/<name>")
@needs(ADMIN, limited=True)
def put(type_name: str, name: str) -> Response:
    """Create or change a target.
    ---
    put:
      summary: Create a target, or replace its settings
      description: >
        The body has the settings by name, as strings or JSON values. An omitted setting gets its default; a secret that
        is sent as `*redacted*` is kept. A changed target takes effect within a second, and a worker opens it within
        seconds: `opening` is then `opened`, or `failed` with the reason.
      security: [{token: [admin]}]
      parameters: [target_type, target_name]
      requestBody: {required: true, content: {application/json: {schema: Settings}}}
      responses:
        200: {description: the changed target, content: {application/json: {schema: Target}}}
        201: {description: the new target, content: {application/json: {schema: Target}}}
        default: Problem
    """
    target = target_of(type_name, name)
    settings, status = json_object(request), 200
    before: Mapping[str, str] = {}
    try:
        stored = services().registry.target(target)
        before, settings = services().registry.texts(stored), _with_kept_secrets(stored, settings)
    except UnknownTarget:
        status = 201
    if is_limited():
        _check_tenant(target.type, before, texts(target.type, settings))
    wanted = load(target.type, settings)  # refuses settings without effect too, which MinIO's forms accept
    if is_limited():
        _check_host_files(target.type, before, wanted)
    services().registry.put(target, settings)
    return json_response(_one(target), status)


@routes.delete("/v1/targets/<type_name>/<name>")
@needs(ADMIN, limited=True)
def remove(type_name: str, name: str) -> Response:
    """Remove a target.
    ---
    delete:
      summary: Remove a target
      description: >
        Refused with 409 while rules name the target, or it has undelivered events or dead letters, unless `force` is
        set; then `lost` lists what was deleted with it.
      security: [{token: [admin]}]
      parameters:
        - target_type
        - target_name
        - {name: force, in: query, schema: {type: boolean, default: false},
           description: "also delete its rules, undelivered events and dead letters"}
      responses:
        200: {description: the target is removed, content: {application/json: {schema: Removed}}}
        default: Problem
    """
    refuse_unknown(request.args, ("force",))
    lost = services().registry.remove(target_of(type_name, name), force=parsed_flag("force", request.args.get("force")))
    return json_response({"lost": lost})


@routes.post("/v1/targets/<type_name>/<name>/pause")
@needs(ADMIN, limited=True)
def pause(type_name: str, name: str) -> Response:
    """Pause a target.
    ---
    post:
      summary: Stop deliveries to a target until it is resumed; its events wait
      security: [{token: [admin]}]
      parameters: [target_type, target_name]
      requestBody: {required: true, content: {application/json: {schema: Reason}}}
      responses:
        200: {description: the target, content: {application/json: {schema: Target}}}
        default: Problem
    """
    body = json_object(request)
    refuse_unknown(body, ("reason",))
    target = target_of(type_name, name)
    services().registry.pause(target, parsed_text("reason", body.get("reason")) or "paused through the API")
    return json_response(_one(target))


@routes.post("/v1/targets/<type_name>/<name>/resume")
@needs(ADMIN, limited=True)
def resume(type_name: str, name: str) -> Response:
    """Resume a target.
    ---
    post:
      summary: End a target's pause, and close its circuit breaker
      security: [{token: [admin]}]
      parameters: [target_type, target_name]
      requestBody: {required: true, content: {application/json: {schema: Nothing}}}
      responses:
        200: {description: the target, content: {application/json: {schema: Target}}}
        default: Problem
    """
    refuse_unknown(json_object(request), ())
    target = target_of(type_name, name)
    services().registry.resume(target)
    return json_response(_one(target))


def _one(target: TargetId) -> dict[str, Any]:
    return _described(target)[0]


def _described(target: TargetId | None = None) -> list[dict[str, Any]]:
    with services().database.snapshot() as connection:
        statuses = read_status(connection, target)
        service = sync_events(services().settings.sync_events, read_api_settings(connection))
    now = now_ms()
    return [
        _target_json(status.stored, service) | _progress_json(status.counters, now)
        for status in statuses
        if may_see(status.stored.target)
    ]


def _brief() -> list[dict[str, Any]]:
    with services().database.reading() as connection:
        service = sync_events(services().settings.sync_events, read_api_settings(connection))
    return [_target_json(stored, service) for stored in services().registry.targets() if may_see(stored.target)]


def _target_json(stored: StoredTarget, service: SyncEvents) -> dict[str, Any]:
    return {
        "arn": stored.target.arn(services().settings.region),
        "type": stored.target.type,
        "name": stored.target.name,
        "state": stored.state,
        "reason": stored.state_reason,
        "resume_at": format_time(stored.resume_at),
        "opening": {
            "state": stored.opening,
            "at": format_time(stored.opening_at),
            "reason": stored.opening_reason,
        },
        "mode": "sync" if is_sync(stored.values, service) else "async",
        "origin": stored.origin,
        "settings": _shown(stored),
    }


def _progress_json(counters: TargetCounters, now: int) -> dict[str, Any]:
    age = max(0, now - counters.oldest) / 1000 if counters.oldest else None
    return {"events": counters_json(counters), "oldest_age": age}


def _shown(stored: StoredTarget) -> dict[str, str]:
    try:
        return redacted(stored.target.type, services().registry.texts(stored))
    except BadSettings:  # sealed with a lost key, or of a type that this version does not know
        return dict.fromkeys(stored.values, REDACTED)


def counters_json(counters: TargetCounters) -> dict[str, int]:
    """Return a target's counters; matched = recorded + discarded, and recorded is the sum of all but these two."""
    names = ("matched", "recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")
    return {name: getattr(counters, name) for name in names}


def _check_tenant(type_name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Refuse what concerns more than the target; what is stored may stay. Raises `ApiProblem`."""
    cls = settings_type(type_name)
    stored = references(cls, before)
    for name, found in references(cls, after).items():
        if not set(found) <= set(stored.get(name, ())):
            raise _beyond_target(f"{name} refers to a secret of this host")
    for name, value in _OF_ALL.items():
        if _parsed(cls, after, name) == value != _parsed(cls, before, name):
            raise _beyond_target(f"{name} is {after[name]}, which concerns more than this target")
    for name in _SCHEDULES:
        if (schedule := _parsed(cls, after, name)) and schedule != _parsed(cls, before, name):
            raise _beyond_target(f"{name} schedules runs over every bucket in this target's events")


def _check_host_files(type_name: str, before: Mapping[str, str], wanted: TargetSettings) -> None:
    """Refuse what names a file or a socket of this host, unless it is stored so already. Raises `ApiProblem`."""
    try:
        stored = set(load(type_name, before, lenient=True).host_files())
    except BadSettings:
        stored = set()
    for name, _ in sorted(set(wanted.host_files()) - stored):
        raise _beyond_target(f"{name} names a file, a service or a socket of this host")


def _parsed(cls: type[TargetSettings], texts: Mapping[str, str], name: str) -> object:
    try:
        return fields_of(cls)[name].kind.parse(texts[name])
    except (KeyError, BadValue):  # none, or `load` refuses it
        return None


def _beyond_target(problem: str) -> ApiProblem:
    return ApiProblem("forbidden", f"{problem}; the token is limited, so it cannot set this")


def _with_kept_secrets(stored: StoredTarget, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the new settings, with the stored secrets for those that were sent as `*redacted*`."""
    kind = stored.target.type
    if not any(REDACTED in text for text in texts(kind, settings).values()):
        return settings
    whole = merged(kind, services().registry.texts(stored), settings)
    return {name: text for name, text in whole.items() if name in texts(kind, settings)}
