"""Show the service itself: the overview of its targets, its processes, its doctor's findings, audit log and tokens."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import Response, request

from app.api import Refused
from app.api.services import services
from app.config.settings import SCOPES
from app.console import calls
from app.console.findings import ATTENTION, is_about_processes, lines
from app.console.formats import command, incoming_rate, newest, newest_times, options, points, target_path
from app.console.pages import FormRefusal, done, filtered, form_values, page, show, visitor
from app.events.frontends import S3_FRONTENDS
from app.release import VERSION
from app.resources.target import urgency

_MAX_CURVES = 60  # targets; with more of them the overview has no curves
# The curves' minutes: of few targets more, because a page is made of a bounded number of samples.
_FEW, _LONG, _SHORT = 15, 20, 5
_WIDTH = 20  # seconds
_LINES, _MAX_LINES = 8, 40  # findings above the targets; in all, of which the others are folded


@page("/")
def overview() -> Response:
    """Show the state of every target, those with problems first."""
    found = [one for one in calls.get("/v1/doctor")["findings"] if one["grade"] in ATTENTION]
    rows, limited = _rows(found), visitor().is_limited
    targets, curves, times = rows["targets"], rows["curves"], rows["times"]
    status = _sum(targets) | ({} if limited else _service())
    events = status["events"]
    intake = [] if limited else calls.get("/v1/intake")["intake"]
    rates = [point for curve in curves.values() if (point := newest(curve, time.time()))]
    return show(
        "overview.html",
        here="overview",
        status=status,
        **rows,
        width=_WIDTH,
        grades=Counter(one["grade"] for one in found),
        findings=lines(found, may_change=visitor().may_change, sees_all=not limited)[:_MAX_LINES],
        unfolded=_LINES,
        left_out=max(0, len(found) - _MAX_LINES),
        pending=events.get("pending", 0),
        parked=events.get("parked", 0),
        slowest=max((p99 for _, p99 in times.values() if p99 is not None), default=None),
        intake=intake,
        incoming=incoming_rate(intake),
        outgoing=sum(point.delivered for point in rates) if rates else None,
        has_rules=limited or (bool(targets) and bool(calls.get("/v1/rules")["rules"])),
        now=datetime.now(UTC).isoformat(),
    )


@page("/targets")
def targets() -> Response:
    """Show the state of every target, as the overview does."""
    return show("targets.html", here="targets", **_rows(calls.get("/v1/doctor")["findings"]))


def _rows(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the targets, those with problems first, with their curves and delivery times.

    One that is not paused, with a problem of its own or without any worker, is not shown as one that runs.
    """
    targets = calls.get("/v1/targets")["targets"]
    problems = {one["subject"] for one in found if one["grade"] == "problem"}
    for target in targets:
        state, name = target["state"], f"{target['type']}:{target['name']}"
        if state == "running" and not problems.isdisjoint((name, "workers")):
            state = "problem" if name in problems else "not served"
        target["shown"] = state
    minutes = _LONG if len(targets) <= _FEW else _SHORT
    series = _series(minutes) if len(targets) <= _MAX_CURVES else []
    targets.sort(key=lambda target: (_urgency(target["shown"]), -target["events"]["dead"], target["arn"]))
    curves = {each["target"]: points(each["samples"], width=_WIDTH) for each in series}
    return {
        "targets": targets,
        "minutes": minutes,
        "curves": curves,
        "times": {target: newest_times(curve, time.time()) for target, curve in curves.items()},
        "states": sorted(Counter(target["shown"] for target in targets).items(), key=lambda pair: _urgency(pair[0])),
    }


def _urgency(shown: str) -> int:
    """Return the place of what is shown for a target's state; what hinders one comes first."""
    return urgency(shown) if shown not in ("problem", "not served") else -1


def _sum(targets: list[dict[str, Any]]) -> dict[str, Any]:
    """Return of `/v1/status` what the targets show: at the same moment as they, and without counting all again."""
    events: Counter[str] = Counter()
    for target in targets:
        events.update(target["events"])
    ages = [target["oldest_age"] for target in targets if target["oldest_age"] is not None]
    return {"events": events, "oldest_age": max(ages, default=None)}


def _service() -> dict[str, Any]:
    """Return of `/v1/status` what no target shows."""
    return {"version": VERSION, "region": services().settings.region}


def _series(minutes: int) -> list[dict[str, Any]]:
    since = (datetime.now(UTC) - timedelta(minutes=minutes)).isoformat(timespec="seconds")
    series: list[dict[str, Any]] = calls.get("/v1/series", since=since)["series"]
    return series


