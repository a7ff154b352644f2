"""Read the log: an object's history, a search, and one event with its attempts at each target."""

from typing import Any

import orjson
from flask import Blueprint, Response, request

from app.api.auth import PUBLIC, READ, authorize, may_see, needs, require_bucket, require_target
from app.api.errors import ApiProblem
from app.api.serialization import (
    bad_value,
    json_response,
    parsed_flag,
    parsed_number,
    parsed_target,
    parsed_text,
    parsed_time,
)
from app.api.services import services
from app.events.trace import fields
from app.outbox.delivery.attempts import Attempt
from app.outbox.delivery.event_states import STATES, DeliveryState, RecordedEvent
from app.outbox.delivery.object_history import find_event, object_history
from app.outbox.delivery.replays import Selection, checked
from app.outbox.markers import NEVER
from app.outbox.search import EventFilter, search
from app.resources.declaration import format_time, refuse_unknown

routes = Blueprint("search", __name__)
_HISTORY = ("bucket", "key", "limit", "after", "brief")
_SEARCH = ("since", "before", "bucket", "prefix", "events", "target", "state", "limit", "after")


@routes.get("/v1/events")
@needs(PUBLIC)
def events() -> Response:
    """Return an object's history, or search the log.
    ---
    get:
      summary: Return an object's last events, oldest first, or search the log, newest first
      description: >
        With `key`, the history of the object: only `bucket`, `limit`, `after` and `brief` go with it. A page of it has
        at most 32 MiB of records, or one event; continue with `after` set to its `next` for the events before it.
        Otherwise a search, whose filters are combined with AND. A search reads a bounded part of the log: a page may
        have few events, or none, and still have a `next`. Continue with `after` set to it until it is null. Without
        any parameter, the answer is 200 and needs no token, as senders that probe the address expect.
      security: [{token: [read]}, {}]
      parameters:
        - {name: bucket, in: query, schema: Text, description: the object's bucket}
        - {name: key, in: query, schema: Text, description: "the object's key, for its history"}
        - {name: since, in: query, schema: {type: string},
           description: "recorded at or after: RFC 3339, or ms since 1970"}
        - {name: before, in: query, schema: {type: string}, description: "recorded before"}
        - {name: prefix, in: query, schema: Text, description: the key's prefix}
        - {name: events, in: query, schema: {type: string},
           description: "event names, comma-separated, with wildcards such as s3:ObjectCreated:*"}
        - {name: target, in: query, schema: {type: string}, description: "events for this target, an ARN or type:name"}
        - {name: state, in: query, schema: {type: string, enum: [pending, parked, dead, settled]},
           description: "in this delivery state at the target, or at any target"}
        - {name: limit, in: query, schema: {type: integer, minimum: 1, maximum: 10000},
           description: "the most events to return; 1,000 of a history unless given, 100 of a search (at most 1,000)"}
        - {name: after, in: query, schema: {type: integer, default: 0}, description: the `next` of the previous page}
        - {name: brief, in: query, schema: {type: boolean, default: false},
           description: "leave the records of a history out"}
      responses:
        200: {description: the events, content: {application/json: {schema: Events}}}
        default: Problem
    """
    if not request.args:
        return json_response({"status": "ok"})
    authorize(request, READ)
    require_bucket(parsed_text("bucket", request.args.get("bucket")))
    return _history() if "key" in request.args else _search()


@routes.get("/v1/events/<event_id>")
@needs(READ, limited=True)
def show(event_id: str) -> Response:
    """Return one event.
    ---
    get:
      summary: Return an event with its delivery state and the recorded attempts at each target
      security: [{token: [read]}]
      parameters:
        - {name: event_id, in: path, required: true, schema: {type: string}, description: the event's id}
      responses:
        200: {description: the event, content: {application/json: {schema: Event}}}
        default: Problem
    """
    event = find_event(services().database, parsed_text("event_id", event_id))
    if event is not None:
        require_bucket(event.bucket)
    if event is None:
        raise ApiProblem(
            "not-found", "the log has no event of this id; BUCKETWIRE_RETENTION sets how long it keeps them"
        )
    states = [_state_json(state) | _attempts(state) for state in event.delivery_states if may_see(state.target)]
    return json_response({**_event_json(event), "delivery_states": states, "record": orjson.Fragment(event.record)})


