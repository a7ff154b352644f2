"""The doctor: every check of `bucketwire doctor` that the API offers."""

from flask import Response

from app.console import calls
from app.console.formats import command
from app.console.pages import page, show

_RANK = {"problem": 0, "warning": 1, "note": 2}


@page("/doctor")
def doctor() -> Response:
    """Show the findings, the worst first."""
    answer = calls.get("/v1/doctor")
    findings = sorted(answer["findings"], key=lambda finding: _RANK.get(finding["grade"], 3))
    return show("doctor.html", here="doctor", findings=findings, cli=command("doctor"))
