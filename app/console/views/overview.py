"""The overview: is everything delivered, and what needs an operator?"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from flask import Response

from app.api.services import services
from app.console import calls
from app.console.findings import ATTENTION, lines
from app.console.pages import page, show, visitor
from app.console.series import incoming_rate, newest, newest_times, points
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
