"""Replays: begin one, see its progress, cancel it."""

from typing import Any

from flask import Response, request

from app.console import calls
from app.console.formats import command, options, short_target
from app.console.pages import FormRefusal, action, done, form_values, page, show, within_limits
from app.events.names import AGGREGATES, KNOWN

_SELECTION = ("target", "bucket", "prefix", "events", "since", "before")
_PAGE = 50
_PREVIEW = 100  # events of the selection that are counted before it begins


@page("/replays", "GET", "POST")
def replays() -> Response:
    """List the replays, preview what a selection would send, and begin one."""
    given, step = within_limits(form_values(*_SELECTION), "target"), form_values("all", "step")
    refusal, preview = FormRefusal(400, 403, 404), None
    if request.method == "POST" or step["step"] == "preview":
        with refusal:
            if request.method == "POST":
                made = calls.change("POST", "/v1/replays", _selection(given) | ({"all": True} if step["all"] else {}))
                return done(f"Replay {made['id']} to {short_target(made['target'])} has begun.", "replays")
            preview = calls.get("/v1/events", **{**given, "limit": _PREVIEW})
    after = request.args.get("after", "")
    found = calls.get("/v1/replays")["replays"]
    first = int(after[:12]) if after.isascii() and after.isdigit() else None
    listed = [each for each in found if first is None or each["id"] < first]
    return show(
        "replays.html",
        refusal.wrong.status if refusal.wrong else 200,
        here="replays",
        replays=listed[:_PAGE],
        next=listed[_PAGE - 1]["id"] if len(listed) > _PAGE else None,
        after=after,
        active=any(not each["finished"] for each in listed[:_PAGE]),
        given=given,
        selected=any(text for name, text in given.items() if name != "target"),
        preview=preview,
        most=_PREVIEW,
        wrong=refusal.wrong,
        targets=[short_target(target["arn"]) for target in calls.targets()],
        names=sorted(AGGREGATES) + sorted(KNOWN),
        cli=_command(given),
    )


@action("/replays/<int:number>/cancel", "replays")
def cancel(number: int) -> Response:
    """Cancel a replay."""
    calls.change("DELETE", f"/v1/replays/{number}")
    return done(f"Replay {number} is cancelled; what it has delivered stays delivered.", "replays")


def _selection(given: dict[str, str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {name: text for name, text in given.items() if text and name != "events"}
    names = given["events"].replace(",", " ").split()
    return chosen | ({"events": names} if names else {})


def _command(given: dict[str, str]) -> str:
    words = options({"event" if name == "events" else name: text for name, text in given.items()})
    everything = [] if any(text for name, text in given.items() if name != "target") else ["--all"]
    return command("replay", *(words if given["target"] else ["--target", "TARGET", *words]), *everything)