def _history() -> Response:
    refuse_unknown(request.args, _HISTORY)
    bucket, key = (parsed_text(name, request.args.get(name)) for name in ("bucket", "key"))
    for name, value in (("bucket", bucket), ("key", key)):
        if not value:
            raise bad_value(name, "is missing", "give the bucket and the key of an object")
    limit = parsed_number("limit", request.args.get("limit"), 1000, least=1, most=10_000)
    after = parsed_number("after", request.args.get("after"), 0, least=0, most=NEVER)
    brief = parsed_flag("brief", request.args.get("brief"))
    page = object_history(services().database, bucket, key, limit=limit, after=after, records=not brief)
    listed = [_event_json(event) | _record(event) for event in page.events]
    return json_response({"bucket": bucket, "key": key, "events": listed, "next": page.next})


def _search() -> Response:
    refuse_unknown(request.args, _SEARCH)
    state = parsed_text("state", request.args.get("state"))
    if state and state not in STATES:
        raise bad_value("state", "is not a delivery state", f"give one of {', '.join(STATES)}")
    names = [part.strip() for part in parsed_text("events", request.args.get("events")).split(",")]
    selection = Selection(
        since=parsed_time("since", request.args.get("since"), 0),
        before=parsed_time("before", request.args.get("before"), NEVER),
        bucket=parsed_text("bucket", request.args.get("bucket")),
        prefix=parsed_text("prefix", request.args.get("prefix")),
        names=tuple(filter(None, names)),
    )
    target = parsed_target("target", request.args["target"]) if request.args.get("target") else None
    if target or state:
        require_target(target)
    which = EventFilter(checked(selection), target, state)
    limit = parsed_number("limit", request.args.get("limit"), 100, least=1, most=1000)
    after = parsed_number("after", request.args.get("after"), 0, least=0, most=NEVER)
    page = search(services().database, which, limit=limit, after=after)
    return json_response(
        {
            "events": [_event_json(event) for event in page.events],
            "next": page.next,
            "searched_to": format_time(page.searched_to),
        }
    )


def _record(event: RecordedEvent) -> dict[str, Any]:
    return {"record": orjson.Fragment(event.record)} if event.record else {}


def _event_json(event: RecordedEvent) -> dict[str, Any]:
    return {
        "id": event.event_id,
        "seq": event.seq,
        "name": event.name,
        "bucket": event.bucket,
        "key": event.key,
        "version": event.version,
        "time": format_time(event.time),
        "received_at": format_time(event.received_at),
        "delivery_states": [_state_json(state) for state in event.delivery_states if may_see(state.target)],
        **dict(fields(event.trace)),
    }


def _state_json(state: DeliveryState) -> dict[str, Any]:
    arn = state.target.arn(services().settings.region)
    return {"target": arn, "state": state.state, "reason": state.reason}


def _attempts(state: DeliveryState) -> dict[str, Any]:
    return {
        "attempts": state.attempts,
        "history": [{"at": format_time(at), "reason": reason} for at, reason in state.history],
        "waits": state.state == "parked" and state.next_try is None,
        "next_try": format_time(state.next_try or 0),
        "timeline": [_attempt_json(attempt) for attempt in state.timeline],
    }


def _attempt_json(attempt: Attempt) -> dict[str, Any]:
    return {
        "at": format_time(attempt.at),
        "outcome": attempt.outcome,
        "attempt": attempt.attempt or None,
        "events": attempt.events,
        "duration": attempt.duration / 1000,
        "replay": attempt.replay_id or None,
        "reason": attempt.reason,
    }
