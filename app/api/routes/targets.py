"""Targets: what is configured, how each stands, its counters, and a trial of it."""

import uuid
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, needs
from app.api.errors import ApiProblem
from app.api.request_body import json_object
from app.api.serialization import bad_value, format_time, json_response, parsed_flag, parsed_text, refuse_unknown
from app.api.services import services
from app.config.arn import TargetId
from app.config.target_settings import REDACTED, merged, redacted, texts
from app.config.targets.registry import settings_type
from app.events.test_events import TEST_BUCKET, make_test_events
from app.outbox.delivery.counters import TargetCounters, read_counters, snapshot
from app.outbox.engine.database import now_ms
from app.outbox.log.append import QueueFull
from app.outbox.log.recorder import Recorder
from app.outbox.registry import StoredTarget, UnknownTarget

routes = Blueprint("targets", __name__)


@routes.get("/v1/targets")
@needs(READ)
def ls() -> Response:
    """List the targets.
    ---
    get:
      summary: Every target with its settings, its state and its counters
      security: [{token: [read]}]
      responses:
        200: {description: the targets, content: {application/json: {schema: Targets}}}
        default: Problem
    """
    return json_response({"targets": _described(services().registry.targets())})


@routes.get("/v1/targets/<type_name>/<name>")
@needs(READ)
def show(type_name: str, name: str) -> Response:
    """Show a target.
    ---
    get:
      summary: One target with its settings, its state and its counters
      security: [{token: [read]}]
      parameters: [target_type, target_name]
      responses:
        200: {description: the target, content: {application/json: {schema: Target}}}
        default: Problem
    """
    return json_response(_one(_target(type_name, name)))


@routes.put("/v1/targets/<type_name>/<name>")
@needs(ADMIN)
def put(type_name: str, name: str) -> Response:
    """Create or change a target.
    ---
    put:
      summary: Create a target, or replace its settings
      description: >
        The body holds the settings by their names, as texts or JSON values. A secret given back as it was shown
        (`*redacted*`) stays as it is; any other setting that is left out goes back to its default.
      security: [{token: [admin]}]
      parameters: [target_type, target_name]
      requestBody: {required: true, content: {application/json: {schema: Settings}}}
      responses:
        200: {description: the target as it is now, content: {application/json: {schema: Target}}}
        201: {description: the new target, content: {application/json: {schema: Target}}}
        default: Problem
    """
    target = _target(type_name, name)
    given = json_object(request)
    try:
        stored = services().registry.target(target)
    except UnknownTarget:
        services().registry.put(target, given)
        return json_response(_one(target), 201)
    services().registry.put(target, _replaced(stored, given))
    return json_response(_one(target))


@routes.delete("/v1/targets/<type_name>/<name>")
@needs(ADMIN)
def remove(type_name: str, name: str) -> Response:
    """Remove a target.
    ---
    delete:
      summary: Remove a target
      description: Refused while rules name it, events wait for it or dead letters are left, unless forced.
      security: [{token: [admin]}]
      parameters:
        - target_type
        - target_name
        - {name: force, in: query, schema: {type: boolean, default: false},
           description: lose its rules, its undelivered events and its dead letters}
      responses:
        200: {description: it is gone, content: {application/json: {schema: Removed}}}
        default: Problem
    """
    refuse_unknown(request.args, ("force",))
    lost = services().registry.remove(_target(type_name, name), force=parsed_flag("force", request.args.get("force")))
    return json_response({"lost": lost})


@routes.post("/v1/targets/<type_name>/<name>/pause")
@needs(ADMIN)
def pause(type_name: str, name: str) -> Response:
    """Pause a target.
    ---
    post:
      summary: Deliver nothing to a target until it is resumed; its events wait
      security: [{token: [admin]}]
      parameters: [target_type, target_name]
      requestBody: {required: true, content: {application/json: {schema: Reason}}}
      responses:
        200: {description: the target, content: {application/json: {schema: Target}}}
        default: Problem
    """
    given = json_object(request)
    refuse_unknown(given, ("reason",))
    target = _target(type_name, name)
    services().registry.pause(target, parsed_text("reason", given.get("reason")) or "paused through the API")
    return json_response(_one(target))