@page("/processes")
def processes() -> Response:
    """Show the processes, those that are missed or run another version first, and the queues."""
    found = calls.get("/v1/processes")
    who = visitor()
    findings = [one for one in calls.get("/v1/doctor")["findings"] if is_about_processes(one["subject"])]
    bad = [one for one in findings if one["grade"] in ATTENTION]
    states = {target["arn"]: target["state"] for target in calls.targets()}
    return show(
        "process_list.html",
        here="processes",
        flower=found["flower"],
        drain=found["drain"],
        processes=sorted(
            found["processes"], key=lambda one: (one["state"] == "running", one["version"] == VERSION, one["name"])
        ),
        version=VERSION,
        strangers=found["other_processes"],
        queues=sorted(found["queues"], key=lambda queue: (queue["served"], -queue["age"])),
        states=states,
        checks=calls.checks()
        | {one["subject"]: {"ok": one["grade"] == "ok"} for one in findings if one["subject"] == "broker"},
        findings=lines(bad, may_change=who.may_change, sees_all=not who.is_limited),
        path_of=target_path,
    )


@page("/doctor")
def doctor() -> Response:
    """Show the findings."""
    who, found = visitor(), calls.get("/v1/doctor")["findings"]
    shown = lines(found, may_change=who.may_change, sees_all=not who.is_limited)
    return show("doctor.html", here="doctor", findings=shown, cli=command("doctor"))


_FILTERS = ("actor", "action", "resource", "since", "before")


@page("/audit")
def audit() -> Response:
    """List the changes, newest first."""
    listed = filtered("/v1/audit", "entries", _FILTERS)
    cli = command("audit", *options(listed["given"]))
    return show("audit.html", here="audit", cli=cli, **listed)


@page("/tokens", "GET", "POST")
def tokens() -> Response:
    """List the tokens; create one and show it, once."""
    given = form_values("name", "frontend", "tenant", "buckets", "targets", "expires")
    buckets, targets = (given[kind].replace(",", " ").split() for kind in ("buckets", "targets"))
    name, frontend = given["name"], given["frontend"]
    scopes = [scope for scope in request.form.getlist("scopes") if scope in SCOPES]
    made, refusal = None, FormRefusal(400, 409)
    if request.method == "POST":
        with refusal:
            limits: dict[str, Any] = {"buckets": buckets, "targets": targets}
            limits |= {"tenant": given["tenant"]} if given["tenant"] else {}
            limits |= {"expires": given["expires"]} if given["expires"] else {}
            made = calls.change("POST", "/v1/tokens", {"name": name, "scopes": scopes, "frontend": frontend, **limits})
    return show(
        "tokens.html",
        here="tokens",
        # The first token ends the time in which none was needed, so the list may be refused from now on.
        tokens=calls.get("/v1/tokens")["tokens"] if not (made and not visitor().name) else [],
        made=made,
        wrong=refusal.wrong,
        name="" if made else name,
        chosen=scopes,
        all_scopes=SCOPES,
        frontend="" if made else frontend,
        frontends=sorted(S3_FRONTENDS),
        tenant="" if made else given["tenant"],
        buckets="" if made else given["buckets"],
        targets="" if made else given["targets"],
        expires="" if made else given["expires"],
        own=_own(),
        cli=command(
            "token",
            "create",
            name or "NAME",
            "--scope",
            ",".join(scopes or ["read"]),
            *(("--frontend", frontend) if frontend else ()),
            *(("--tenant", given["tenant"]) if given["tenant"] else ()),
            *(word for bucket in buckets for word in ("--bucket", bucket)),
            *(word for target in targets for word in ("--target", target)),
            *(("--expires", given["expires"]) if given["expires"] else ()),
        ),
    )


@page("/tokens/<name>/revoke", "GET", "POST")
def revoke(name: str) -> Response:
    """Revoke a token, after its name was typed."""
    typed = form_values("typed")["typed"]
    problem = ""
    if request.method == "POST":
        try:
            if typed == name:
                calls.change("DELETE", f"/v1/tokens/{name}")
                return done(f"The token {name} is revoked; its sessions end with it.", "tokens")
            problem = f"type {name} to revoke it"
        except Refused as refused:
            problem = str(refused)
    return show(
        "token_revoke.html",
        here="tokens",
        name=name,
        own=name == _own(),
        last=len(calls.get("/v1/tokens")["tokens"]) == 1,
        typed=typed,
        problem=problem,
    )


def _own() -> str:
    """Return the name of the token of this session; "" if it has none."""
    return visitor().name if visitor().kind == "token" else ""
