"""The checks of what the service depends on: certificates that end, old transactions, and the OpenID provider."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from app.config.settings import Settings
from app.doctor import Finding
from app.logs import clause
from app.outbox.admin.old_snapshots import OldSnapshots, read_old_snapshots
from app.outbox.certificates import Certificate, near_end, read_certificates
from app.outbox.engine.clock import database_now
from app.outbox.engine.database import Database
from app.outbox.processes import read_processes
from app.quantities import count_noun, format_age, format_seconds

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
            yield _finding(one, now)


def _finding(one: Certificate, now: int) -> Finding:
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
    from app.console.openid import redirect_address  # noqa: PLC0415 - see below
    from app.console.openid_check import problems  # noqa: PLC0415 - slow: only where there is a provider

    register = f"the redirect address to register at the provider is {redirect_address(settings)}"
    found = [Finding("openid", "warning", problem) for problem in problems(settings)]
    yield from found
    if found:
        yield Finding("openid", "note", register)
    else:
        yield Finding("openid", "ok", f"{settings.oidc_issuer} answers and has keys; {register}")
