"""Show targets and sources, whether they work and what fails; test, pause, resume and remove them."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from flask import Response, request

from app.api import Refused
from app.api.services import services
from app.config.declared_types import SOURCE_TYPES, TYPES
from app.config.sources.base import ordered_source_fields
from app.config.targets.base import ordered_fields
from app.console import session
from app.console.formats import Curves, Point, curves, newest, newest_times, number, points, pretty_json, short_target
from app.console.pages import NOTHING_SELECTED, action, done, form_values, page, show, ticked_numbers, visitor
from app.console.session import resource_path
from app.console.views.service import Line, lines, of_target
from app.console.views.settings_forms import ROOMS, as_set, by_default, other_values
from app.quantities import count_noun
from app.resources.declaration import BadMember

_RETRIES = 100  # retried objects, of which the last reasons are counted
_NEXT = 5  # of them are shown
_MUCH = 100  # undelivered events of a partition
_MAX_NUMBERED_PARTITIONS = 64  # partitions; with more of them the strip has no numbers
_LOSSES = ("recorded", "delivered", "superseded", "pending", "parked", "dead", "purged")


@page("/targets/<kind>/<name>")
def target(kind: str, name: str) -> Response:
    """Show a target."""
    shown = session.get(resource_path("targets", kind, name))
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
    partitions = session.get(f"{resource_path('targets', kind, name)}/partitions")["partitions"]
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
        reasons=session.get("/v1/dead-letters/reasons", target=arn) if events["dead"] else None,
        retries=(retries := session.get("/v1/retries", target=arn, limit=_RETRIES) if events["parked"] else None),
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
    who, found = visitor(), session.get("/v1/doctor")["findings"]
    bad = [each for each in of_target(found, target) if each["grade"] != "ok"]
    return lines(bad, may_change=who.may_change, sees_all=not who.is_limited)


def _points(arn: str, drawn: Curves) -> list[Point]:
    query = {"since": drawn.since, "before": drawn.before, "step": drawn.step, "width": drawn.width}
    [series] = session.get("/v1/series", target=arn, **query)["series"]
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
    rules = [] if visitor().is_limited else session.get("/v1/rules")["rules"]
    return [rule for rule in rules if rule["target"] == arn]


def _queue(arn: str) -> dict[str, Any] | None:
    if visitor().is_limited:
        return None
    return next((queue for queue in session.get("/v1/processes")["queues"] if queue["target"] == arn), None)


@action("/targets/<kind>/<name>/test", "targets/{kind}/{name}")
def test(kind: str, name: str) -> Response:
    """Record a test event, and show it on its way."""
    sent = session.change("POST", f"{resource_path('targets', kind, name)}/test")
    return done("The test event is recorded; this page follows it.", f"events/{sent['ids'][-1]}")


@action("/targets/<kind>/<name>/retry", "targets/{kind}/{name}")
def retry(kind: str, name: str) -> Response:
    """Retry an event of a target at once, or every one that is retried."""
    event = form_values("event")["event"]
    chosen = {"target": f"{kind}:{name}"} | ({"ids": [event]} if event else {})
    due = session.change("POST", "/v1/retries/now", chosen)["due"]
    return done(f"{number(due)} {'event is' if due == 1 else 'events are'} due at once.", f"targets/{kind}/{name}")


_MESSAGES = 50  # rejected messages
_MAX_BODY_CHARACTERS = 100_000  # of a rejected message on its page
_RANK = {"failing": 0, "waiting": 1, "paused": 2, "running": 3, "disabled": 4}


@page("/sources")
def sources() -> Response:
    """List the sources, those with problems first."""
    listed = session.get("/v1/sources")["sources"]
    listed.sort(key=lambda source: (_RANK.get(source["state"], 9), source["type"], source["name"]))
    return show("sources.html", here="sources", sources=listed)


@page("/sources/<kind>/<name>")
def source(kind: str, name: str) -> Response:
    """Show a source and its rejected messages."""
    shown, after = session.get(_source_path(kind, name)), request.args.get("after", "")
    rejected: dict[str, Any] = {"rejected": [], "next": None}
    if shown["rejected_messages"]:
        rejected = session.get(f"{_source_path(kind, name)}/rejected", limit=_MESSAGES, after=after)
    return show(
        "source.html",
        here="sources",
        source=shown,
        name=f"{kind}:{name}",
        path=f"sources/{kind}/{name}",
        rejected=rejected,
        after=after,
        settings=as_set(shown["settings"], {}),
        defaults=by_default(ordered_source_fields(SOURCE_TYPES[kind]), shown["settings"], {}),
    )


@page("/sources/<kind>/<name>/rejected/<int:message>")
def rejected_message(kind: str, name: str, message: int) -> Response:
    """Show a rejected message as it was pulled."""
    found = session.get(f"{_source_path(kind, name)}/rejected/{message}")
    text = found["body"]
    return show(
        "source_message.html",
        here="sources",
        name=f"{kind}:{name}",
        path=f"sources/{kind}/{name}",
        message=found,
        headers=pretty_json(found["headers"]) if found["headers"] else "",
        body=(found["base64"] if text is None else text)[:_MAX_BODY_CHARACTERS],
        cut=len(found["base64"] if text is None else text) > _MAX_BODY_CHARACTERS,
    )


@action("/sources/<kind>/<name>/retry", "sources/{kind}/{name}")
def retry_messages(kind: str, name: str) -> Response:
    """Record the events of the ticked messages; the first one that still has none ends it."""
    back, ids = f"sources/{kind}/{name}", _ticked_messages()
    recorded = repeated = 0
    for message in ids:
        try:
            answer = session.change("POST", f"{_source_path(kind, name)}/rejected/{message}/retry")
        except Refused as refused:
            before = count_noun(recorded, "event")
            return done(f"Message {message}: {refused}. Recorded before it: {before}.", back, bad=True)
        recorded, repeated = recorded + answer["recorded"], repeated + answer["repeated"]
    known = f"; {count_noun(repeated, 'event')} were in the log already" if repeated else ""
    return done(f"Recorded: {count_noun(recorded, 'event')}{known}.", back)


@action("/sources/<kind>/<name>/delete", "sources/{kind}/{name}")
def delete_messages(kind: str, name: str) -> Response:
    """Delete the ticked messages permanently."""
    back, ids = f"sources/{kind}/{name}", _ticked_messages()
    deleted = session.change("POST", f"{_source_path(kind, name)}/rejected/delete", {"ids": ids})["deleted"]
    return done(f"{number(deleted)} {'message is' if deleted == 1 else 'messages are'} deleted.", back)


def _ticked_messages() -> list[int]:
    """Return the ticked messages. Raises `Refused` if there are none."""
    if ids := ticked_numbers():
        return ids
    raise Refused(400, {"detail": NOTHING_SELECTED})


def _source_path(kind: str, name: str) -> str:
    return resource_path("sources", kind, name)


@page("/<any(targets, sources):room>/<kind>/<name>/pause", "POST")
def pause(room: str, kind: str, name: str) -> Response:
    """Pause a target or source."""
    reason = form_values("reason")["reason"] or "paused in the console"
    session.change("POST", f"{resource_path(room, kind, name)}/pause", {"reason": reason})
    return done(f"{kind}:{name} is paused; {ROOMS[room].waits}.", f"{room}/{kind}/{name}")


@page("/<any(targets, sources):room>/<kind>/<name>/resume", "POST")
def resume(room: str, kind: str, name: str) -> Response:
    """Resume a target or source, or try a source that fails at once."""
    session.change("POST", f"{resource_path(room, kind, name)}/resume")
    return done(f"{kind}:{name} {ROOMS[room].resumed}.", f"{room}/{kind}/{name}")


@page("/targets/<kind>/<name>/acknowledge", "POST")
def acknowledge(kind: str, name: str) -> Response:
    """End the warning of the events that were discarded for a target, as many as the page has shown."""
    shown = form_values("discarded")["discarded"]
    discarded = int(shown) if shown.isdecimal() else 0
    session.change("POST", f"{resource_path('targets', kind, name)}/acknowledge", {"discarded": discarded})
    return done(f"{discarded} discarded events of {kind}:{name} are acknowledged.", f"targets/{kind}/{name}")


@page("/<any(targets, sources):room>/<kind>/<name>/remove", "GET", "POST")
def remove(room: str, kind: str, name: str) -> Response:
    """Remove a target or source, after its name was typed."""
    path, full, of = resource_path(room, kind, name), f"{kind}:{name}", ROOMS[room]
    shown, typed, problem = session.get(path), form_values("typed")["typed"], ""
    if request.method == "POST":
        try:
            if typed == full:
                lost = ", ".join(session.change("DELETE", path, force="true").get("lost", ()))
                return done(f"{full} is removed" + (f"; lost: {lost}." if lost else f"{of.stays}."), room)
            problem = f"type {full} to remove it"
        except Refused as refused:
            problem = str(refused)
    return show(
        "settings_remove.html",
        here=room,
        room=room,
        kind=of.noun,
        shown=shown,
        name=full,
        path=f"{room}/{kind}/{name}",
        rules=rules_of(shown["arn"]) if room == "targets" else [],
        problem=problem,
        typed=typed,
    )
