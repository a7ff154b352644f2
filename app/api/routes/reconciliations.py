"""Start, cancel and list reconciliations and their findings, and record the events that repair drift."""

import logging
from collections.abc import Callable
from functools import cache

import msgspec
from flask import Blueprint, request

from app.api.auth import ADMIN, READ, needs, require_bucket, require_target
from app.api.description import EVENTS_BODY, answers
from app.api.errors import ApiProblem, check_active
from app.api.request_body import event_headers, read_body
from app.api.services import services
from app.config.arn import TargetId
from app.events.parsing import parse
from app.outbox import processes
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import now_ms
from app.outbox.log.append import Receipt
from app.outbox.log.group_commit import Recorder
from app.outbox.reconcile import runs
from app.outbox.reconcile.log_queries import unchanged_since
from app.outbox.reconcile.runs import Reconciliations as Runs
from app.outbox.reconcile.runs import read_findings
from app.outbox.reconcile.schedule import RunRequests
from app.resources.declaration import TEXT, Nothing
from app.resources.reconciliation import (
    Finding,
    Findings,
    FindingsQuery,
    NewReconciliation,
    Reconciliation,
    Reconciliations,
    Repair,
    RepairReceipt,
    RunProgress,
    RunsQuery,
)

logger = logging.getLogger("bucketwire.api")
routes = Blueprint("reconciliations", __name__)
_LOGGED = 100  # refused events of one request that are logged
_NO_WORKER = (
    "no Spark worker is there, so the run waits until you start one: `bucketwire worker --only spark`; "
    "where `bucketwire up` runs and Spark is installed, it starts one by itself"
)
_RUN = {"run": "the run's id"}


@routes.get("/v1/reconciliations")
@needs(READ)
@answers(Reconciliations, "the runs", query=RunsQuery)
def ls(query: RunsQuery) -> Reconciliations:
    """List the last runs of reconciliations, backfills and scheduled scans, newest first."""
    listed = Runs(services().database).list(limit=query.limit)
    has_worker = cache(_has_spark_worker)  # of each run that waits it would be asked again
    return Reconciliations(reconciliations=[_resource(run, has_worker) for run in listed])


@routes.get("/v1/reconciliations/<run>")
@needs(READ)
@answers(Reconciliation, "the run", path=_RUN)
def show(run: str) -> Reconciliation:
    """Return a run."""
    return _one(Runs(services().database).get, run)


@routes.post("/v1/reconciliations")
@needs(ADMIN, limited=True)
@answers(Reconciliation, "the run", body=NewReconciliation, status=201)
def start(body: NewReconciliation) -> Reconciliation:
    """Compare a target with a bucket, and repair the drift if `repair` is true.

    The run waits until a Spark worker is free (`bucketwire worker --only spark`). Without `repair` it repairs nothing,
    whatever the target's settings say.
    """
    require_target(body.target)
    require_bucket(body.bucket)
    run = _requests().start(
        body.target, body.bucket, repair=body.repair, prefix=body.prefix, incremental=body.incremental,
        unknown_bucket=body.unknown_bucket,
    )  # fmt: skip
    return _resource(run)


@routes.post("/v1/reconciliations/<run>/repair")
@needs(ADMIN)
@answers(Reconciliation, "the new run", path=_RUN, body=Nothing, status=201)
def approve(run: str, body: Nothing) -> Reconciliation:  # noqa: ARG001 - it refuses what nobody looks at
    """Start a run that compares again what a run with drift compared, and repairs the drift.

    The findings may be out of date, so they are not repaired as they are: the new run repairs what differs when it
    runs, within the limits of `bucketwire reconcile run`.
    """
    return _one(_requests().repair, run)


@routes.post("/v1/reconciliations/<run>/cancel")
@needs(ADMIN)
@answers(Reconciliation, "the run", path=_RUN, body=Nothing)
def cancel(run: str, body: Nothing) -> Reconciliation:  # noqa: ARG001 - it refuses what nobody looks at
    """Cancel a run that waits or runs.

    Repairs that it has posted are kept. Its process ends within about 15 seconds. A finished run does not change.
    """
    return _one(_requests().cancel, run)


@routes.get("/v1/reconciliations/<run>/findings")
@needs(READ)
@answers(Findings, "the differences", path=_RUN, query=FindingsQuery)
def findings(run: str, query: FindingsQuery) -> Findings:
    """List the differences that a run found, at most the first 10,000.

    Its report has every difference, also those in flight and those that no rule matches.
    """
    database = services().database
    found = Runs(database).get(TEXT.read("run", run))
    page = read_findings(database, found.run, kind=query.kind, limit=query.limit + 1, after=query.after)
    listed = [msgspec.convert({**one.facts, "number": one.number}, Finding) for one in page[: query.limit]]
    return Findings(findings=listed, next=listed[-1].number if len(page) > query.limit else None)


@routes.post("/v1/targets/<type_name>/<name>/events")
@needs(ADMIN, limited=True)
@answers(RepairReceipt, "the events are recorded", query=Repair, status=202, content=EVENTS_BODY)
def repair(type_name: str, name: str, query: Repair) -> RepairReceipt:
    """Record events for this target only, independent of the rules.

    An event is left out and counted as `overtaken` if the log has a change of its object after sequence number `after`,
    because the sender's view of the object is out of date then. A 202 means that the others are recorded durably. If
    the target's queue has no capacity for all of them, none is recorded and the answer is 503, independent of
    `queue_full`. Events that the database refuses are left out and counted as `refused`.
    """
    target = TargetId(type_name, name)
    check_active(services().registry.target(target))
    body = read_body(request, services().settings.body_limit)
    events = parse(body, event_headers(request), now_ms=now_ms(), limits=services().limits).events
    for bucket in dict.fromkeys(event.bucket for event in events):
        require_bucket(bucket)  # all targets' readers see what is in the log
    guard = unchanged_since(query.after)
    recorder = Recorder(services().database, only_target=target, guard=guard, action="target.repair")
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
    return RepairReceipt(
        recorded=sum(receipt.recorded for receipt in recorded),
        repeated=sum(receipt.repeated for receipt in recorded),
        overtaken=sum(receipt.overtaken for receipt in recorded),
        refused=len(refused),
    )


def _has_spark_worker() -> bool:
    with services().database.reading() as connection:
        return processes.has_spark_worker(connection, database_now(connection))


def _requests() -> RunRequests:
    return RunRequests(services().database, services().registry)


def _one(operation: Callable[[str], runs.Reconciliation], run: str) -> Reconciliation:
    return _resource(operation(TEXT.read("run", run)))


def _resource(run: runs.Reconciliation, has_worker: Callable[[], bool] = _has_spark_worker) -> Reconciliation:
    return Reconciliation.of(
        run,
        id=run.run,
        target=run.target.arn(services().settings.region),
        note=_NO_WORKER if run.state == runs.WAITING and not has_worker() else "",
        progress=RunProgress.of(run.progress) if run.progress else None,
        **run.counts,
    )
