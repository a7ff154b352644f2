"""A target: its curves, its counters, what fails and why, and its test."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flask import Response, request

from app.api.services import services
from app.config.declared_types import TYPES
from app.config.targets.base import ordered_fields
from app.console import calls
from app.console.calls import resource_path
from app.console.findings import Line, lines, of_target
from app.console.formats import number, short_target
from app.console.pages import action, done, form_values, page, show, visitor
from app.console.series import Curves, Point, curves, newest, newest_times, points
from app.console.settings_in_force import as_set, by_default, other_values
from app.resources.declaration import BadMember

_RETRIES = 100  # retried objects, of which the last reasons are counted
_NEXT = 5  # of them are shown
_MUCH = 100  # undelivered events of a partition
_MAX_NUMBERED_PARTITIONS = 64  # partitions; with more of them the strip has no numbers
_LOSSES = ("recorded", "delivered", "superseded", "pending", "parked", "dead", "purged")


@page("/targets/<kind>/<name>")
def target(kind: str, name: str) -> Response:
    """Show a target."""
    shown = calls.get(resource_path("targets", kind, name))
    arn, events = shown["arn"], shown["events"]
    live = bool(request.args.get("live"))  # the part that moves asks for itself, without the curves
    given, wrong = form_values("since", "before"), dict[str, str]()
    recent = _points(arn, curves({"since": "", "before": ""}, time.time()))
    curve = recent
    try:
        drawn = curves(given, time.time())
        if not live and any(given.values()):
            curve = _points(arn, drawn)
    except BadMember as error:
        drawn, wrong = curves({"since": "", "before": ""}, time.time()), {error.field: f"{error}: {error.hint}"}
    partitions = calls.get(f"{resource_path('targets', kind, name)}/partitions")["partitions"]
    others = other_values(shown, allow_private=services().settings.allow_private)
    return show(
        "target.html",
        here="targets",
        target=shown,
        name=short_target(arn),
        path=f"targets/{kind}/{name}",
        given=given,
        wrong=wrong,
        live=live,
        points=curve,
        newest=newest(recent, time.time()),
        p99=newest_times(recent, time.time())[1],
        drawn=drawn,
        timed=any(point.p99 is not None for point in curve),
        balanced=events["recorded"] == sum(events[each] for each in _LOSSES[1:]),
        shares=_shares(events),
        reasons=calls.get("/v1/dead-letters/reasons", target=arn) if events["dead"] else None,
        retries=(retries := calls.get("/v1/retries", target=arn, limit=_RETRIES) if events["parked"] else None),
        failures=_failures(retries["retries"]) if retries else [],
        soon=_NEXT,
        rules=[] if live else rules_of(arn),
        queue=_queue(arn),
        partitions=[{**each, "level": level(each)} for each in partitions],
        much=_MUCH,
        numbered=len(partitions) <= _MAX_NUMBERED_PARTITIONS,
        settings=as_set(shown["settings"], others),
        defaults=[] if live else by_default(ordered_fields(TYPES[kind]), shown["settings"], others),
        findings=_findings(shown),
    )


def _findings(target: Mapping[str, Any]) -> list[Line]:
    """Return what is found of a target besides its state."""
    who, found = visitor(), calls.get("/v1/doctor")["findings"]
    bad = [each for each in of_target(found, target) if each["grade"] != "ok"]
    return lines(bad, may_change=who.may_change, sees_all=not who.is_limited)


def _points(arn: str, drawn: Curves) -> list[Point]:
    query = {"since": drawn.since, "before": drawn.before, "step": drawn.step, "width": drawn.width}
    [series] = calls.get("/v1/series", target=arn, **query)["series"]
    return points(series["samples"], width=drawn.width)


def level(partition: Mapping[str, Any]) -> str:
    """Return how much waits in a partition: none, some, or much. What was not counted to its end is more than it."""
    waiting, more = partition["pending"] + partition["parked"], partition["more"]
    if waiting >= _MUCH or (waiting and more):
        return "much"
    return "some" if waiting or more else "none"


def _failures(retries: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    """Return the last reasons of retried events and how many have each, the most frequent first."""
    return Counter(each["history"][-1]["reason"] for each in retries if each["history"]).most_common(10)


def _shares(events: dict[str, int]) -> list[tuple[str, float, float]]:
    """Return where each part of a bar of the counters begins and how long it is, in per cent."""
    whole, begun, shares = max(1, events["recorded"]), 0.0, []
    for name in _LOSSES[1:]:
        share = 100 * events[name] / whole
        if share:
            shares.append((name, round(begun, 3), round(max(share, 0.3), 3)))
        begun += share
    return shares


def rules_of(arn: str) -> list[dict[str, Any]]:
    """Return the rules that name a target; none for a visitor who may not see the rules."""
    rules = [] if visitor().is_limited else calls.get("/v1/rules")["rules"]
    return [rule for rule in rules if rule["target"] == arn]


def _queue(arn: str) -> dict[str, Any] | None:
    if visitor().is_limited:
        return None
    return next((queue for queue in calls.get("/v1/processes")["queues"] if queue["target"] == arn), None)


@action("/targets/<kind>/<name>/test", "targets/{kind}/{name}")
def test(kind: str, name: str) -> Response:
    """Record a test event, and show it on its way."""
    sent = calls.change("POST", f"{resource_path('targets', kind, name)}/test")
    return done("The test event is recorded; this page follows it.", f"events/{sent['ids'][-1]}")


@action("/targets/<kind>/<name>/retry", "targets/{kind}/{name}")
def retry(kind: str, name: str) -> Response:
    """Retry an event of a target at once, or every one that is retried."""
    event = form_values("event")["event"]
    chosen = {"target": f"{kind}:{name}"} | ({"ids": [event]} if event else {})
    due = calls.change("POST", "/v1/retries/now", chosen)["due"]
    return done(f"{number(due)} {'event is' if due == 1 else 'events are'} due at once.", f"targets/{kind}/{name}")
