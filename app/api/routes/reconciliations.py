"""List reconciliations, and record the events that repair drift."""

import logging
from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, needs
from app.api.errors import ApiProblem, check_active
from app.api.request_body import event_headers, read_body
from app.api.serialization import bad_value, format_time, json_response, parsed_number, refuse_unknown
from app.api.services import services
from app.config.arn import TargetId
from app.events.parsing import parse
from app.outbox.engine.database import now_ms
from app.outbox.log.batch import Receipt
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
    """List reconciliations.
    ---
    get:
      summary: List the last runs of reconciliations, backfills and scheduled scans, newest first
      security: [{token: [read]}]
      parameters:
        - {name: limit, in: query, schema: {type: integer, default: 100, minimum: 1, maximum: 1000},
           description: the most runs to return}
      responses:
        200: {description: the runs, content: {application/json: {schema: Reconciliations}}}
        default: Problem
    """
    refuse_unknown(request.args, ("limit",))
    limit = parsed_number("limit", request.args.get("limit"), 100, least=1, most=_MOST)
    runs = Reconciliations(services().database).list(limit=limit)
    return json_response({"reconciliations": [_json(each) for each in runs]})


@routes.post("/v1/targets/<type_name>/<name>/events")
@needs(ADMIN)
def repair(type_name: str, name: str) -> Response:
    """Record events for one target.
    ---
    post:
      summary: Record events for this target only, independent of the rules
      description: >
        An event is left out and counted as `overtaken` if the log has a change of its object after sequence number
        `after`, because the sender's view of the object is out of date then. A 202 means that the others are recorded
        durably. If the target's queue has no capacity for all of them, none is recorded and the answer is 503,
        independent of `queue_full`. Events that the database refuses are left out and counted as `refused`.
      security: [{token: [admin]}]
      parameters:
        - target_type
        - target_name
        - {name: after, in: query, required: true, schema: {type: integer, minimum: 0, maximum: 9223372036854775807},
           description: the log's last sequence number when the objects were read}
      requestBody:
        required: true
        description: as for `POST /v1/events`
        content: {application/json: {schema: {}}, application/x-ndjson: {schema: {}}}
      responses:
        202: {description: the events are recorded, content: {application/json: {schema: RepairReceipt}}}
        default: Problem
    """
    refuse_unknown(request.args, ("after",))
    if "after" not in request.args:
        raise bad_value("after", "is missing", "give the log's last sequence number when the objects were read")
    after = parsed_number("after", request.args["after"], 0, least=0, most=_LAST_SEQ)
    target = TargetId(type_name, name)
    check_active(services().registry.target(target))
    body = read_body(request, services().settings.body_limit)
    events = parse(body, event_headers(request), now_ms=now_ms(), limits=services().limits).events
    recorder = Recorder(services().database, only_target=target, guard=unchanged_since(after))
    receipts, refused = recorder.record_most(events)
    for event, reason in refused[:_LOGGED]:
        logger.warning("the database refuses event %s: %s", event.id, reason)
    arn = target.arn(services().settings.region)
    recorded = [receipt for receipt in receipts if isinstance(receipt, Receipt)]
    if len(recorded) < len(receipts):
        detail = f"the queue of {arn} has no capacity for all of these events; send them again later"
        raise ApiProblem("queue-full", detail, {"targets": [arn]})
    if refused and len(refused) == len(events):
        raise ApiProblem("bad-events", "the database refuses every one of these events; the API's log has its reasons")
    names = ("recorded", "repeated", "overtaken")
    counts = {name: sum(getattr(receipt, name) for receipt in recorded) for name in names}
    return json_response(counts | {"refused": len(refused)}, 202)


def _json(run: Reconciliation) -> dict[str, Any]:
    return {
        "run": run.run,
        "target": run.target.arn(services().settings.region),
        "bucket": run.bucket,
        "job": run.job,
        "state": run.state,
        "started_at": format_time(run.started_at),
        "finished_at": format_time(run.finished_at),
        **run.counts,
        "report": run.report,
        "problem": run.problem,
    }
