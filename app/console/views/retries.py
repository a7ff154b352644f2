"""Retries: events that have failed and are tried again; try them now, or give them up."""

from typing import Any

from flask import Response, request

from app.api import Refused
from app.console import calls
from app.console.formats import number, options, short_target
from app.console.pages import NOTHING_SELECTED, action, done, filtered, form_values, page, show
from app.resources.declaration import filter_parts
from app.resources.retry import RetryFilter

_FILTERS = [part.name for part in filter_parts(RetryFilter)]
_SEPARATOR = " "  # between an event's id and its target in the value of a box


@page("/retries")
def retries() -> Response:
    """List the events that are retried, the next one of each target first."""
    listed = filtered("/v1/retries", "retries", _FILTERS, "target")
    return show(
        "retries.html",
        here="retries",
        targets=[short_target(target["arn"]) for target in calls.targets()],
        options=options(listed["given"]),
        **listed,
    )


@action("/retries/now", "retries", _FILTERS)
def now() -> Response:
    """Try events at once."""
    return _do("/v1/retries/now", "due", "is due at once", "are due at once")


@action("/retries/give-up", "retries", _FILTERS)
def give_up() -> Response:
    """Make dead letters of events."""
    return _do("/v1/retries/give-up", "given_up", "is given up: a dead letter now", "are given up: dead letters now")


def _do(path: str, member: str, one: str, several: str) -> Response:
    given = form_values(*_FILTERS)
    count = sum(calls.change("POST", path, chosen)[member] for chosen in _chosen(given))
    return done(f"{number(count)} {f'event {one}' if count == 1 else f'events {several}'}.", "retries", given)


def _chosen(given: dict[str, str]) -> list[dict[str, Any]]:
    """Return the filters that a form means: the one of its row's button, the ticked ones by target, or all that match.

    Raises `Refused` if there are none.
    """
    only = request.form.getlist("only")
    if request.form.get("scope") == "matching" and not only:
        return [{name: text for name, text in given.items() if text} or {"all": True}]
    by_target: dict[str, list[str]] = {}
    for text in only or request.form.getlist("ids"):
        event_id, _, target = text.partition(_SEPARATOR)
        by_target.setdefault(target, []).append(event_id)
    if not by_target:
        raise Refused(400, {"detail": NOTHING_SELECTED})
    return [{"target": target, "ids": ids} for target, ids in by_target.items()]
