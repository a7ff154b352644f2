"""Run the doctor's checks of the service."""

from dataclasses import asdict

from flask import Blueprint, Flask, current_app, request

from app.api.auth import READ, needs
from app.api.description import answers
from app.api.errors import to_problem
from app.api.services import Services
from app.config.errors import BadSettings
from app.doctor.checks import SHORT_CHECKS, run_checks
from app.doctor.findings import Finding
from app.outbox.engine.cached_probe import CachedProbe
from app.outbox.engine.database import now_ms
from app.resources.declaration import format_time, refuse_unknown
from app.resources.service import Diagnosis, DoctorFinding

routes = Blueprint("doctor", __name__)
_PROBE = "bucketwire_doctor"


def install(app: Flask, opened: Services) -> None:
    """Add the checks to the app: they run in one thread of the process, at most every ten seconds."""
    app.extensions[_PROBE] = CachedProbe(lambda: _examine(opened), age=10.0, patience=8.0)


@routes.get("/v1/doctor")
@needs(READ)
@answers(Diagnosis, "what was found")
def doctor() -> Diagnosis:
    """Check database, broker, drain, queues, schedule, targets and counters.

    The checks of `bucketwire doctor` that need nothing but the database and the broker. The result is up to ten seconds
    old. Targets with a very large backlog are not counted; the command counts them, and checks frontends.
    """
    refuse_unknown(request.args, ())
    result = current_app.extensions[_PROBE].get()
    diagnosis: Diagnosis | None = result.value
    if result.error is not None or diagnosis is None:  # the checks have not ended in time, or never
        slow = Finding("doctor", "problem", f"the checks do not end: {result.error}")
        diagnosis = _diagnosis([slow])
    return diagnosis


def _examine(opened: Services) -> Diagnosis:
    return _diagnosis(list(run_checks(opened, _describe, SHORT_CHECKS)))


def _diagnosis(findings: list[Finding]) -> Diagnosis:
    return Diagnosis(
        checked_at=format_time(now_ms()),
        problems=sum(finding.grade == "problem" for finding in findings),
        findings=[DoctorFinding(**asdict(finding)) for finding in findings],
    )


def _describe(error: Exception) -> str:
    """Describe why a check failed, as a problem would: what may contain an address is in the log only."""
    if isinstance(error, BadSettings):
        return str(error)
    found = to_problem(error)
    return f"{found.detail} ({found.members['id']})" if "id" in found.members else found.detail
