"""The check of what beat and the drain start by time beside deliveries."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.doctor import Finding
from app.logs import clause
from app.outbox.engine.clock import database_now
from app.outbox.upkeep import TaskState, read_tasks
from app.quantities import format_age, format_seconds

if TYPE_CHECKING:
    from app.doctor.checks import Service

_SUBJECT = "upkeep"


def check_upkeep(service: "Service") -> Iterator[Finding]:
    """Find what failed when it ran last, and what is overdue; several that are overdue have most likely one cause."""
    with service.database.reading() as connection:
        now = database_now(connection)
        states = read_tasks(connection, now, service_events=service.settings.service_events)
    overdue = [state for state in states if state.due_at]
    for state in states:
        if state.has_failed:
            good = (
                f"it succeeded {format_age(state.succeeded_at, now)} ago"
                if state.succeeded_at
                else "it never succeeded"
            )
            text = f"{state.task.about} failed {format_age(state.failed_at, now)} ago: {clause(state.problem)}; {good}"
            yield Finding(_SUBJECT, "warning", text)
    if overdue:
        listed = "; ".join(_describe(state, now) for state in overdue)
        hint = "does `bucketwire beat` run, and is the worker that drains there and not busy?"
        yield Finding(_SUBJECT, "warning", f"overdue: {listed}; {hint}", ("process", "ls"))


def _describe(state: TaskState, now: int) -> str:
    last = format_age(max(state.succeeded_at, state.failed_at), now)
    return f"{state.task.about}, not done for {last} (due each {format_seconds(state.task.interval_seconds)})"
