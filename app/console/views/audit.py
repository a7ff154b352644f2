"""The audit log: who changed what, when and from where."""

from typing import Any

from flask import Response, request

from app.api.refused import Refused
from app.console import calls
from app.console.formats import command
from app.console.pages import form_values, page, show

_FILTERS = ("actor", "action", "resource", "since", "before")
_PAGE = 100


@page("/audit")
def audit() -> Response:
    """List the changes, newest first."""
    given, after = form_values(*_FILTERS), request.args.get("after", "")
    wrong: Refused | None = None
    found: dict[str, Any] = {"entries": [], "next": None}
    try:
        found = calls.get("/v1/audit", **given, after=after, limit=_PAGE)
    except Refused as refused:
        if refused.status not in (400, 404):
            raise
        wrong = refused
    return show(
        "audit.html",
        400 if wrong else 200,
        here="audit",
        given=given,
        filtered=any(given.values()),
        found=found,
        after=after,
        wrong=wrong,
        cli=command("audit", *(word for name, text in given.items() if text for word in (f"--{name}", text))),
    )
