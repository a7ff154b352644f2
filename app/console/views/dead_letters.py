"""Dead letters: by reason, selected, previewed, replayed, purged."""

from collections import Counter
from typing import Any

from flask import Response, request

from app.api.refused import Refused
from app.console import calls
from app.console.formats import command, number, short_target
from app.console.pages import done, form_values, page, show, within_limits
from app.resources.dead_letter import DeadLetterFilter
from app.resources.declaration import filter_parts

_FILTERS = [part.name for part in filter_parts(DeadLetterFilter)]
_PAGE = 100
_PREVIEW = 1000  # dead letters that are counted before a replay


@page("/dead-letters")
def dead_letters() -> Response:
    """List dead letters, beside the reasons that they have."""
    given, after = within_limits(form_values(*_FILTERS), "target"), request.args.get("after", "")
    wrong: Refused | None = None
    found: dict[str, Any] = {"dead_letters": [], "next": None}
    try:
        found = calls.get("/v1/dead-letters", **given, after=after, limit=_PAGE)
        reasons = calls.get("/v1/dead-letters/reasons", **{name: given[name] for name in ("target", "since", "before")})
    except Refused as refused:
        if refused.status not in (400, 404):
            raise
        wrong, reasons = refused, {"reasons": [], "complete": True, "looked_at": 0}
    return show(
        "dead_letters.html",
        400 if wrong else 200,
        here="dead-letters",
        given=given,
        filtered=any(given.values()),
        found=found,
        reasons=reasons,
        after=after,
        wrong=wrong,
        targets=[short_target(target["arn"]) for target in calls.targets()],
        options=_options(given),
    )


@page("/dead-letters/preview", "POST")
def preview() -> Response:
    """Show what a replay of the selected dead letters, or of all that match the filter, would send."""
    given = form_values(*_FILTERS)
    chosen = _chosen(given)
    if chosen is None:
        return done("Nothing was selected.", "dead-letters", given, bad=True)
    ids: list[int] = chosen.get("ids", [])
    query = {name: value for name, value in chosen.items() if name not in ("ids", "all")}
    try:
        found = calls.get("/v1/dead-letters", **query, ids=",".join(map(str, ids)), limit=_PREVIEW)
    except Refused as refused:
        return done(str(refused), "dead-letters", given, bad=True)
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


@page("/dead-letters/replay", "POST")
def replay() -> Response:
    """Replay the selected dead letters, or all that match the filter."""
    given = form_values(*_FILTERS)
    chosen = _chosen(given)
    if chosen is None:
        return done("Nothing was selected.", "dead-letters", given, bad=True)
    try:
        replayed = calls.change("POST", "/v1/dead-letters/replay", chosen)["replayed"]
    except Refused as refused:
        return done(str(refused), "dead-letters", given, bad=True)
    return done(f"{_letters(replayed)} delivered again; what fails returns to this list.", "dead-letters", given)


@page("/dead-letters/purge", "POST")
def purge() -> Response:
    """Ask for a confirmation that cannot be given by mistake, then delete dead letters."""
    given, typed = form_values(*_FILTERS), form_values("typed", "confirmed")
    chosen = _chosen(given)
    if chosen is None:
        return done("Nothing was selected.", "dead-letters", given, bad=True)
    problem = ""
    if typed["confirmed"]:
        if typed["typed"] == "purge":
            try:
                purged = calls.change("POST", "/v1/dead-letters/purge", chosen)["purged"]
            except Refused as refused:
                return done(str(refused), "dead-letters", given, bad=True)
            return done(f"{_letters(purged)} deleted.", "dead-letters", given)
        problem = "type purge to delete them"
    return show(
        "dead_letters_purge.html",
        400 if problem else 200,
        here="dead-letters",
        given=given,
        ids=chosen.get("ids", []),
        everything="ids" not in chosen,
        count=len(chosen["ids"]) if "ids" in chosen else None,
        problem=problem,
        typed=typed["typed"],
        cli=_command("purge", chosen, given),
    )


def _chosen(given: dict[str, str]) -> dict[str, Any] | None:
    """Return the filter that a form means: the ticked ones, else all that match; None for nothing.

    Without a script, a chosen reason leaves the choice at all that match although some are ticked.
    """
    ids = [int(text) for text in request.form.getlist("ids") if text.isascii() and text.isdigit() and len(text) < 19]
    if ids:
        target = {"target": given["target"]} if given["target"] else {}  # all of the page are of this target
        return {"ids": ids, **target}
    if request.form.get("scope") == "matching":
        return {name: text for name, text in given.items() if text} or {"all": True}
    return None


def _options(given: dict[str, str]) -> list[str]:
    """Return the filter as options of the commands."""
    return [word for name, text in given.items() if text for word in (f"--{name}", text)]


def _command(verb: str, chosen: dict[str, Any], given: dict[str, str]) -> str:
    if "ids" in chosen:  # what is ticked, whatever the filter is
        given = {"target": given["target"]}
    everything = ["--all"] if chosen.get("all") else []
    return command("dead-letter", verb, *map(str, chosen.get("ids", ())), *_options(given), *everything)


def _letters(count: int) -> str:
    return f"{number(count)} dead {'letter is' if count == 1 else 'letters are'}"
