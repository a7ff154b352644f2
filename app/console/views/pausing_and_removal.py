"""Pause, resume and remove a target or a source, and acknowledge what a target has lost."""

from flask import Response, request

from app.api import Refused
from app.console import calls
from app.console.calls import resource_path
from app.console.pages import done, form_values, page, show
from app.console.views.settings_forms import ROOMS
from app.console.views.targets import rules_of


@page("/<any(targets, sources):room>/<kind>/<name>/pause", "POST")
def pause(room: str, kind: str, name: str) -> Response:
    """Pause a target or source."""
    reason = form_values("reason")["reason"] or "paused in the console"
    calls.change("POST", f"{resource_path(room, kind, name)}/pause", {"reason": reason})
    return done(f"{kind}:{name} is paused; {ROOMS[room].waits}.", f"{room}/{kind}/{name}")


@page("/<any(targets, sources):room>/<kind>/<name>/resume", "POST")
def resume(room: str, kind: str, name: str) -> Response:
    """Resume a target or source, or try a source that fails at once."""
    calls.change("POST", f"{resource_path(room, kind, name)}/resume")
    return done(f"{kind}:{name} {ROOMS[room].resumed}.", f"{room}/{kind}/{name}")


@page("/targets/<kind>/<name>/acknowledge", "POST")
def acknowledge(kind: str, name: str) -> Response:
    """End the warning of the events that were discarded for a target, as many as the page has shown."""
    shown = form_values("discarded")["discarded"]
    discarded = int(shown) if shown.isdecimal() else 0
    calls.change("POST", f"{resource_path('targets', kind, name)}/acknowledge", {"discarded": discarded})
    return done(f"{discarded} discarded events of {kind}:{name} are acknowledged.", f"targets/{kind}/{name}")


@page("/<any(targets, sources):room>/<kind>/<name>/remove", "GET", "POST")
def remove(room: str, kind: str, name: str) -> Response:
    """Remove a target or source, after its name was typed."""
    path, full, of = resource_path(room, kind, name), f"{kind}:{name}", ROOMS[room]
    shown, typed, problem = calls.get(path), form_values("typed")["typed"], ""
    if request.method == "POST":
        try:
            if typed == full:
                lost = ", ".join(calls.change("DELETE", path, force="true").get("lost", ()))
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
