"""The overview: is everything delivered, and what needs an operator?"""

from datetime import UTC, datetime, timedelta
from typing import Any

from flask import Response

from app.console import calls
from app.console.health import ailments
from app.console.pages import page, show
from app.console.series import Point, points

_MOST_CURVES = 60  # targets; with more of them the overview has no curves
_PERIOD = timedelta(minutes=20)
_WIDTH = 20  # seconds
_RANK = {"broken": 0, "unavailable": 1, "paused": 2, "running": 3, "disabled": 4}


@page("/")
def overview() -> Response:
    """Show the state of every target, those with problems first."""
    status, targets = calls.get("/v1/status"), calls.get("/v1/targets")["targets"]
    workers = calls.get("/v1/workers")
    curves = _curves() if len(targets) <= _MOST_CURVES else {}
    targets.sort(key=lambda target: (_RANK.get(target["state"], 9), -target["events"]["dead"], target["arn"]))
    events = status["events"]
    return show(
        "overview.html",
        here="overview",
        status=status,
        targets=targets,
        curves=curves,
        ailments=ailments(status, targets, workers["queues"]),
        waiting=events.get("pending", 0) + events.get("parked", 0),
        incoming=sum(_newest(curve).recorded for curve in curves.values()),
        outgoing=sum(_newest(curve).delivered for curve in curves.values()),
        has_rules=bool(targets) and bool(calls.get("/v1/rules")["rules"]),
        now=datetime.now(UTC).isoformat(),
    )


def _curves() -> dict[str, list[Point]]:
    since = (datetime.now(UTC) - _PERIOD).isoformat(timespec="seconds")
    series: list[dict[str, Any]] = calls.get("/v1/series", since=since)["series"]
    return {each["target"]: points(each["samples"], width=_WIDTH) for each in series}


def _newest(curve: list[Point]) -> Point:
    return curve[-1] if curve else Point(0, 0, 0, 0, 0, 0, None)
