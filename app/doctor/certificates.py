"""The check of the certificates of APIs, and of those that APIs, targets and sources meet: which end soon."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from app.doctor import Finding
from app.outbox.certificates import Certificate, near_end, read_certificates
from app.outbox.engine.clock import database_now
from app.outbox.processes import read_processes
from app.quantities import format_age, format_seconds

if TYPE_CHECKING:
    from app.doctor.checks import Service


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
