"""Events come in here: parsed, recorded, and only then answered; or kept in a folder while the database is away."""

import errno
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import sqlalchemy as sa
from flask import Blueprint, Response, request

from app.api.auth import INGEST, PUBLIC, READ, check, needs
from app.api.errors import ApiProblem, database_unavailable
from app.api.request_body import event_headers, read_body
from app.api.serialization import (
    bad_value,
    format_time,
    json_response,
    parsed_flag,
    parsed_number,
    parsed_text,
    refuse_unknown,
)
from app.api.services import services
from app.config.arn import TargetId
from app.events.model import Event
from app.events.parsing import Parsed, SnsConfirmation, parse
from app.events.stored_size import is_larger
from app.events.trace import fields
from app.outbox.delivery.object_history import RecordedEvent, object_history
from app.outbox.engine.database import VALUE_ERRORS, describe_error, now_ms
from app.outbox.log.append import QueueFull, Receipt
from app.outbox.log.spool import Spool

log = logging.getLogger("bucketwire.api")
routes = Blueprint("events", __name__)

_ASSUMED_EVENT = 4_000_000  # bytes that every database takes, also one that could not be asked yet

# Senders give up after 5 s (EventBridge) or 10 s (SeaweedFS). With a folder to turn to, we need not wait that long.
_PATIENCE, _PATIENCE_WITH_STAGING = 9.0, 2.5


@routes.post("/v1/events")
@needs(INGEST)
def take() -> Response:
    """Record events.
    ---
    post:
      summary: Record events
      description: >
        A 202 means that the events are recorded durably, or kept in the spool folder. Anything else means: not
        taken, send it again. An event sent twice is recorded once.
      security: [{token: [ingest]}]
      parameters:
        - {name: partial, in: query, schema: {type: boolean, default: false},
           description: take the good records of a body that has bad ones}
      requestBody:
        required: true
        description: >
          What MinIO, RustFS, Ceph, AWS (S3 through SNS, EventBridge), CloudEvents or SeaweedFS send, a bare record,
          an array, or lines of JSON; may be gzip
        content: {application/json: {schema: {}}, application/x-ndjson: {schema: {}}}
      responses:
        202: {description: taken, content: {application/json: {schema: Receipt}}}
        default: Problem
    """
    parsed = _parsed()
    if parsed.confirmation is not None:
        return _confirmation(parsed.confirmation)
    if not parsed.events:
        return json_response(_receipt(Receipt(), parsed), 202)
    feeder = services().feeder
    if feeder is None:
        return json_response(_taken(_recorded(parsed.events, _PATIENCE), parsed), 202)
    feeder.started()
    try:
        if not feeder.spool.pending():
            return json_response(_taken(_recorded(parsed.events, _PATIENCE_WITH_STAGING), parsed), 202)
    except (sa.exc.SQLAlchemyError, TimeoutError) as error:
        database_unavailable(error)
    except OSError as error:
        raise _spool_problem(error) from None
    return json_response(_spooled(feeder.spool, parsed), 202)


@routes.get("/v1/events")
@needs(PUBLIC)
def history() -> Response:
    """Tell an object's history.
    ---
    get:
      summary: An object's events and where each stands at each of its targets, oldest first
      description: Without `bucket` and `key` it answers 200 to whoever asks, as senders that probe expect.
      security: [{token: [read]}, {}]
      parameters:
        - {name: bucket, in: query, schema: Text}
        - {name: key, in: query, schema: Text}
        - {name: limit, in: query, schema: {type: integer, default: 1000, minimum: 1, maximum: 10000},
           description: the last so many}
      responses:
        200: {description: the history, content: {application/json: {schema: History}}}
        default: Problem
    """
    if not request.args:
        return json_response({"status": "ok"})
    check(request, READ)
    refuse_unknown(request.args, ("bucket", "key", "limit"))
    bucket, key = (parsed_text(name, request.args.get(name)) for name in ("bucket", "key"))
    for name, value in (("bucket", bucket), ("key", key)):
        if not value:
            raise bad_value(name, "is missing", "a history is that of one object: give bucket and key")
    limit = parsed_number("limit", request.args.get("limit"), 1000, least=1, most=10_000)
    events = [_event_json(event) for event in object_history(services().database, bucket, key, limit=limit)]
    return json_response({"bucket": bucket, "key": key, "events": events})


