"""Show retries, dead letters and replays, and change them: try now, give up, replay, purge, begin and cancel."""

from collections import Counter
from typing import Any

from flask import Response, request

from app.api import Refused
from app.console import session
from app.console.formats import command, number, options, short_target
from app.console.pages import (
    NOTHING_SELECTED,
    FormRefusal,
    action,
    done,
    filtered,
    form_values,
    page,
    show,
    ticked_numbers,
    within_limits,
)
from app.events.names import AGGREGATES, KNOWN
from app.resources.declaration import filter_parts
from app.resources.undelivered import DeadLetterFilter, RetryFilter

_RETRY_FILTERS = [part.name for part in filter_parts(RetryFilter)]
_SEPARATOR = " "  # between an event's id and its target in the value of a box


@page("/retries")
def retries() -> Response:
    """List the events that are retried, the next one of each target first."""
    listed = filtered("/v1/retries", "retries", _RETRY_FILTERS, "target")
    return show(
        "retries.html",
        here="retries",
        targets=[short_target(target["arn"]) for target in session.targets()],
        options=options(listed["given"]),
        **listed,
    )


@action("/retries/now", "retries", _RETRY_FILTERS)
def retry_now() -> Response:
    """Try events at once."""
    return _change_retries("/v1/retries/now", "due", "is due at once", "are due at once")


@action("/retries/give-up", "retries", _RETRY_FILTERS)
def give_up() -> Response:
    """Make dead letters of events."""
    return _change_retries(
        "/v1/retries/give-up", "given_up", "is given up: a dead letter now", "are given up: dead letters now"
    )


def _change_retries(path: str, member: str, one: str, several: str) -> Response:
    given = form_values(*_RETRY_FILTERS)
    count = sum(session.change("POST", path, chosen)[member] for chosen in _chosen_retries(given))
    return done(f"{number(count)} {f'event {one}' if count == 1 else f'events {several}'}.", "retries", given)


def _chosen_retries(given: dict[str, str]) -> list[dict[str, Any]]:
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


_DEAD_LETTER_FILTERS = [part.name for part in filter_parts(DeadLetterFilter)]
_COUNTED = 1000  # dead letters that are counted before a replay


@page("/dead-letters")
def dead_letters() -> Response:
    """List dead letters, beside the reasons that they have."""
    listed = filtered("/v1/dead-letters", "dead_letters", _DEAD_LETTER_FILTERS, "target")
    given, reasons = listed["given"], {"reasons": [], "complete": True, "looked_at": 0}
    if not listed["wrong"]:
        reasons = session.get(
            "/v1/dead-letters/reasons", **{name: given[name] for name in ("target", "since", "before")}
        )
    return show(
        "dead_letters.html",
        here="dead-letters",
        reasons=reasons,
        targets=[short_target(target["arn"]) for target in session.targets()],
        options=options(given),
        **listed,
    )


@action("/dead-letters/preview", "dead-letters", _DEAD_LETTER_FILTERS)
def preview_dead_letters() -> Response:
    """Show what a replay of the selected dead letters, or of all that match the filter, would send."""
    given = form_values(*_DEAD_LETTER_FILTERS)
    chosen = _chosen_dead_letters(given)
    ids: list[int] = chosen.get("ids", [])
    query = {name: value for name, value in chosen.items() if name not in ("ids", "all")}
    found = session.get("/v1/dead-letters", **query, ids=",".join(map(str, ids)), limit=_COUNTED)
    letters = found["dead_letters"]
    return show(
        "dead_letters_preview.html",
        here="dead-letters",
        given=given,
        found=found,
        letters=letters,
        groups=Counter((letter["target"], letter["reason"]) for letter in letters).most_common(),
        ids=ids,
        everything=not ids,
        cli=_dead_letter_command("replay", chosen, given),
    )


@action("/dead-letters/replay", "dead-letters", _DEAD_LETTER_FILTERS)
def replay_dead_letters() -> Response:
    """Replay the selected dead letters, or all that match the filter."""
    given = form_values(*_DEAD_LETTER_FILTERS)
    chosen = _chosen_dead_letters(given)
    replayed = session.change("POST", "/v1/dead-letters/replay", chosen)["replayed"]
    return done(f"{_letters(replayed)} delivered again; what fails returns to this list.", "dead-letters", given)


