"""Sources: what events are pulled from, whether it works, and the messages that have no valid events."""

from typing import Any

from flask import Response, request

from app.api import Refused
from app.config.declared_types import SOURCE_TYPES
from app.config.sources.base import ordered_source_fields
from app.console import calls
from app.console.calls import resource_path
from app.console.formats import number, pretty_json
from app.console.pages import NOTHING_SELECTED, action, done, page, show, ticked_numbers
from app.console.settings_in_force import as_set, by_default
from app.quantities import count_noun

_PAGE = 50  # rejected messages
_MAX_BODY_CHARACTERS = 100_000  # of a rejected message on its page
_RANK = {"failing": 0, "waiting": 1, "paused": 2, "running": 3, "disabled": 4}


@page("/sources")
def sources() -> Response:
    """List the sources, those with problems first."""
    listed = calls.get("/v1/sources")["sources"]
    listed.sort(key=lambda source: (_RANK.get(source["state"], 9), source["type"], source["name"]))
    return show("sources.html", here="sources", sources=listed)


@page("/sources/<kind>/<name>")
def source(kind: str, name: str) -> Response:
    """Show a source and its rejected messages."""
    shown, after = calls.get(_path(kind, name)), request.args.get("after", "")
    rejected: dict[str, Any] = {"rejected": [], "next": None}
    if shown["rejected_messages"]:
        rejected = calls.get(f"{_path(kind, name)}/rejected", limit=_PAGE, after=after)
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
    found = calls.get(f"{_path(kind, name)}/rejected/{message}")
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
def retry(kind: str, name: str) -> Response:
    """Record the events of the ticked messages; the first one that still has none ends it."""
    back, ids = f"sources/{kind}/{name}", _ticked()
    recorded = repeated = 0
    for message in ids:
        try:
            answer = calls.change("POST", f"{_path(kind, name)}/rejected/{message}/retry")
        except Refused as refused:
            before = count_noun(recorded, "event")
            return done(f"Message {message}: {refused}. Recorded before it: {before}.", back, bad=True)
        recorded, repeated = recorded + answer["recorded"], repeated + answer["repeated"]
    known = f"; {count_noun(repeated, 'event')} were in the log already" if repeated else ""
    return done(f"Recorded: {count_noun(recorded, 'event')}{known}.", back)


@action("/sources/<kind>/<name>/delete", "sources/{kind}/{name}")
def delete(kind: str, name: str) -> Response:
    """Delete the ticked messages permanently."""
    back, ids = f"sources/{kind}/{name}", _ticked()
    deleted = calls.change("POST", f"{_path(kind, name)}/rejected/delete", {"ids": ids})["deleted"]
    return done(f"{number(deleted)} {'message is' if deleted == 1 else 'messages are'} deleted.", back)


def _ticked() -> list[int]:
    """Return the ticked messages. Raises `Refused` if there are none."""
    if ids := ticked_numbers():
        return ids
    raise Refused(400, {"detail": NOTHING_SELECTED})


def _path(kind: str, name: str) -> str:
    return resource_path("sources", kind, name)