@routes.get("/")
@needs(PUBLIC)
def root() -> Response:
    """Answer a probe.
    ---
    get:
      summary: What this is; senders probe it (RustFS does)
      responses:
        200: {description: it answers, content: {application/json: {schema: Empty}}}
    """
    return json_response({"name": "bucketwire", "events": "/v1/events", "description": "/openapi.json"})


def _parsed() -> Parsed:
    made = services()
    partial = parsed_flag("partial", request.args.get("partial")) if request.query_string else False
    body = read_body(request, made.settings.body_limit)
    return parse(body, event_headers(request), now_ms=now_ms(), limits=made.limits, partial=partial)


def _recorded(events: Sequence[Event], patience: float) -> Receipt | QueueFull:
    try:
        return services().commits.append(events, patience)
    except VALUE_ERRORS as error:
        log.warning("the database refuses an event: %s", describe_error(error))
        detail = (
            "the outbox database takes other events and refuses one of these; nothing of the request was recorded. "
            "Send its events one by one to find which; the API's log has the database's reason"
        )
        raise ApiProblem("bad-events", detail) from None


def _taken(taken: Receipt | QueueFull, parsed: Parsed) -> Mapping[str, Any]:
    if isinstance(taken, QueueFull):
        names = [_arn(target) for target in taken.targets]
        detail = f"{', '.join(names)} has no room and is set to refuse (queue_full=reject); nothing was recorded"
        raise ApiProblem("queue-full", detail, {"targets": names})
    return _receipt(taken, parsed)


def _receipt(receipt: Receipt, parsed: Parsed) -> Mapping[str, Any]:
    return {
        "recorded": receipt.recorded,
        "repeated": receipt.repeated,
        "ignored": parsed.ignored,
        "matched": {_arn(target): count for target, count in receipt.matched.items()},
        "discarded": {_arn(target): count for target, count in receipt.discarded.items()},
        **_refused(parsed),
    }


def _refused(parsed: Parsed) -> Mapping[str, Any]:
    if not parsed.refused:
        return {}
    listed = [{"index": one.index, "field": one.path, "problem": one.problem} for one in parsed.refused]
    return {"refused": listed} | ({"more_refused": parsed.more_refused} if parsed.more_refused else {})


def _spooled(spool: Spool, parsed: Parsed) -> Mapping[str, Any]:
    if services().largest_event is None and any(is_larger(event, _ASSUMED_EVENT) for event in parsed.events):
        raise ApiProblem(
            "database-unavailable", "whether it can hold an event of this size is not known yet; send it again"
        )
    try:
        spool.append(parsed.events)
    except OSError as error:
        raise _spool_problem(error) from None
    return {"spooled": len(parsed.events), "ignored": parsed.ignored, **_refused(parsed)}


def _spool_problem(error: OSError) -> ApiProblem:
    log.error("the spool folder cannot be used: %s", error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ApiProblem("spool-full" if full else "spool-unavailable", "nothing was taken; send the request again later")


def _confirmation(asked: SnsConfirmation) -> Response:
    """An operator confirms, not we: to call an address that a request brings is what an attacker would want."""
    log.warning(
        "SNS asks to confirm that topic %.300r may send here; if it may, open this address once: %.2000r",
        asked.topic_arn,
        asked.subscribe_url,
    )
    return json_response({"confirmation": "the log holds the address that confirms it", "topic": asked.topic_arn}, 202)


def _event_json(event: RecordedEvent) -> Mapping[str, Any]:
    return {
        "id": event.event_id,
        "seq": event.seq,
        "name": event.name,
        "version": event.version,
        "time": format_time(event.time),
        "received_at": format_time(event.received_at),
        "delivery_states": [
            {"target": _arn(standing.target), "state": standing.state, "reason": standing.reason}
            for standing in event.delivery_states
        ],
        **dict(fields(event.trace)),
        "record": orjson.Fragment(event.record),
    }


def _arn(target: TargetId) -> str:
    return target.arn(services().settings.region)
