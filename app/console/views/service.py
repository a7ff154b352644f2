"""Show the service itself: the overview of its targets, its processes, its doctor's findings, audit log and tokens.

Findings of one subject are listed together, each with what can be done.
"""

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import Response, request

from app.api import Refused
from app.api.services import services
from app.config.arn import parse_target
from app.config.errors import BadValue
from app.config.settings import SCOPES
from app.console import session
from app.console.formats import command, incoming_rate, newest, newest_times, options, points, target_path
from app.console.pages import FormRefusal, done, filtered, form_values, page, show, visitor
from app.events.frontends import S3_FRONTENDS
from app.logs import clause
from app.release import VERSION
from app.resources.service import FINDING_GRADES
from app.resources.target import urgency

ATTENTION = ("problem", "warning")  # grades of findings that need somebody
_OF_PROCESSES = ("api", "beat", "broker", "drain", "versions", "workers")  # subjects that the page of these is about
_HOST = "host "  # begins the subject of a finding about one
_GRAVEST_FIRST = FINDING_GRADES[::-1]
_SOURCE = "source "  # begins the subject of a finding about one
_DOCTOR = "doctor"  # the page about every other subject


@dataclass(frozen=True, slots=True)
class Action:
    """A button beside a finding: a page, or a form at `path` that changes something."""

    text: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    is_form: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A finding in a list; `follows` if it is about the same subject as the one before it."""

    id: str
    subject: str
    path: str
    grade: str
    text: str
    command: Sequence[str]
    action: Action
    follows: bool


def lines(findings: Sequence[Mapping[str, Any]], *, may_change: bool, sees_all: bool) -> list[Line]:
    """Return findings for a visitor: those of one subject together, and the subjects with the gravest ones first."""
    by_subject: dict[str, list[Mapping[str, Any]]] = {}
    for each in sorted(findings, key=_severity):
        by_subject.setdefault(each["subject"], []).append(each)
    return [
        Line(
            id=f"finding-{re.sub('[^A-Za-z0-9]+', '-', subject)}-{index}",
            subject=subject,
            path=page_of(subject),
            grade=each["grade"],
            text=each["text"],
            command=each["command"],
            action=_action(subject, each["command"], may_change=may_change, sees_all=sees_all),
            follows=index > 0,
        )
        for subject, group in by_subject.items()
        for index, each in enumerate(group)
    ]


def of_target(findings: Sequence[Mapping[str, Any]], target: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield what is found of a target besides its state, which its page begins with."""
    name, reason = f"{target['type']}:{target['name']}", clause(target["reason"])
    for each in findings:
        is_of_state = each["text"].startswith(target["state"]) or bool(reason and reason in each["text"])
        if each["subject"] == name and not is_of_state:
            yield each


def is_about_processes(subject: str) -> bool:
    """Return whether a finding with this subject is one that the page of the processes is about."""
    return subject in _OF_PROCESSES or subject.startswith(_HOST)


def page_of(subject: str) -> str:
    """Return the page about what a finding is about."""
    if is_about_processes(subject):
        return "processes"
    if subject.startswith(_SOURCE):
        return f"sources/{_split(subject.removeprefix(_SOURCE))}"
    try:
        target = parse_target(subject)
    except BadValue:
        return _DOCTOR
    return f"targets/{target.type}/{target.name}"


def _action(subject: str, command: Sequence[str], *, may_change: bool, sees_all: bool) -> Action:
    """Return what the command of a finding does, as a button; what a visitor may not do is a page to look at."""
    action = Action("Show", page_of(subject))
    match command:
        case ["target", "test", name] if may_change:
            action = Action("Test", f"targets/{_split(name)}/test", is_form=True)
        case ["target" | "source" as noun, "resume", name] if may_change:
            action = Action("Resume", f"{noun}s/{_split(name)}/resume", is_form=True)
        case ["dead-letter" | "retry" as noun, "ls", "--target", name]:
            action = Action("Show", "dead-letters" if noun == "dead-letter" else "retries", {"target": name})
        case ["event", "search", "--target", name, "--state", state] if sees_all:
            action = Action("Show", "events", {"target": name, "state": state})
        case ["event", "show", number] if sees_all:
            action = Action("Show", f"events/{number}")
        case ["reconcile", *_] if sees_all:
            action = Action("Show", "reconciliations")
        case ["audit", "--action", name] if sees_all and may_change:
            action = Action("Show", "audit", {"action": name})
        case ["token", *_] if sees_all and may_change:
            action = Action("Show", "tokens")
        case ["worker" | "process", *_] if sees_all:
            action = Action("Show", "processes")
    return action


