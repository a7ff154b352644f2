"""Run the doctor's checks of the service."""

import socket
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from flask import Blueprint, Flask, current_app, request

from app.api.description import answers
from app.api.errors import to_problem
from app.api.services import Services, services
from app.api.token_scopes import READ, is_limited, may_see, needs
from app.cached_probe import CachedProbe, NoAnswer
from app.config.arn import parse_target
from app.config.errors import BadSettings, BadValue
from app.doctor import Finding
from app.doctor.checks import SHORT_CHECKS, Check, check_carried, run_checks
from app.outbox.engine.database import now_ms
from app.outbox.log.spool import describe_waiting, waiting_files
from app.outbox.policies import SPOOL
from app.quantities import count_noun, format_age
from app.resources.declaration import format_time, refuse_unknown
from app.resources.service import Diagnosis, DoctorFinding

routes = Blueprint("doctor", __name__)
_PROBE = "bucketwire_doctor"
_SLOW = "the database, the broker or an API does not answer, or this host is too busy"


def install(app: Flask, opened: Services, instead: Mapping[str, Check] = MappingProxyType({})) -> None:
    """Add the checks to the app: they run in one thread of the process, at most once a second.

    Few requests wait for checks that take long, such as of a broker that does not answer; others get the last result.
    Counting what is pending takes longer, and the OpenID Connect provider is somebody else's: that is done at most once
    a minute. Checks of `instead` take the place of those of their names.
    """
    comparing = Finding("counters", "note", "they are being compared with the event log")
    asking = Finding("openid", "note", f"the provider {opened.settings.oidc_issuer} is being asked")

    def spool(_: object) -> Iterator[Finding]:
        if opened.feeder is None:
            return
        if damaged := opened.feeder.spool.damaged():
            text = f"{count_noun(damaged, 'file')} in quarantine: their events could not be recorded"
            yield Finding("spool", "problem", text)
        waiting, now = waiting_files(opened.feeder.spool.folder), now_ms()
        if waiting.age(now) > SPOOL.waiting_ms:
            grade = "problem" if waiting.age(now) > SPOOL.old_ms else "warning"
            text = f"this API on {socket.gethostname()}: {describe_waiting(waiting, now)}"
            yield Finding("spool", grade, f"{text}; they are recorded once the database takes them")

    checks = {
        **SHORT_CHECKS,
        "counters": _once_a_minute(opened, "counters", comparing, patience=4.0),
        "openid": _once_a_minute(opened, "openid", asking, patience=2.0) if opened.settings.oidc_issuer else _nothing,
        "spool": spool,
        **instead,
    }
    app.extensions[_PROBE] = CachedProbe(
        lambda: (now_ms(), run_checks(opened, _describe, checks)), age=1.0, patience=10.0, max_waiting=4
    )


def _once_a_minute(opened: Services, name: str, meanwhile: Finding, *, patience: float) -> Check:
    """Return a check that is run at most once a minute; while it goes on it has its last result, or `meanwhile`."""
    probe = CachedProbe(lambda: list(SHORT_CHECKS[name](opened)), age=60.0, patience=patience)

    def check(_: object) -> Iterator[Finding]:
        result = probe.get()
        if isinstance(result.error, NoAnswer):
            yield from result.value or [meanwhile]
        elif result.error is not None:
            raise result.error
        else:
            yield from result.value or ()

    return check


@routes.get("/v1/doctor")
@needs(READ, limited=True)
@answers(Diagnosis, "what was found")
def doctor() -> Diagnosis:
    """Check database, broker, drain, queues, schedule, targets, sources, counters and tokens.

    The checks of `bucketwire doctor` that need nothing but the database and the broker. The result is up to a second
    old, the counters' and the OpenID Connect provider's up to a minute. Targets with a very large backlog are not
    counted; the command counts them, and checks frontends. A token that is limited to targets gets what concerns them.
    """
    refuse_unknown(request.args, ())
    if _PROBE not in current_app.extensions:  # a command's app
        install(current_app, services(), {"broker": check_carried, "eviction": _nothing, "openid": _nothing})
    result = current_app.extensions[_PROBE].get()
    checked_at, findings = result.value or (now_ms(), [])
    if result.error is not None or result.value is None:  # not in time, or never; what was found before is still told
        why = str(result.error)
        if isinstance(result.error, NoAnswer) and result.value is not None:
            why = f"{_SLOW}; what else is said is of {format_age(checked_at, now_ms())} ago"
        findings = [Finding("doctor", "problem", f"the checks do not end: {why}"), *findings]
    return _diagnosis(checked_at, [finding for finding in findings if _may_see(finding)])


def _nothing(_: object) -> Iterator[Finding]:
    return iter(())


def _may_see(finding: Finding) -> bool:
    if not is_limited():
        return True
    try:
        return may_see(parse_target(finding.subject))
    except BadValue:  # a part of the service
        return False


def _diagnosis(checked_at: int, findings: Sequence[Finding]) -> Diagnosis:
    return Diagnosis(
        checked_at=format_time(checked_at),
        problems=sum(finding.grade == "problem" for finding in findings),
        warnings=sum(finding.grade == "warning" for finding in findings),
        findings=[DoctorFinding.of(finding) for finding in findings],
    )


def _describe(error: Exception) -> str:
    """Describe why a check failed, as a problem would: what may contain an address is in the log only."""
    if isinstance(error, BadSettings):
        return str(error)
    found = to_problem(error)
    return f"{found.detail} ({found.members['id']})" if "id" in found.members else found.detail
