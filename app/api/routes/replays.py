"""Begin, list and cancel replays: deliver retained events to a target again."""

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, may_see, needs, require_target
from app.api.errors import ApiProblem
from app.api.request_body import json_object
from app.api.serialization import bad_value, json_response, parsed_target, parsed_text, parsed_time
from app.api.services import services
from app.outbox.delivery.replays import Replay, Selection
from app.outbox.errors import UnknownReplay
from app.outbox.markers import NEVER
from app.resources.declaration import format_time, refuse_unknown

routes = Blueprint("replays", __name__)
_LAST = 2**31 - 1  # the greatest number that the table can have


@routes.get("/v1/replays")
@needs(READ, limited=True)
def ls() -> Response:
    """List the replays.
    ---
    get:
      summary: List every replay, newest first
      security: [{token: [read]}]
      responses:
        200: {description: the replays, content: {application/json: {schema: Replays}}}
        default: Problem
    """
    replays = [replay for replay in services().replays.list() if may_see(replay.target)]
    return json_response({"replays": [_replay_json(replay) for replay in replays]})


@routes.get("/v1/replays/<int:number>")
@needs(READ, limited=True)
def show(number: int) -> Response:
    """Show a replay.
    ---
    get:
      summary: Return a replay with its progress
      security: [{token: [read]}]
      parameters:
        - {name: number, in: path, required: true, schema: {type: integer}, description: the replay's number}
      responses:
        200: {description: the replay, content: {application/json: {schema: Replay}}}
        default: Problem
    """
    return _one(services().replays.get, number)


@routes.post("/v1/replays")
@needs(ADMIN, limited=True)
def begin() -> Response:
    """Begin a replay.
    ---
    post:
      summary: Deliver retained events to a target again
      description: >-
        Pending events are delivered anyway and are not part of the replay. Needs a selection, or `all`. The number of
        selected events is not known in advance: `replayed` and `progress` grow while the replay runs.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: NewReplay}}}
      responses:
        201: {description: the replay, content: {application/json: {schema: Replay}}}
        default: Problem
    """
    body = json_object(request)
    target = parsed_target("target", body.get("target"))
    require_target(target)
    refuse_unknown(body, ("target", "since", "before", "bucket", "prefix", "events", "all"))
    names = body.get("events") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_value("events", "is not a list of event names", 'write ["s3:ObjectCreated:Put"], or omit it')
    selection = Selection(
        since=parsed_time("since", body.get("since"), 0),
        before=parsed_time("before", body.get("before"), NEVER),
        bucket=parsed_text("bucket", body.get("bucket")),
        prefix=parsed_text("prefix", body.get("prefix")),
        names=tuple(names),
    )
    if selection == Selection() and body.get("all") is not True:
        raise bad_value("all", "is not set, and no selection is", 'give a selection, or {"all": true}')
    return json_response(_replay_json(services().replays.begin(target, selection)), 201)


@routes.delete("/v1/replays/<int:number>")
@needs(ADMIN, limited=True)
def cancel(number: int) -> Response:
    """Cancel a replay.
    ---
    delete:
      summary: Cancel a replay at its current position
      description: Events that it has delivered or parked are kept. A finished replay does not change. Idempotent.
      security: [{token: [admin]}]
      parameters:
        - {name: number, in: path, required: true, schema: {type: integer}, description: the replay's number}
      responses:
        200: {description: the replay, content: {application/json: {schema: Replay}}}
        default: Problem
    """
    return _one(services().replays.cancel, number)


def _one(operation: Callable[[int], Replay], number: int) -> Response:
    """Return what an operation on the replay of this number returns. Raises `ApiProblem`."""
    try:
        require_target(services().replays.get(min(number, _LAST)).target)
        return json_response(_replay_json(operation(min(number, _LAST))))
    except UnknownReplay:
        raise ApiProblem("not-found", f"there is no replay {number}; GET /v1/replays shows those there are") from None


def _replay_json(replay: Replay) -> dict[str, Any]:
    chosen = replay.selection
    return {
        "id": replay.replay_id,
        "target": replay.target.arn(services().settings.region),
        "since": format_time(chosen.since),
        "before": None if chosen.before == NEVER else format_time(chosen.before),
        "bucket": chosen.bucket,
        "prefix": chosen.prefix,
        "events": list(chosen.names),
        "created_at": format_time(replay.created_at),
        "replayed": replay.replayed,
        "progress": round(replay.progress, 4),
        "finished": replay.finished,
        "cancelled_at": format_time(replay.cancelled_at),
    }
