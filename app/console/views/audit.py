"""The audit log: who changed what, when and from where."""

from flask import Response

from app.console.formats import command, options
from app.console.pages import filtered, page, show

_FILTERS = ("actor", "action", "resource", "since", "before")


@page("/audit")
def audit() -> Response:
    """List the changes, newest first."""
    listed = filtered("/v1/audit", "entries", _FILTERS)
    cli = command("audit", *options(listed["given"]))
    return show("audit.html", here="audit", cli=cli, **listed)
