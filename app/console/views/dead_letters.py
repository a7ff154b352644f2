"""Dead letters: by reason, selected, previewed, replayed, purged."""

from collections import Counter
from typing import Any

from flask import Response, request

from app.api import Refused
from app.console import calls
from app.console.formats import command, number, options, short_target
from app.console.pages import NOTHING_SELECTED, action, done, filtered, form_values, page, show, ticked_numbers
from app.resources.dead_letter import DeadLetterFilter
from app.resources.declaration import filter_parts

_FILTERS = [part.name for part in filter_parts(DeadLetterFilter)]
_PREVIEW = 1000  # dead letters that are counted before a replay


@page("/dead-letters")
def dead_letters() -> Response:
    """List dead letters, beside the reasons that they have."""
    listed = filtered("/v1/dead-letters", "dead_letters", _FILTERS, "target")
    given, reasons = listed["given"], {"reasons": [], "complete": True, "looked_at": 0}
    if not listed["wrong"]:
        reasons = calls.get("/v1/dead-letters/reasons", **{name: given[name] for name in ("target", "since", "before")})
    return show(
        "dead_letters.html",
        here="dead-letters",
        reasons=reasons,
        targets=[short_target(target["arn"]) for target in calls.targets()],
        options=options(given),
        **listed,
    )


@action("/dead-letters/preview", "dead-letters", _FILTERS)
def preview() -> Response:
    """Show what a replay of the selected dead letters, or of all that match the filter, would send."""
    given = form_values(*_FILTERS)
    chosen = _chosen(given)
    ids: list[int] = chosen.get("ids", [])
    query = {name: value for name, value in chosen.items() if name not in ("ids", "all")}
    found = calls.get("/v1/dead-letters", **query, ids=",".join(map(str, ids)), limit=_PREVIEW)
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
        cli=_command("replay", chosen, given),
    )


@action("/dead-letters/replay", "dead-letters", _FILTERS)
def replay() -> Response:
    """Replay the selected dead letters, or all that match the filter."""
    given = form_values(*_FILTERS)
    chosen = _chosen(given)
    replayed = calls.change("POST", "/v1/dead-letters/replay", chosen)["replayed"]
    return done(f"{_letters(replayed)} delivered again; what fails returns to this list.", "dead-letters", given)


@action("/dead-letters/purge", "dead-letters", _FILTERS)
def purge() -> Response:
    """Ask for a confirmation that cannot be given by mistake, then delete dead letters."""
    given, typed = form_values(*_FILTERS), form_values("typed", "confirmed")
    chosen = _chosen(given)
    problem = ""
    if typed["confirmed"]:
        if typed["typed"] == "purge":
            purged = calls.change("POST", "/v1/dead-letters/purge", chosen)["purged"]
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
        cli="" if chosen.get("all") else _command("purge", chosen, given),  # nobody copies the loss of everything
    )


def _chosen(given: dict[str, str]) -> dict[str, Any]:
    """Return the filter that a form means: the ticked ones, else all that match. Raises `Refused` if it means none.

    Without a script, a chosen reason leaves the choice at all that match although some are ticked.
    """
    if ids := ticked_numbers():
        target = {"target": given["target"]} if given["target"] else {}  # all of the page are of this target
        return {"ids": ids, **target}
    if request.form.get("scope") != "matching":
        raise Refused(400, {"detail": NOTHING_SELECTED})
    return {name: text for name, text in given.items() if text} or {"all": True}


def _command(verb: str, chosen: dict[str, Any], given: dict[str, str]) -> str:
    if "ids" in chosen:  # what is ticked, whatever the filter is
        given = {"target": given["target"]}
    everything = ["--all"] if chosen.get("all") else []
    return command("dead-letter", verb, *map(str, chosen.get("ids", ())), *options(given), *everything)


def _letters(count: int) -> str:
    return f"{number(count)} dead {'letter is' if count == 1 else 'letters are'}"
