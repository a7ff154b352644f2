"""Retries: events that have failed and are tried again; try them now, or give them up."""

from typing import Any

from flask import Response, request

from app.api.refused import Refused
from app.console import calls
from app.console.formats import number, short_target
from app.console.pages import done, form_values, page, show, within_limits
from app.resources.declaration import filter_parts
from app.resources.retry import RetryFilter

_FILTERS = [part.name for part in filter_parts(RetryFilter)]
_PAGE = 100
_SEPARATOR = " "  # between an event's id and its target in the value of a box


@page("/retries")
def retries() -> Response:
    """List the events that are retried, the next one of each target first."""
    given, after = within_limits(form_values(*_FILTERS), "target"), request.args.get("after", "")
    wrong: Refused | None = None
    found: dict[str, Any] = {"retries": [], "next": None}
    try:
        found = calls.get("/v1/retries", **given, after=after, limit=_PAGE)
    except Refused as refused:
        if refused.status not in (400, 404):
            raise
        wrong = refused
    return show(
        "retries.html",
        400 if wrong else 200,
        here="retries",
        given=given,
        filtered=any(given.values()),
        found=found,
        after=after,
        wrong=wrong,
        targets=[short_target(target["arn"]) for target in calls.targets()],
        options=[word for name, text in given.items() if text for word in (f"--{name}", text)],
    )


@page("/retries/now", "POST")
def now() -> Response:
    """Try events at once."""
    return _do("/v1/retries/now", "due", "is due at once", "are due at once")


@page("/retries/give-up", "POST")
def give_up() -> Response:
    """Make dead letters of events."""
    return _do("/v1/retries/give-up", "given_up", "is given up: a dead letter now", "are given up: dead letters now")


def _do(path: str, member: str, one: str, several: str) -> Response:
    given = form_values(*_FILTERS)
    filters = _chosen(given)
    if not filters:
        return done("Nothing was selected.", "retries", given, bad=True)
    try:
        count = sum(calls.change("POST", path, each)[member] for each in filters)
    except Refused as refused:
        return done(str(refused), "retries", given, bad=True)
    return done(f"{number(count)} {f'event {one}' if count == 1 else f'events {several}'}.", "retries", given)


def _chosen(given: dict[str, str]) -> list[dict[str, Any]]:
    """Return the filters that a form means: the ticked ones by target, or all that match; none for nothing."""
    if request.form.get("scope") == "matching":
        return [{name: text for name, text in given.items() if text} or {"all": True}]
    by_target: dict[str, list[str]] = {}
    for text in request.form.getlist("ids"):
        event_id, _, target = text.partition(_SEPARATOR)
        by_target.setdefault(target, []).append(event_id)
    return [{"target": target, "ids": ids} for target, ids in by_target.items()]
