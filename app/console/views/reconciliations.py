"""Reconciliations: compare mirrors with their buckets, look at the drift, and approve its repair."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flask import Response, request

from app.config.declared_types import is_namespace
from app.console import session
from app.console.formats import command, short_id, short_target
from app.console.pages import FormRefusal, action, done, form_values, page, show, visitor
from app.resources.reconciliation import DRIFT_KINDS, describe_drift, drift_of

_NOTED = (*DRIFT_KINDS, "unmatched", "unreadable")  # numbers of a run that are worth a look
_TILES = ("objects", "target_rows", *DRIFT_KINDS, "in_flight", "repaired")
_SIZES = (50, 200, 1000)  # runs on the page
_TREND = 200  # of the newest runs show how the drift has changed
_COMPARED = ("clean", "drift", "repaired")  # states of a comparison that has ended
_NAMES = {  # by job
    "reconcile": "Reconciliation",
    "incremental": "Incremental reconciliation",
    "scan": "Scan",
    "backfill": "Backfill",
}
_PAGE = 100  # findings on a page


@dataclass(frozen=True, slots=True)
class Trend:
    """The drift that the last comparisons of a mirror with a bucket have left, the oldest first.

    `failed` is the newest run of the two if it failed: then the comparisons are older, and say nothing about now.
    """

    bucket: str
    target: str
    drifts: Sequence[int]
    last: Mapping[str, Any]
    failed: Mapping[str, Any] | None = None


@page("/reconciliations", "GET", "POST")
def reconciliations() -> Response:
    """List the last runs, and start one."""
    given, refusal = form_values("target", "bucket", "repair", "unknown_bucket"), FormRefusal(400, 404, 409)
    if request.method == "POST":
        with refusal:
            flags = {name: bool(given[name]) for name in ("repair", "unknown_bucket")}
            body = {"target": given["target"], "bucket": given["bucket"], **flags}
            run = session.change("POST", "/v1/reconciliations", body)
            waits = f": {run['note']}" if run["note"] else " for its turn at a Spark worker"
            return done(f"The run {short_id(run['id'])} waits{waits}.", "reconciliations")
    limit = next((size for size in _SIZES if str(size) == request.args.get("limit")), _SIZES[0])
    newest = session.get("/v1/reconciliations", limit=max(limit, _TREND))["reconciliations"]
    runs = newest[:limit]
    mirrors = [
        short_target(target["arn"]) for target in session.targets() if is_namespace(target["type"], target["settings"])
    ]
    name = given["target"] or (mirrors[0] if mirrors else "TYPE:NAME")
    return show(
        "reconciliations.html",
        here="reconciliations",
        runs=runs,
        drift=_NOTED,
        compared=_COMPARED,
        trends=trends(newest),
        given=given,
        wrong=refusal.wrong,
        mirrors=mirrors,
        may_start=visitor().may_change and bool(mirrors),
        more=next((size for size in _SIZES if size > limit), None) if len(runs) == limit else None,
        clis=[
            command("reconcile", "start", name, given["bucket"] or "BUCKET"),
            command("reconcile", "run", given["bucket"] or "BUCKET", "--target", name),
        ],
    )


def trends(runs: Sequence[Mapping[str, Any]]) -> list[Trend]:
    """Return how the drift of each mirror and bucket has changed, those that failed and the largest drift first.

    `runs` are newest first.
    """
    pairs: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    failed: dict[tuple[str, str], Mapping[str, Any]] = {}
    for each in runs:
        if each["prefix"]:
            continue  # it says nothing of the rest of the bucket
        pair = each["bucket"], each["target"]
        if each["job"] == "reconcile" and each["state"] in _COMPARED:
            pairs.setdefault(pair, []).insert(0, each)
        elif each["job"] == "reconcile" and each["state"] == "failed" and pair not in pairs:
            failed.setdefault(pair, each)
    found = [
        Trend(*pair, [remaining_drift(each) for each in ended], ended[-1], failed.get(pair))
        for pair, ended in pairs.items()
    ]
    return sorted(found, key=lambda trend: (not trend.failed, -trend.drifts[-1], trend.bucket, trend.target))


def remaining_drift(run: Mapping[str, Any]) -> int:
    """Return how many differences a run has found and left: none if it has repaired them."""
    drift = drift_of(run)
    return max(0, drift - run["repaired"]) if run["state"] == "repaired" else drift


@page("/reconciliations/<run>")
def run(run: str) -> Response:
    """Show a run and what it has found."""
    kind, after = form_values("kind")["kind"], request.args.get("after", "")
    shown = session.get(f"/v1/reconciliations/{run}")
    findings: dict[str, Any] = session.get(
        f"/v1/reconciliations/{run}/findings", kind=kind if kind in DRIFT_KINDS else "", after=after, limit=_PAGE
    )
    return show(
        "reconciliation.html",
        here="reconciliations",
        run=shown,
        name=_NAMES[shown["job"]],
        compared=shown["state"] in _COMPARED,
        left=describe_drift(remaining_drift(shown), shown["in_flight"]),
        findings=findings,
        kinds=DRIFT_KINDS,
        tiles=_TILES,
        kind=kind,
        after=after,
        cli=command("reconcile", "findings", run, *(("--kind", kind) if kind in DRIFT_KINDS else ())),
    )


@action("/reconciliations/<run>/cancel", "reconciliations/{run}")
def cancel(run: str) -> Response:
    """Cancel a run."""
    return _change(run, "cancel", "The run is cancelled; repairs that it has posted are kept.")


@action("/reconciliations/<run>/repair", "reconciliations/{run}")
def repair(run: str) -> Response:
    """Approve the repair of what a run has found."""
    return _change(run, "repair", "A new run compares again and repairs what differs then.")


def _change(run: str, what: str, sentence: str) -> Response:
    changed = session.change("POST", f"/v1/reconciliations/{run}/{what}")
    note = changed["note"] and f" It waits: {changed['note']}."
    return done(sentence + note, f"reconciliations/{changed['id']}")
