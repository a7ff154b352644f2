"""Start, cancel and list reconciliations and their findings, and record the events that repair drift."""

import logging
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from flask import Blueprint, Response, request

from app.api.auth import ADMIN, READ, needs, require_bucket, require_target
from app.api.errors import ApiProblem, check_active
from app.api.request_body import event_headers, json_object, read_body
from app.api.serialization import bad_value, json_response, parsed_number, parsed_target, parsed_text
from app.api.services import services
from app.config.arn import TargetId
from app.events.parsing import parse
from app.outbox.engine.database import now_ms
from app.outbox.log.batch import Receipt
from app.outbox.log.recorder import Recorder
from app.outbox.policies import RECONCILIATIONS
from app.outbox.reconcile.findings import read_findings
from app.outbox.reconcile.requests import RunRequests
from app.outbox.reconcile.runs import Reconciliation, Reconciliations, unchanged_since
from app.resources.declaration import format_time, refuse_unknown
from app.resources.drift import DRIFT_KINDS

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


@routes.get("/v1/reconciliations/<run>")
@needs(READ)
def show(run: str) -> Response:
    """Return one run.
    ---
    get:
      summary: Return a run
      security: [{token: [read]}]
      parameters: [run]
      responses:
        200: {description: the run, content: {application/json: {schema: Reconciliation}}}
        default: Problem
    """
    return _one(Reconciliations(services().database).get, run)


@routes.post("/v1/reconciliations")
@needs(ADMIN, limited=True)
def start() -> Response:
    """Start a reconciliation.
    ---
    post:
      summary: Compare a target with a bucket, and repair the drift if `repair` is true
      description: >
        The run waits until a Spark worker is free (`bucketwire worker --only spark`). Without `repair` it repairs
        nothing, whatever the target's settings say.
      security: [{token: [admin]}]
      requestBody: {required: true, content: {application/json: {schema: NewReconciliation}}}
      responses:
        201: {description: the run, content: {application/json: {schema: Reconciliation}}}
        default: Problem
    """
    body = json_object(request)
    target, bucket = parsed_target("target", body.get("target")), parsed_text("bucket", body.get("bucket"))
    require_target(target)
    require_bucket(bucket)
    refuse_unknown(body, ("target", "bucket", "repair"))
    repairs = body.get("repair", False)
    if not isinstance(repairs, bool):
        raise bad_value("repair", "is neither true nor false", "omit it, or give true to repair what is found")
    return json_response(_json(_requests().start(target, bucket, repair=repairs)), 201)


@routes.post("/v1/reconciliations/<run>/repair")
@needs(ADMIN)
def approve(run: str) -> Response:
    """Repair the drift that a run found.
    ---
    post:
      summary: Start a run that compares again what a run with drift compared, and repairs the drift
      description: >
        The findings may be out of date, so they are not repaired as they are: the new run repairs what differs when it
        runs, within the limits of `bucketwire reconcile`.
      security: [{token: [admin]}]
      parameters: [run]
      requestBody: {required: true, content: {application/json: {schema: Nothing}}}
      responses:
        201: {description: the new run, content: {application/json: {schema: Reconciliation}}}
        default: Problem
    """
    refuse_unknown(json_object(request), ())
    return _one(_requests().repair, run, 201)


@routes.post("/v1/reconciliations/<run>/cancel")
@needs(ADMIN)
def cancel(run: str) -> Response:
    """Cancel a run.
    ---
    post:
      summary: Cancel a run that waits or runs
      description: >
        Repairs that it has posted are kept. Its process ends within about 15 seconds. A finished run does not change.
      security: [{token: [admin]}]
      parameters: [run]
      requestBody: {required: true, content: {application/json: {schema: Nothing}}}
      responses:
        200: {description: the run, content: {application/json: {schema: Reconciliation}}}
        default: Problem
    """
    refuse_unknown(json_object(request), ())
    return _one(_requests().cancel, run)


@routes.get("/v1/reconciliations/<run>/findings")
@needs(READ)
def findings(run: str) -> Response:
    """List what a run found.
    ---
    get:
      summary: List the differences that a run found, at most the first 10,000
      description: Its report has every difference, also those in flight and those that no rule matches.
      security: [{token: [read]}]
      parameters:
        - run
        - {name: kind, in: query, schema: DriftKind, description: only those of this kind}
        - {name: limit, in: query, schema: {type: integer, default: 100, minimum: 1, maximum: 1000},
           description: the most to return}
        - {name: after, in: query, schema: {type: integer, default: 0, minimum: 0, maximum: 10000},
           description: the `next` of the previous page}
      responses:
        200: {description: the differences, content: {application/json: {schema: Findings}}}
        default: Problem
    """
    refuse_unknown(request.args, ("kind", "limit", "after"))
    kind = parsed_text("kind", request.args.get("kind"))
    if kind and kind not in DRIFT_KINDS:
        raise bad_value("kind", "is not a kind of difference", f"give one of {', '.join(DRIFT_KINDS)}")
    limit = parsed_number("limit", request.args.get("limit"), 100, least=1, most=_MOST)
    after = parsed_number("after", request.args.get("after"), 0, least=0, most=RECONCILIATIONS.max_findings)
    database = services().database
    found = Reconciliations(database).get(parsed_text("run", run))
    page = read_findings(database, found.run, kind=kind, limit=limit + 1, after=after)
    return json_response(
        {
            "findings": [{"number": one.number, **one.facts} for one in page[:limit]],
            "next": page[limit - 1].number if len(page) > limit else None,
        }
    )


@routes.post("/v1/targets/<type_name>/<name>/events")
@needs(ADMIN, limited=True)
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
    for bucket in dict.fromkeys(event.bucket for event in events):
        require_bucket(bucket)  # all targets' readers see what is in the log
    recorder = Recorder(services().database, only_target=target, guard=unchanged_since(after), action="target.repair")
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


def _requests() -> RunRequests:
    return RunRequests(services().database, services().registry)


def _one(operation: Callable[[str], Reconciliation], run: str, status: int = 200) -> Response:
    return json_response(_json(operation(parsed_text("run", run))), status)


def _json(run: Reconciliation) -> dict[str, Any]:
    return {
        "run": run.run,
        "target": run.target.arn(services().settings.region),
        "bucket": run.bucket,
        "job": run.job,
        "state": run.state,
        "repair": run.repair,
        "started_at": format_time(run.started_at),
        "finished_at": format_time(run.finished_at),
        **run.counts,
        "report": run.report,
        "problem": run.problem,
        "progress": asdict(run.progress) if run.progress else None,
    }
