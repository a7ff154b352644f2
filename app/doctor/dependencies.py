"""Check what the service meets: certificates that end, old transactions, the OpenID provider, and refused requests.

The requests are those that the API has refused in the last minutes: posts of events, sign-ins, and others.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from app.config.settings import Settings
from app.doctor import Finding
from app.logs import clause
from app.outbox import refusals
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.policies import REFUSALS
from app.outbox.processes import Certificate, near_end, read_certificates, read_processes
from app.outbox.refusals import RecentRefusal
from app.outbox.symptoms import OldSnapshots, read_old_snapshots
from app.outbox.tokens import read_used_at
from app.quantities import count_noun, format_age, format_seconds
from app.resources.refusal import INTAKE, REASONS, SIGN_IN, UNTIL_RECORDED, UNTIL_USED, describe_refusal

if TYPE_CHECKING:
    from app.doctor.checks import Service


_MAX_AGE = 60_000  # ms; a longer transaction is none of the service, but for an audit of a very long backlog
_MAX_OLD_VERSIONS = 10_000  # in which the update of a row takes about twice as long


def check_certificates(service: "Service") -> Iterator[Finding]:
    """Find the certificates that have ended or will soon; the others are not mentioned."""
    with service.database.reading() as connection:
        now = database_now(connection)
        certificates = read_certificates(connection, read_processes(connection), now)
    for one in certificates:
        if now >= near_end(*one.valid):
            yield _of_certificate(one, now)


def _of_certificate(one: Certificate, now: int) -> Finding:
    kind, _, name = one.of.partition(" ")
    ends_at = one.valid.ends_at
    day = datetime.fromtimestamp(ends_at / 1000, UTC).strftime("%Y-%m-%d")
    ended = ends_at <= now
    left = format_seconds((ends_at - now) / 1000)
    when = f"ended {format_age(ends_at, now)} ago" if ended else f"ends in {left}"
    seen = f"seen {format_age(one.seen_at, now)} ago"
    if kind == "api":
        refused = "clients refuse it" if ended else "then clients refuse it"
        text = f"the certificate of {one.name} {name} {when} ({day}); {refused}: replace the file, no restart is needed"
        return Finding("certificates", "problem" if ended else "warning", text)
    if kind not in ("target", "source"):
        text = f"the certificate of the {one.of} at {one.name} {when} ({day}; {seen}): renew it there"
        return Finding("certificates", "problem" if ended else "warning", text)
    resume = ("target", "resume", name) if kind == "target" else ("source", "resume", name)
    text = f"its certificate {one.name} {when} ({day}; {seen}): renew it; resume looks at it again"
    return Finding(name if kind == "target" else one.of, "problem" if ended else "warning", text, resume)


def check_old_snapshots(database: Database) -> Iterator[Finding]:
    """Yield a warning if a transaction is open for long, or old versions of rows are kept for another reason."""
    with database.reading() as connection:
        state = read_old_snapshots(connection)
    if state is not None and (state.age > _MAX_AGE or state.old_versions > _MAX_OLD_VERSIONS):
        yield Finding("database", "warning", _describe(state))


def _describe(state: OldSnapshots) -> str:
    kept = f"{count_noun(state.old_versions, 'old version')} of a row that each append updates"
    slower = "which makes each append slower"
    if state.age > _MAX_AGE:
        since = format_seconds(state.age / 1000)
        return (
            f"a transaction is open for {since}: {clause(state.holder)}; PostgreSQL keeps {kept}, {slower}: end it, "
            "and back up by `pg_basebackup` or from a standby"
        )
    return (
        f"PostgreSQL keeps {kept}, {slower}: look for an old transaction in pg_stat_activity, a replication slot with "
        "an xmin, a standby with hot_standby_feedback, or an autovacuum that does not run"
    )


def check_openid(settings: Settings) -> Iterator[Finding]:
    """Ask the provider what a sign-in needs of it, and name the redirect address to register there.

    Tokens work without it, so what is wrong is no problem of the service.
    """
    if not settings.oidc_issuer:
        return
    from app.console.openid_provider import problems  # noqa: PLC0415 - slow: only where there is a provider
    from app.console.session import redirect_address  # noqa: PLC0415 - see below

    register = f"the redirect address to register at the provider is {redirect_address(settings)}"
    found = [Finding("openid", "warning", problem) for problem in problems(settings)]
    yield from found
    if found:
        yield Finding("openid", "note", register)
    else:
        yield Finding("openid", "ok", f"{settings.oidc_issuer} answers and has keys; {register}")


_MINUTES = REFUSALS.window_ms // 60_000
# ms after the last refusal in which another one may not be stored yet: two senders may use a name in turn.
_SETTLED = int(2 * REFUSALS.flush_seconds * 1000)
_MAX_KINDS = 5  # findings about one subject
_MISTYPED = 5  # sign-ins that are refused because somebody has pasted something else
_SIGN_INS = ("audit", "--action", "session.refuse")
_GRADES = ("problem", "warning", "note")
# The subject of findings by surface, and what is counted there; the last is of all other surfaces.
_SUBJECTS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {INTAKE: ("posts", "post"), SIGN_IN: ("sign-ins", "sign-in"), "": ("requests", "request")}
)
# Of requests that are no posts: what nobody has to look at, or another check says, and what no caller means.
_USUAL = frozenset(("bad-form", "database-unavailable", "openid-state", "token-missing"))
_WRONG = frozenset(
    (
        "internal", "openid-clock", "openid-failed", "openid-unavailable", "overloaded", "token-expired",
        "token-revoked", "wrong-signature", "wrong-time",
    )
)  # fmt: skip


def check_refused(database: Database) -> Iterator[Finding]:
    """Yield what was refused in the last minutes, and is not known to be over, by its reason; the gravest first."""
    with database.reading() as connection:
        now = database_now(connection)
        recent = refusals.read_recent(connection, now)
        names = {_token_name(one) for one in recent}
        recorded_at = refusals.read_recorded_at(connection) if recent else 0
        used_at = read_used_at(connection, names) if recent else {}
    by_subject: dict[str, list[Finding]] = {}
    for one in recent:
        is_over = now - one.last_at > _SETTLED and _accepted_at(one, recorded_at, used_at) > one.last_at
        if not is_over:
            finding = _of_refusal(one, now)
            by_subject.setdefault(finding.subject, []).append(finding)
    for subject, findings in by_subject.items():
        findings.sort(key=lambda finding: _GRADES.index(finding.grade))
        yield from findings[:_MAX_KINDS]
        if (more := len(findings) - _MAX_KINDS) > 0:
            yield Finding(subject, "note", f"refused for {more} more reasons, which are in the log of the API")


def _of_refusal(one: RecentRefusal, now: int) -> Finding:
    kind, reason = one.kind, REASONS.get(one.kind.reason)
    subject, noun = _SUBJECTS.get(kind.surface, _SUBJECTS[""])
    text = (
        f"{count_noun(one.number, noun)} refused in {_MINUTES} min, the last {format_age(one.last_at, now)} ago"
        f"{_describe_origin(one)}: {describe_refusal(kind.reason, kind.actor, one.fact)}"
    )
    if reason is None:
        return Finding(subject, _grade(one), text)
    command = _SIGN_INS if kind.surface == SIGN_IN else reason.command
    return Finding(subject, _grade(one), f"{text}; {reason.mend}", command)


def _describe_origin(one: RecentRefusal) -> str:
    """Return where a caller that is not known by a name has called from."""
    return "" if one.kind.actor or not one.address else f" from {one.address}"


def _grade(one: RecentRefusal) -> str:
    """Return how grave it is: a problem if a sender that is known loses events, or keeps them in its queue."""
    surface, reason, _ = one.kind
    if surface == INTAKE:
        return "problem" if reason in REASONS and REASONS[reason].loses else "warning"
    if reason in _USUAL:
        return "note"
    if surface == SIGN_IN:
        return "warning" if one.number >= _MISTYPED or reason in _WRONG - {"token-expired", "token-revoked"} else "note"
    return "warning" if reason in _WRONG else "note"


def _accepted_at(one: RecentRefusal, recorded_at: int, used_at: Mapping[str, int]) -> int:
    """Return when that was last accepted which was refused, 0 if that is not known."""
    over = REASONS[one.kind.reason].over if one.kind.reason in REASONS else ""
    if over == UNTIL_USED:
        return used_at.get(_token_name(one), 0)
    return recorded_at if over == UNTIL_RECORDED else 0


def _token_name(one: RecentRefusal) -> str:
    return one.kind.actor.removeprefix("token:")