@action("/dead-letters/purge", "dead-letters", _DEAD_LETTER_FILTERS)
def purge_dead_letters() -> Response:
    """Ask for a confirmation that cannot be given by mistake, then delete dead letters."""
    given, typed = form_values(*_DEAD_LETTER_FILTERS), form_values("typed", "confirmed")
    chosen = _chosen_dead_letters(given)
    problem = ""
    if typed["confirmed"]:
        if typed["typed"] == "purge":
            purged = session.change("POST", "/v1/dead-letters/purge", chosen)["purged"]
            return done(f"{_letters(purged)} deleted.", "dead-letters", given)
        problem = "type purge to delete them"
    return show(
        "dead_letters_purge.html",
        here="dead-letters",
        given=given,
        ids=chosen.get("ids", []),
        everything="ids" not in chosen,
        count=len(chosen["ids"]) if "ids" in chosen else None,
        problem=problem,
        typed=typed["typed"],
        cli=""
        if chosen.get("all")
        else _dead_letter_command("purge", chosen, given),  # nobody copies the loss of everything
    )


def _chosen_dead_letters(given: dict[str, str]) -> dict[str, Any]:
    """Return the filter that a form means: the ticked ones, else all that match. Raises `Refused` if it means none.

    Without a script, a chosen reason leaves the choice at all that match although some are ticked.
    """
    if ids := ticked_numbers():
        target = {"target": given["target"]} if given["target"] else {}  # all of the page are of this target
        return {"ids": ids, **target}
    if request.form.get("scope") != "matching":
        raise Refused(400, {"detail": NOTHING_SELECTED})
    return {name: text for name, text in given.items() if text} or {"all": True}


def _dead_letter_command(verb: str, chosen: dict[str, Any], given: dict[str, str]) -> str:
    if "ids" in chosen:  # what is ticked, whatever the filter is
        given = {"target": given["target"]}
    everything = ["--all"] if chosen.get("all") else []
    return command("dead-letter", verb, *map(str, chosen.get("ids", ())), *options(given), *everything)


def _letters(count: int) -> str:
    return f"{number(count)} dead {'letter is' if count == 1 else 'letters are'}"


_SELECTION = ("target", "bucket", "prefix", "events", "since", "before")
_REPLAYS = 50
_PREVIEW = 100  # events of the selection that are counted before it begins


@page("/replays", "GET", "POST")
def replays() -> Response:
    """List the replays, preview what a selection would send, and begin one."""
    given, step = within_limits(form_values(*_SELECTION), "target"), form_values("all", "step")
    refusal, preview = FormRefusal(400, 403, 404), None
    if request.method == "POST" or step["step"] == "preview":
        with refusal:
            if request.method == "POST":
                made = session.change("POST", "/v1/replays", _selection(given) | ({"all": True} if step["all"] else {}))
                return done(f"Replay {made['id']} to {short_target(made['target'])} has begun.", "replays")
            preview = session.get("/v1/events", **{**given, "limit": _PREVIEW})
    after = request.args.get("after", "")
    found = session.get("/v1/replays")["replays"]
    first = int(after[:12]) if after.isascii() and after.isdigit() else None
    listed = [each for each in found if first is None or each["id"] < first]
    return show(
        "replays.html",
        refusal.wrong.status if refusal.wrong else 200,
        here="replays",
        replays=listed[:_REPLAYS],
        next=listed[_REPLAYS - 1]["id"] if len(listed) > _REPLAYS else None,
        after=after,
        active=any(not each["finished"] for each in listed[:_REPLAYS]),
        given=given,
        selected=any(text for name, text in given.items() if name != "target"),
        preview=preview,
        most=_PREVIEW,
        wrong=refusal.wrong,
        targets=[short_target(target["arn"]) for target in session.targets()],
        names=sorted(AGGREGATES) + sorted(KNOWN),
        cli=_replay_command(given),
    )


@action("/replays/<int:number>/cancel", "replays")
def cancel_replay(number: int) -> Response:
    """Cancel a replay."""
    session.change("DELETE", f"/v1/replays/{number}")
    return done(f"Replay {number} is cancelled; what it has delivered stays delivered.", "replays")


def _selection(given: dict[str, str]) -> dict[str, Any]:
    chosen: dict[str, Any] = {name: text for name, text in given.items() if text and name != "events"}
    names = given["events"].replace(",", " ").split()
    return chosen | ({"events": names} if names else {})


def _replay_command(given: dict[str, str]) -> str:
    words = options({"event" if name == "events" else name: text for name, text in given.items()})
    everything = [] if any(text for name, text in given.items() if name != "target") else ["--all"]
    return command("replay", *(words if given["target"] else ["--target", "TARGET", *words]), *everything)
