"""What comparing targets with buckets came to, and the way in for the events that repair what was found."""

import logging
from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, needs
from app.api.errors import ApiProblem
from app.api.request_body import event_headers, read_body
from app.api.serialization import bad_value, format_time, json_response, parsed_number, refuse_unknown
from app.api.services import services
from app.config.arn import TargetId
from app.events.parsing import parse
from app.outbox.engine.database import now_ms
from app.outbox.log.append import Receipt
from app.outbox.log.recorder import Recorder
from app.outbox.reconcile.runs import Reconciliation, Reconciliations, unchanged_since

logger = logging.getLogger("bucketwire.api")
routes = Blueprint("reconciliations", __name__)
_LOGGED = 100  # refused events of one request that are logged
_MOST = 1000
_LAST_SEQ = 2**63 - 1


@routes.get("/v1/reconciliations")
@needs(READ)
def ls() -> Response:
    """List the reconciliations.
    ---
    get:
      summary: The last reconciliations, newest first
      security: [{token: [read]}]
      parameters:
        - {name: limit, in: query, schema: {type: integer, default: 100, minimum: 1, maximum: 1000},
           description: so many}
      responses:
        200: {description: the reconciliations, content: {application/json: {schema: Reconciliations}}}
        default: Problem
    """
    refuse_unknown(request.args, ("limit",))
    limit = parsed_number("limit", request.args.get("limit"), 100, least=1, most=_MOST)
    found = Reconciliations(services().database).list(limit=limit)
    return json_response({"reconciliations": [_json(each) for each in found]})


@routes.post("/v1/targets/<type_name>/<name>/events")
@needs(ADMIN)
def repair(type_name: str, name: str) -> Response:
    """Record events for one target.
    ---
    post:
      summary: Record events for this target alone, whatever the rules say
      description: >
        An event whose object changed after the log's number `after`, by the log's own account, is left out and
        counted as overtaken: who looked at the object before that knows nothing of it any more. A 202 means that the
        others are recorded durably. Where the target has no room for all of them, whatever its `queue_full` says,
        none is, and a 503 says so. Events that the database cannot hold are left out and counted as refused.
      security: [{token: [admin]}]
      parameters:
        - target_type
        - target_name
        - {name: after, in: query, required: true, schema: {type: integer, minimum: 0, maximum: 9223372036854775807},
           description: the last number of the log when the objects were looked at}
      requestBody:
        required: true
        description: as for `POST /v1/events`
        content: {application/json: {schema: {}}, application/x-ndjson: {schema: {}}}
      responses:
        202: {description: taken, content: {application/json: {schema: RepairReceipt}}}
        default: Problem
    """
    refuse_unknown(request.args, ("after",))
    if "after" not in request.args:
        raise bad_value("after", "is missing", "give the last number of the log when the objects were looked at")
    after = parsed_number("after", request.args["after"], 0, least=0, most=_LAST_SEQ)
    target = TargetId(type_name, name)
    state, reason = services().registry.target(target).standing
    if state in ("disabled", "broken"):
        raise bad_value("target", f"is {state}" + (f" ({reason})" if reason else ""), "it gets no events so")
    body = read_body(request, services().settings.body_limit)
    events = parse(body, event_headers(request), now_ms=now_ms(), limits=services().limits).events
    recorder = Recorder(services().database, only_target=target, guard=unchanged_since(after))
    receipts, refused = recorder.record_most(events)
    for event, reason in refused[:_LOGGED]:
        logger.warning("the database refuses event %s: %s", event.id, reason)
    arn = target.arn(services().settings.region)
    taken = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
    if len(taken) < len(receipts):
        raise ApiProblem("queue-full", f"{arn} has no room for all of these; send the rest later", {"targets": [arn]})
    if refused and len(refused) == len(events):
        raise ApiProblem(
            "bad-events", "the database cannot hold a value of each of these; the API's log has its reasons"
        )
    counts = {name: sum(getattr(receipt, name) for receipt in taken) for name in ("recorded", "repeated", "overtaken")}
    return json_response(counts | {"refused": len(refused)}, 202)


def _json(each: Reconciliation) -> dict[str, Any]:
    return {
        "run": each.run,
        "target": each.target.arn(services().settings.region),
        "bucket": each.bucket,
        "state": each.state,
        "started_at": format_time(each.started_at),
        "finished_at": format_time(each.finished_at),
        **each.counts,
        "report": each.report,
        "problem": each.problem,
    }