def _split(name: str) -> str:
    return name.replace(":", "/", 1)


def _severity(finding: Mapping[str, Any]) -> int:
    return _GRAVEST_FIRST.index(finding["grade"])


_MAX_CURVES = 60  # targets; with more of them the overview has no curves
# The curves' minutes: of few targets more, because a page is made of a bounded number of samples.
_FEW, _LONG, _SHORT = 15, 20, 5
_WIDTH = 20  # seconds
_LINES, _MAX_LINES = 8, 40  # findings above the targets; in all, of which the others are folded


@page("/")
def overview() -> Response:
    """Show the state of every target, those with problems first."""
    found = [one for one in session.get("/v1/doctor")["findings"] if one["grade"] in ATTENTION]
    rows, limited = _rows(found), visitor().is_limited
    targets, curves, times = rows["targets"], rows["curves"], rows["times"]
    status = _sum(targets) | ({} if limited else _service())
    events = status["events"]
    intake = [] if limited else session.get("/v1/intake")["intake"]
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
        has_rules=limited or (bool(targets) and bool(session.get("/v1/rules")["rules"])),
        now=datetime.now(UTC).isoformat(),
    )


@page("/targets")
def targets() -> Response:
    """Show the state of every target, as the overview does."""
    return show("targets.html", here="targets", **_rows(session.get("/v1/doctor")["findings"]))


def _rows(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the targets, those with problems first, with their curves and delivery times.

    One that is not paused, with a problem of its own or without any worker, is not shown as one that runs.
    """
    targets = session.get("/v1/targets")["targets"]
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
    series: list[dict[str, Any]] = session.get("/v1/series", since=since)["series"]
    return series


@page("/processes")
def processes() -> Response:
    """Show the processes, those that are missed or run another version first, and the queues."""
    found = session.get("/v1/processes")
    who = visitor()
    findings = [one for one in session.get("/v1/doctor")["findings"] if is_about_processes(one["subject"])]
    bad = [one for one in findings if one["grade"] in ATTENTION]
    states = {target["arn"]: target["state"] for target in session.targets()}
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
        checks=session.checks()
        | {one["subject"]: {"ok": one["grade"] == "ok"} for one in findings if one["subject"] == "broker"},
        findings=lines(bad, may_change=who.may_change, sees_all=not who.is_limited),
        path_of=target_path,
    )


@page("/doctor")
def doctor() -> Response:
    """Show the findings."""
    who, found = visitor(), session.get("/v1/doctor")["findings"]
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
            made = session.change(
                "POST", "/v1/tokens", {"name": name, "scopes": scopes, "frontend": frontend, **limits}
            )
    return show(
        "tokens.html",
        here="tokens",
        # The first token ends the time in which none was needed, so the list may be refused from now on.
        tokens=session.get("/v1/tokens")["tokens"] if not (made and not visitor().name) else [],
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
                session.change("DELETE", f"/v1/tokens/{name}")
                return done(f"The token {name} is revoked; its sessions end with it.", "tokens")
            problem = f"type {name} to revoke it"
        except Refused as refused:
            problem = str(refused)
    return show(
        "token_revoke.html",
        here="tokens",
        name=name,
        own=name == _own(),
        last=len(session.get("/v1/tokens")["tokens"]) == 1,
        typed=typed,
        problem=problem,
    )


def _own() -> str:
    """Return the name of the token of this session; "" if it has none."""
    return visitor().name if visitor().kind == "token" else ""
