"""The doctor: every check of `bucketwire doctor` that the API offers."""

from flask import Response

from app.console import calls
from app.console.calls import Refused
from app.console.formats import command
from app.console.pages import page, show

_ROUTE = "/v1/doctor"
_RANK = {"problem": 0, "note": 1}


@page("/doctor")
def doctor() -> Response:
    """Show the findings, the worst first."""
    if not calls.has(_ROUTE):
        raise Refused(
            404, {"title": "Not found", "detail": "this version has no doctor in its API; run bucketwire doctor"}
        )
    answer = calls.get(_ROUTE)
    findings = sorted(answer["findings"], key=lambda finding: _RANK.get(finding["grade"], 2))
    return show("doctor.html", here="doctor", findings=findings, cli=command("doctor"))