@routes.post("/v1/targets/<type_name>/<name>/resume")
@needs(ADMIN)
def resume(type_name: str, name: str) -> Response:
    """Resume a target.
    ---
    post:
      summary: End a target's pause, or the wait before the next try of one that is unavailable
      security: [{token: [admin]}]
      parameters: [target_type, target_name]
      requestBody: {required: true, content: {application/json: {schema: Nothing}}}
      responses:
        200: {description: the target, content: {application/json: {schema: Target}}}
        default: Problem
    """
    refuse_unknown(json_object(request), ())
    target = _target(type_name, name)
    services().registry.resume(target)
    return json_response(_one(target))


@routes.post("/v1/targets/<type_name>/<name>/test")
@needs(ADMIN)
def test(type_name: str, name: str) -> Response:
    """Send a test event.
    ---
    post:
      summary: Record a marked test event that goes to this target alone, whatever the rules say
      description: >
        It goes the ordinary way, behind what waits for the target already; `history` is where to see what became of
        it. A namespace gets a PUT and the DELETE of the same object, so that nothing of them stays.
      security: [{token: [admin]}]
      parameters: [target_type, target_name]
      requestBody: {required: true, content: {application/json: {schema: Nothing}}}
      responses:
        202: {description: it is recorded, content: {application/json: {schema: Trial}}}
        default: Problem
    """
    refuse_unknown(json_object(request), ())
    target = _target(type_name, name)
    registry = services().registry
    stored = registry.target(target)
    state, reason = stored.standing
    if state in ("disabled", "broken"):
        raise bad_value("target", f"is {state}" + (f" ({reason})" if reason else ""), "it gets no events so")
    namespace = getattr(registry.settings(stored), "format", "") == "namespace"
    now, key = now_ms(), uuid.uuid4().hex
    events = make_test_events(key, now, format_time(now) or "", namespace=namespace)
    [receipt] = Recorder(services().database, only_target=target).record([events])
    if isinstance(receipt, Exception):
        raise receipt
    arn = target.arn(services().settings.region)
    if isinstance(receipt, QueueFull):
        raise ApiProblem("queue-full", f"{arn} has no room for a test event", {"targets": [arn]})
    return json_response(
        {
            "target": arn,
            "ids": [event.id for event in events],
            "bucket": TEST_BUCKET,
            "key": key,
            "history": f"/v1/events?{urlencode({'bucket': TEST_BUCKET, 'key': key})}",
        },
        202,
    )


def _target(type_name: str, name: str) -> TargetId:
    settings_type(type_name)  # names the types that there are
    return TargetId(type_name, name)


def _one(target: TargetId) -> dict[str, Any]:
    return _described([services().registry.target(target)])[0]


def _described(stored: Sequence[StoredTarget]) -> list[dict[str, Any]]:
    with snapshot(services().database) as connection:
        counters = {entry.target: entry for entry in read_counters(connection)}
    now = now_ms()
    return [_target_json(one, counters[one.target], now) for one in stored if one.target in counters]


def _target_json(stored: StoredTarget, counters: TargetCounters, now: int) -> dict[str, Any]:
    state, reason = stored.standing
    return {
        "arn": stored.target.arn(services().settings.region),
        "type": stored.target.type,
        "name": stored.target.name,
        "state": state,
        "reason": reason,
        "resume_at": format_time(stored.resume_at),
        "origin": stored.origin,
        "settings": redacted(stored.target.type, stored.values),
        "events": counters_json(counters),
        "oldest_age": max(0, now - counters.oldest) / 1000 if counters.oldest else None,
    }


def counters_json(counters: TargetCounters) -> dict[str, int]:
    """A target's counters. matched = recorded + discarded; recorded is the sum of what follows it, but for
    discarded.
    """
    names = ("matched", "recorded", "delivered", "superseded", "pending", "parked", "dead", "purged", "discarded")
    return {name: getattr(counters, name) for name in names}


def _replaced(stored: StoredTarget, given: dict[str, Any]) -> dict[str, Any]:
    """What was given, with the secrets that were given back as they had been shown."""
    kind = stored.target.type
    if not any(REDACTED in text for text in texts(kind, given).values()):
        return given
    whole = merged(kind, services().registry.texts(stored), given)
    return {name: text for name, text in whole.items() if name in texts(kind, given)}
